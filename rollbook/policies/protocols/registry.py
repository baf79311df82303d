"""Model protocols by id."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from models.batch import explain
from rollbook.errors import InvalidInput
from rollbook.policies.protocols.base import ModelProtocol, ProtocolOptions
from rollbook.policies.protocols.computer_tool import ToolProtocol
from rollbook.policies.protocols.pyautogui_code import CodeProtocol

PARSERS = {
    "pyautogui-code-v1": "pyautogui-code-parser-v1",
    "computer-tool-v1": "computer-tool-parser-v1",
    "nano-omni-v3-osworld-v1": "nemotron-v3-nano-omni-parser-v1",
}
"""The parser id of each protocol id."""


def protocol(protocol_id: str, options: ProtocolOptions | Mapping[str, Any] | None = None) -> ModelProtocol:
    """The protocol with this id, under these agent options. Raises InvalidInput that names the field."""
    if protocol_id not in PARSERS:
        raise InvalidInput(f"model_protocol: {protocol_id!r} is unknown; use one of {', '.join(PARSERS)}")
    if not isinstance(options, ProtocolOptions):
        try:
            options = ProtocolOptions.model_validate(dict(options or {}))
        except ValidationError as error:
            raise InvalidInput(f"agent_options: {explain(error)}") from error
    parser_id = PARSERS[protocol_id]
    if protocol_id == "computer-tool-v1":
        return ToolProtocol(protocol_id, parser_id, options)
    ours = protocol_id == "pyautogui-code-v1"
    return CodeProtocol(protocol_id, parser_id, options, key_names=ours, name_limit=ours)
