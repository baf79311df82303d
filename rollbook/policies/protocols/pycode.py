"""Code of a model, before it runs anywhere: its syntax, its coordinates, its key names, its WAIT, DONE and FAIL."""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from models.outcome import TerminalAction
from rollbook.policies.base import WAIT
from rollbook.policies.keys import known_key
from rollbook.policies.protocols.coordinates import OutOfSpace, Projection

MAX_CODE = 50_000
"""Characters. One argument of a Linux command holds 128 KiB, our own part of the program included."""

_XY = (0, 1)
_POINTED: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("click", "leftClick", "rightClick", "middleClick", "doubleClick", "tripleClick"), _XY),
    **dict.fromkeys(("mouseDown", "mouseUp", "moveTo", "dragTo"), _XY),
    **dict.fromkeys(("scroll", "hscroll", "vscroll"), (1, 2)),
}
"""Functions that take a place, and the positions of its x and y. Offsets (`moveRel`, `dragRel`) stay pixels."""

_KEYED = ("press", "keyDown", "keyUp", "hotkey", "hold")

_STATUS: dict[str, TerminalAction] = {"success": "DONE", "failure": "FAIL"}


class Unusable(ValueError):
    """Code that must not run; the message is fit for the model."""


@dataclass(frozen=True)
class Program:
    """What a piece of code comes to."""

    actions: list[str]
    terminal_action: TerminalAction | None


@dataclass(frozen=True)
class _Edit:
    node: ast.expr
    text: str


def read_code(code: str, projection: Projection, *, key_names: bool) -> Program:
    """Check code and split it into actions, in the order of the text.

    Literal coordinates of pyautogui calls become pixels of the screen. With `key_names`, literal key names become
    pyautogui's. The statements `WAIT`, `computer.wait()`, `DONE`, `FAIL` and `computer.terminate(...)` split the code;
    nothing after a terminal one is kept. Raises Unusable.
    """
    code, tree = _parsed(code)
    edits = [edit for call in _pyautogui_calls(tree) for edit in _edits(call, projection, key_names)]
    if edits:
        code, tree = _parsed(_edited(code, edits))
    return _split(code, tree)


def _parsed(code: str) -> tuple[str, ast.Module]:
    """Code without a common indentation, and its syntax tree."""
    if len(code) > MAX_CODE:
        raise Unusable(f"the code is longer than {MAX_CODE} characters")
    code = code.strip("\n").rstrip()
    try:
        return code, _compiled(code)
    except IndentationError:
        code = textwrap.dedent(code)
    except SyntaxError as error:
        raise _syntax_error(error) from error
    try:
        return code, _compiled(code)
    except SyntaxError as error:
        raise _syntax_error(error) from error


def _compiled(code: str) -> ast.Module:
    """The tree of code that would also compile (`return` outside a function parses, but does not)."""
    try:
        tree = ast.parse(code)
        compile(code, "<action>", "exec", dont_inherit=True)
    except SyntaxError:
        raise
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Unusable(f"the code is not Python: {type(error).__name__}") from error
    return tree


def _syntax_error(error: SyntaxError) -> Unusable:
    return Unusable(f"the code is not valid Python: {error.msg} (line {error.lineno})")


def _pyautogui_calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Calls of pyautogui's functions, under whatever names the code imports them."""
    modules = {"pyautogui"}
    functions: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname for alias in node.names if alias.name == "pyautogui" and alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "pyautogui":
            functions |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in modules:
            yield called.attr, node
        elif isinstance(called, ast.Name) and called.id in functions:
            yield functions[called.id], node


def _edits(named: tuple[str, ast.Call], projection: Projection, key_names: bool) -> Iterator[_Edit]:
    name, call = named
    if name in _POINTED and not projection.identity:
        yield from _placed(call, _POINTED[name], projection)
    if name in _KEYED and key_names:
        yield from _keyed(name, call)


def _placed(call: ast.Call, positions: tuple[int, int], projection: Projection) -> Iterator[_Edit]:
    """The call's x and y in pixels, where every one that is given is a literal number; other places are the code's
    own arithmetic, in pixels, and stay."""
    if any(isinstance(given, ast.Starred) for given in call.args):
        return
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    x, y = (_argument(call, position, named.get(axis)) for axis, position in zip("xy", positions, strict=True))
    if isinstance(x, ast.Tuple | ast.List) and y is None and len(x.elts) == 2:
        x, y = x.elts
    given = [(axis, node, _number(node)) for axis, node in enumerate((x, y)) if node is not None and not _none(node)]
    if any(value is None for _, _, value in given):
        return
    for axis, node, value in given:
        assert value is not None
        try:
            yield _Edit(node, str(projection.axis(value, axis)))
        except OutOfSpace as error:
            raise Unusable(str(error)) from error


