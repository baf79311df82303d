"""A piece of model-written Python: read, edited in place, and searched for its uses of pyautogui."""

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_CODE = 50_000
"""Characters. One argument of a Linux command holds 128 KiB, our own part of the program included."""


class BadCode(ValueError):
    """Code or a call that must not run; the message is fit for the model."""


@dataclass(frozen=True)
class Edit:
    """A node of the tree, and the text that takes its place."""

    node: ast.expr
    text: str


def parsed(code: str) -> tuple[str, ast.Module]:
    """Code without a common indentation, and its syntax tree. Raises BadCode."""
    if len(code) > MAX_CODE:
        raise BadCode(f"the code is longer than {MAX_CODE} characters")
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
    or BadCode for what Python itself cannot read."""
    try:
        tree = ast.parse(code)
        compile(code, "<action>", "exec", dont_inherit=True)
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise BadCode(f"the code is not Python: {type(error).__name__}") from error
    return tree


def syntax_error(error: SyntaxError) -> BadCode:
    """The error in the model's words."""
    return BadCode(f"the code is not valid Python: {error.msg} (line {error.lineno})")


def edited(code: str, edits: Iterable[Edit]) -> str:
    """The code with nodes replaced; positions of the syntax tree count bytes of UTF-8."""
    starts = line_starts(code)
    source = code.encode()
    by_place = {span(starts, edit.node): edit.text.encode() for edit in edits}
    for (start, end), text in sorted(by_place.items(), reverse=True):
        source = source[:start] + text + source[end:]
    return source.decode()


def line_starts(code: str) -> list[int]:
    """Offset of each line, in bytes."""
    starts = [0]
    for line in code.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def span(starts: list[int], node: ast.stmt | ast.expr) -> tuple[int, int]:
    """First byte of a node, and the first one after it."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


POINTED: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("click", "leftClick", "rightClick", "middleClick", "doubleClick", "tripleClick"), (0, 1)),
    **dict.fromkeys(("mouseDown", "mouseUp", "moveTo", "dragTo"), (0, 1)),
    **dict.fromkeys(("scroll", "hscroll", "vscroll"), (1, 2)),
}
"""Functions that take a place, and the positions of its x and y."""

OFFSET = ("moveRel", "move", "dragRel", "drag")
"""Functions that take an offset from where the pointer is."""

KEYED = ("press", "keyDown", "keyUp", "hotkey", "shortcut", "hold", "write", "typewrite")
"""Functions that take names of keys; the last two only in a list."""

_FUNCTIONS = (*POINTED, *OFFSET, *KEYED)

_UNSEEN = ("exec", "eval", "compile", "__import__", "globals", "locals", "vars", "__builtins__", "importlib")
"""Names that can reach pyautogui without naming it."""


@dataclass(frozen=True)
class Names:
    """The code's names of pyautogui and its functions."""

    modules: frozenset[str]
    functions: dict[str, str]
    """Name in the code → name in pyautogui."""

    def function(self, node: ast.AST) -> str | None:
        """The function of pyautogui that an expression names; None for any other expression."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return node.attr
        return self.functions.get(node.id) if isinstance(node, ast.Name) else None


def names_of(tree: ast.Module) -> Names:
    """The names that the code's imports give, in any place; `pyautogui` itself is always there."""
    modules = {"pyautogui"}
    functions: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name == "pyautogui" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "pyautogui":
            for alias in node.names:
                every = alias.name == "*"
                functions |= {name: name for name in _FUNCTIONS} if every else {alias.asname or alias.name: alias.name}
    return Names(frozenset(modules), functions)


def calls_of(tree: ast.Module, names: Names) -> Iterator[tuple[str, ast.Call]]:
    """Calls of pyautogui's functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := names.function(node.func)):
            yield name, node


def check_plain(tree: ast.Module, names: Names) -> None:
    """Make sure that every place the code points at is in a direct call of a pyautogui function.

    Raises BadCode for a use that could point elsewhere unseen: the module or such a function as a value
    (`pg = pyautogui`, `c = pyautogui.click`, `getattr(pyautogui, …)`), a name of theirs that is given another meaning,
    pyautogui's inner parts and its mini-language, and code that runs text.
    """
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    owners = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names.modules and id(node) not in owners:
            raise BadCode(f"use {node.id} only as {node.id}.function(...), with coordinates as plain numbers")
        if _unseen(node):
            raise BadCode("call pyautogui by its name, not through exec, eval, importlib, globals or the like")
        function = names.function(node)
        if function in (*POINTED, *OFFSET) and id(node) not in called:
            raise BadCode(f"call pyautogui.{function} directly, with coordinates as plain numbers")
        if isinstance(node, ast.Attribute) and function and _inner(function):
            raise BadCode(f"pyautogui.{function} cannot be used here")
        if taken := _binding(node, names):
            raise BadCode(f"{taken} is pyautogui's: give the code's own things other names")


def _unseen(node: ast.AST) -> bool:
    """Code that runs text or finds modules by their names, and imports of pyautogui's parts."""
    if isinstance(node, ast.Name):
        return node.id in _UNSEEN
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    else:
        return isinstance(node, ast.Attribute) and node.attr == "modules"
    return any(name.startswith("pyautogui.") or name.split(".")[0] in _UNSEEN for name in modules)


def _inner(function: str) -> bool:
    return function.startswith("_") or function in ("platformModule", "run", "sys", "pyautogui")


def _binding(node: ast.AST, names: Names) -> str | None:
    """A name of pyautogui's to which a node gives another meaning."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and names.function(node) in _FUNCTIONS:
        return f"pyautogui.{node.attr}"
    return next((name for name in _bound(node) if name in names.modules or name in names.functions), None)


def _bound(node: ast.AST) -> list[str | None]:
    """The names to which a node gives a meaning, pyautogui's own imports left out."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Import):
        return [one.asname or one.name.split(".")[0] for one in node.names if one.name.split(".")[0] != "pyautogui"]
    if isinstance(node, ast.ImportFrom) and node.module != "pyautogui":
        return [one.asname or one.name for one in node.names]
    return []
