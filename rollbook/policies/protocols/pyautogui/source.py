"""A piece of Python as text and as a tree: checked, and edited in place."""

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CODE = 50_000
"""Characters. One argument of a Linux command holds 128 KiB, our own part of the program included."""


class Unusable(ValueError):
    """Code or a call that must not run; the message is fit for the model."""


@dataclass(frozen=True)
class Edit:
    """A node of the tree, and the text that takes its place."""

    node: ast.expr
    text: str


def parsed(code: str) -> tuple[str, ast.Module]:
    """Code without a common indentation, and its syntax tree. Raises Unusable."""
    if len(code) > MAX_CODE:
        raise Unusable(f"the code is longer than {MAX_CODE} characters")
    code = code.strip("\n").rstrip()
    try:
        return code, compiled(code)
    except IndentationError:
        code = textwrap.dedent(code)
    except SyntaxError as error:
        raise syntax_error(error) from error
    try:
        return code, compiled(code)
    except SyntaxError as error:
        raise syntax_error(error) from error


def compiled(code: str) -> ast.Module:
    """The tree of code that would also compile (`return` outside a function parses, but does not). Raises SyntaxError,
    or Unusable for what Python itself cannot read."""
    try:
        tree = ast.parse(code)
        compile(code, "<action>", "exec", dont_inherit=True)
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Unusable(f"the code is not Python: {type(error).__name__}") from error
    return tree


def syntax_error(error: SyntaxError) -> Unusable:
    """The error in the model's words."""
    return Unusable(f"the code is not valid Python: {error.msg} (line {error.lineno})")


def edited(code: str, edits: Iterable[Edit]) -> str:
    """The code with nodes replaced; positions of the syntax tree count bytes of UTF-8."""
    starts = line_starts(code)
    source = code.encode()
    by_place = {span(starts, edit.node): edit.text.encode() for edit in edits}
    for (start, end), text in sorted(by_place.items(), reverse=True):
        source = source[:start] + text + source[end:]
    return source.decode()


def line_starts(code: str) -> list[int]:
    """Where each line begins, in bytes."""
    starts = [0]
    for line in code.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def span(starts: list[int], node: ast.stmt | ast.expr) -> tuple[int, int]:
    """First byte of a node, and the first one after it."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
