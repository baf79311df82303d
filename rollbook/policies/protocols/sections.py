"""The outer shape of a reply: thinking, headed sections, fenced blocks. Nothing here looks into the code."""

import re
from dataclasses import dataclass, field

# Two `#` at least, since one begins a comment in Python. Models also write headings in bold and with a colon.
_HEADING = re.compile(r"^ {0,3}#{2,6}[ \t]*(?:\*+[ \t]*)?(thought|action|code)\b[ \t*]*:?[ \t*]*(.*)$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_TAG = re.compile(r"^[A-Za-z][A-Za-z0-9_+.-]*$")
_TAGGED = re.compile(r"^(?:python3?|py)\s+(?=\S)", re.IGNORECASE)
WORDS = ("WAIT", "DONE", "FAIL")
"""Words that may replace code."""


@dataclass
class Block:
    """A fenced block."""

    lines: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Section:
    """The text under one heading, up to the next."""

    title: str
    lines: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()


def split_thinking(content: str) -> tuple[str, str]:
    """Thinking and what follows it; what was thought is never read as an answer.

    Everything up to the last `</think>` is thinking, and so is everything after a `<think>` that is not closed,
    also in mid-text.
    """
    head, closing, rest = content.rpartition("</think>")
    thinking = [head.strip().removeprefix("<think>").strip()] if closing else []
    rest, opening, unfinished = rest.partition("<think>")
    if opening:
        thinking.append(unfinished.strip())
    return "\n\n".join(thinking).strip(), rest


def sections_of(text: str) -> list[Section]:
    """The sections in order; a heading inside a fenced block is none. The text before the first has an empty title."""
    found = [Section("")]
    fence = ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        rest = line
        if not fence and (heading := _HEADING.match(line)):
            found.append(Section(heading[1].lower()))
            rest = heading[2]
        found[-1].lines.append(rest)
        fence = _follow(found[-1].blocks, fence, rest)
    return found


def fenced(text: str) -> tuple[list[Block], str]:
    """The fenced blocks of a text, and the text without them."""
    blocks: list[Block] = []
    rest: list[str] = []
    fence = ""
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        before, known = fence, len(blocks)
        fence = _follow(blocks, fence, line)
        # Neither inside a block nor the line that opened one.
        if not before and len(blocks) == known:
            rest.append(line)
    return blocks, "\n".join(rest).strip()


def _follow(blocks: list[Block], fence: str, line: str) -> str:
    """Take a line into the fenced blocks; returns the fence that is open after it, or an empty text."""
    if not fence:
        opening = _FENCE.match(line)
        if not opening:
            return ""
        blocks.append(Block())
        fence, first = opening[1], opening[2].strip()
        ending = first.endswith(fence)
        first = first.removesuffix(fence).strip() if ending else first
        # The opening fence is followed by a language, or on the same line by the code or the word itself.
        if not _TAG.match(first) or first in WORDS:
            first = _TAGGED.sub("", first)
            blocks[-1].lines += [first] if first else []
        blocks[-1].closed = ending
        return "" if ending else fence
    stripped = line.rstrip()
    if not stripped.endswith(fence):
        blocks[-1].lines.append(line)
        return fence
    # the closing fence on a line of its own, or right after the last piece of code
    if last := stripped.rstrip(fence[0]):
        blocks[-1].lines += [last] if last.strip() else []
    blocks[-1].closed = True
    return ""