def _argument(call: ast.Call, position: int, named: ast.expr | None) -> ast.expr | None:
    return call.args[position] if position < len(call.args) else named


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _number(node: ast.expr) -> float | None:
    """A literal number with at most one sign."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    if not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        return None
    try:
        return sign * float(node.value)  # type: ignore[arg-type]
    except OverflowError:
        return float("inf")


def _keyed(name: str, call: ast.Call) -> Iterator[_Edit]:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("key", "keys")]
    for given in [*(call.args if name == "hotkey" else call.args[:1]), *named]:
        for node in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                key = known_key(node.value)
                if key is None:
                    raise Unusable(f"{name}: there is no key named {node.value[:40]!r}")
                if key != node.value:
                    yield _Edit(node, repr(key))


def _edited(code: str, edits: list[_Edit]) -> str:
    """The code with nodes replaced; positions of the syntax tree count bytes of UTF-8."""
    starts = _line_starts(code)
    source = code.encode()
    for edit in sorted(edits, key=lambda one: (one.node.lineno, one.node.col_offset), reverse=True):
        start, end = _span(starts, edit.node)
        source = source[:start] + edit.text.encode() + source[end:]
    return source.decode()


def _line_starts(code: str) -> list[int]:
    starts = [0]
    for line in code.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(starts: list[int], node: ast.stmt | ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _split(code: str, tree: ast.Module) -> Program:
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Call) or _bare(node) for node in nodes):
        raise Unusable("the code does nothing: it calls no function")
    special = [(statement, word) for statement in tree.body if (word := _special(statement))]
    if sum(_bare(node) or _is_computer(node) for node in nodes) != len(special):
        raise Unusable("WAIT, DONE, FAIL, computer.wait and computer.terminate must each be a statement of its own")
    source, starts = code.encode(), _line_starts(code)
    actions: list[str] = []
    ran_to = 0
    for statement, word in special:
        start, end = _span(starts, statement)
        actions += _piece(source[ran_to:start])
        if word != WAIT:
            return Program(actions, "DONE" if word == "DONE" else "FAIL")
        actions.append(WAIT)
        ran_to = end
    return Program([*actions, *_piece(source[ran_to:])], None)


def _bare(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Name) and node.value.id in (WAIT, "DONE", "FAIL")


def _is_computer(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "computer"


def _special(statement: ast.stmt) -> str | None:
    """WAIT, DONE or FAIL, however the statement says it; None for one that is to be run."""
    if not isinstance(statement, ast.Expr):
        return None
    value = statement.value
    if isinstance(value, ast.Name):
        return value.id if _bare(statement) else None
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _is_computer(value.func)):
        return None
    if value.func.attr == "wait":
        return WAIT
    if value.func.attr == "terminate":
        return _status(value)
    raise Unusable(f"computer.{value.func.attr[:40]} does not exist; only wait and terminate do")


def _status(call: ast.Call) -> TerminalAction:
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "status")]
    said = given[0].value if len(given) == 1 and isinstance(given[0], ast.Constant) else None
    status = _STATUS.get(said.strip().lower()) if isinstance(said, str) else None
    if status is None:
        raise Unusable("computer.terminate needs status='success' or status='failure'")
    return status


def _piece(source: bytes) -> list[str]:
    """One action, or none where nothing stands between two words but comments and separators."""
    code = source.decode().strip(" \t;").strip("\n").rstrip(" \t\n;")
    try:
        return [_startable(code)] if _compiled(code).body else []
    except SyntaxError as error:
        raise _syntax_error(error) from error


def _startable(code: str) -> str:
    """OSWorld joins its own prefix to an action by `;`, where `for`, `if` or `with` may not stand: `pass` may."""
    for candidate in (code, f"pass\n{code}"):
        try:
            _compiled(f"pass; {candidate}")
        except SyntaxError:
            continue
        return candidate
    raise Unusable("the code cannot be run after other statements (for instance `from __future__`)")
