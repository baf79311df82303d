"""Model protocols by id."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.explain import explain
from rollbook.errors import InvalidInput
from rollbook.policies.protocols.base import ModelProtocol, ProtocolOptions
from rollbook.policies.protocols.computer_tool import ToolProtocol
from rollbook.policies.protocols.plain_code import PlainProtocol
from rollbook.policies.protocols.pyautogui_code import CodeProtocol

PARSERS = {
    "pyautogui-code-v1": "pyautogui-code-parser-v1",
    "computer-tool-v1": "computer-tool-parser-v1",
    "nano-omni-style-v1": "nano-omni-style-parser-v1",
    "pyautogui-plain-v1": "pyautogui-plain-parser-v1",
}
"""The parser id of each protocol id."""

_FOREIGN = {
    "nano-omni-v3-osworld-v1": (
        "is NeMo Gym's own protocol, and the bytes of its prompt are not available here; use nano-omni-style-v1, which "
        "follows what is published of it in prompt texts of our own"
    )
}
"""Ids of prompts that other projects wrote. Their id on a prompt of Rollbook would call two agents the same."""


def known_protocol(protocol_id: str, field: str = "model_protocol") -> str:
    """The id, where there is such a protocol; raises InvalidInput that names `field`."""
    if protocol_id in _FOREIGN:
        raise InvalidInput(f"{field}: {protocol_id!r} {_FOREIGN[protocol_id]}")
    if protocol_id not in PARSERS:
        raise InvalidInput(f"{field}: {protocol_id!r} is unknown; use one of {', '.join(PARSERS)}")
    return protocol_id


def protocol(protocol_id: str, options: ProtocolOptions | Mapping[str, Any] | None = None) -> ModelProtocol:
    """The protocol with this id, under these agent options. Raises InvalidInput that names the field."""
    parser_id = PARSERS[known_protocol(protocol_id)]
    if not isinstance(options, ProtocolOptions):
        try:
            options = ProtocolOptions.model_validate(dict(options or {}))
        except ValidationError as error:
            raise InvalidInput(f"agent_options: {explain(error)}") from error
    if protocol_id == "computer-tool-v1":
        return ToolProtocol(protocol_id, parser_id, options)
    if protocol_id == "pyautogui-plain-v1":
        return PlainProtocol(protocol_id, parser_id, options)
    ours = protocol_id == "pyautogui-code-v1"
    return CodeProtocol(protocol_id, parser_id, options, key_names=ours, name_limit=ours)
