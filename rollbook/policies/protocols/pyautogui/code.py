"""pyautogui code of a model, checked and made ready to run: places in pixels of the screen, key names that exist."""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from models.outcome import TerminalAction
from rollbook.policies.base import WAIT
from rollbook.policies.keys import known_key
from rollbook.policies.protocols.coordinates import OutOfSpace, Projection
from rollbook.policies.protocols.pyautogui.source import (
    KEYED,
    OFFSET,
    POINTED,
    BadCode,
    Edit,
    Names,
    calls_of,
    check_plain,
    compiled,
    edited,
    line_starts,
    names_of,
    parsed,
    span,
    syntax_error,
)


def place_edits(tree: ast.Module, names: Names, projection: Projection) -> Iterator[Edit]:
    """The edits that bring every place in the code to pixels of the screen.

    Where the model does not speak in pixels of the screen, a place that is not a literal cannot be brought there, and
    run unchanged it would silently point somewhere else: BadCode. Nothing is checked where the model does.
    """
    if projection.identity:
        return
    check_plain(tree, names)
    for name, call in calls_of(tree, names):
        if name in POINTED:
            yield from _placed(name, call, projection)
        elif name in OFFSET:
            _check_offset(name, call)


def _placed(name: str, call: ast.Call, projection: Projection) -> Iterator[Edit]:
    for axis, node in _axes(name, call, POINTED[name], "xy"):
        value = number(node)
        if value is None:
            raise BadCode(f"{name}: write the coordinates into the call, as plain numbers")
        try:
            yield Edit(node, str(projection.axis(value, axis)))
        except OutOfSpace as error:
            raise BadCode(str(error)) from error


def _check_offset(name: str, call: ast.Call) -> None:
    """Offsets are pixels in every space; a fraction of one would be cut to nothing."""
    for _, node in _axes(name, call, (0, 1), ("xOffset", "yOffset")):
        value = number(node)
        if value is not None and not value.is_integer():
            raise BadCode(f"{name}: its offset is in pixels of the screen, a whole number")


def _axes(
    name: str, call: ast.Call, positions: tuple[int, int], keywords: str | tuple[str, str]
) -> list[tuple[int, ast.expr]]:
    """A call's x (0) and y (1), as far as given, each with its expression. Raises BadCode where that is hidden."""
    if any(isinstance(given, ast.Starred) for given in call.args) or any(one.arg is None for one in call.keywords):
        raise BadCode(f"{name}: write the arguments out, without * and **")
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    x, y = (
        call.args[position] if position < len(call.args) else named.get(keyword)
        for position, keyword in zip(positions, keywords, strict=True)
    )
    # pyautogui takes a pair as its first argument, too.
    if isinstance(x, ast.Tuple | ast.List) and (y is None or _none(y)) and len(x.elts) == 2:
        x, y = x.elts
    return [(axis, node) for axis, node in enumerate((x, y)) if node is not None and not _none(node)]


def _none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def number(node: ast.expr) -> float | None:
    """A literal number with at most one sign; None for any other expression."""
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    if not (isinstance(node, ast.Constant) and type(node.value) in (int, float)):
        return None
    try:
        return sign * float(node.value)  # type: ignore[arg-type]
    # An integer beyond any float; the projection refuses it.
    except OverflowError:
        return float("inf")


_Listed = ast.List | ast.Tuple | ast.Set

_TYPING = ("write", "typewrite")


def key_edits(tree: ast.Module, names: Names) -> Iterator[Edit]:
    """The edits that give every literal key name its name in pyautogui. Raises BadCode for one that does not exist.

    A literal is in the call itself, or in the only places that a variable of the call has its values from.
    """
    calls = [(name, call) for name, call in calls_of(tree, names) if name in KEYED]
    variables = _literals(tree)
    lists = {name for name, values in variables.items() if all(isinstance(value, _Listed) for value in values)}
    elsewhere = _read_outside(tree, [call for name, call in calls if name not in _TYPING or _reads(call) <= lists])
    for name, call in calls:
        for given in _given(name, call):
            variable = given.id if isinstance(given, ast.Name) else None
            for value in [given] if variable is None else variables.get(variable, []):
                for edit in _checked(name, value):
                    # Its value cannot be replaced here without changing what it means elsewhere.
                    if variable in elsewhere:
                        raise BadCode(f"{name}: the key {ast.unparse(edit.node)[:40]} is called {edit.text}")
                    yield edit


def _given(name: str, call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that hold key names."""
    positional = call.args if name in ("hotkey", "shortcut") else call.args[:1]
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("key", "keys", "message")]
    return [given.value if isinstance(given, ast.Starred) else given for given in (*positional, *named)]


def _checked(name: str, given: ast.expr) -> Iterator[Edit]:
    if name in _TYPING and not isinstance(given, _Listed):
        return  # a text, of which each character is typed
    for node in given.elts if isinstance(given, _Listed) else [given]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            key = known_key(node.value)
            if key is None:
                raise BadCode(f"{name}: there is no key named {node.value[:40]!r}")
            if key != node.value:
                yield Edit(node, repr(key))


def _literals(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Values of the variables that get them only by plain assignments, or by loops over lists that are written out."""
    values: dict[str, list[ast.expr]] = {}
    bound: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] += 1
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            plain[node.targets[0].id] += 1
            values.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, _Listed):
            for name in [node.target.id] if isinstance(node.target, ast.Name) else []:
                plain[name] += 1
                values.setdefault(name, []).extend(node.iter.elts)
    return {name: found for name, found in values.items() if plain[name] == bound[name]}


def _read_outside(tree: ast.Module, calls: list[ast.Call]) -> set[str | None]:
    """Variables that are read outside these calls too: their values mean more than keys."""
    inside = {id(node) for call in calls for node in _parts(call)}
    reads = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return {node.id for node in reads if id(node) not in inside}


def _reads(call: ast.Call) -> set[str]:
    return {node.id for node in _parts(call) if isinstance(node, ast.Name)}


def _parts(call: ast.Call) -> Iterator[ast.AST]:
    """Everything in a call's arguments."""
    for given in (*call.args, *call.keywords):
        yield from ast.walk(given)


_STATUS: dict[str, TerminalAction] = {"success": "DONE", "failure": "FAIL"}


@dataclass(frozen=True)
class Program:
    """A piece of code, as actions."""

    actions: list[str]
    terminal_action: TerminalAction | None


def read_code(code: str, projection: Projection, *, key_names: bool) -> Program:
    """Check code and split it into actions, in the order of the text.

    Coordinates of pyautogui calls become pixels of the screen; with `key_names`, literal key names become pyautogui's.
    The statements `WAIT`, `computer.wait()`, `DONE`, `FAIL` and `computer.terminate(...)` split the code; nothing after
    a terminal one is kept. Raises BadCode, for what could not be read and for what would do something else unseen.
    """
    code, tree = parsed(code)
    try:
        names = names_of(tree)
        edits = [*place_edits(tree, names, projection), *(key_edits(tree, names) if key_names else ())]
    except RecursionError as error:
        raise BadCode("the code is too deeply nested") from error
    if edits:
        if not {id(edit.node) for edit in edits}.isdisjoint(_in_texts(tree)):
            raise BadCode("call pyautogui outside of f-strings")
        code, tree = parsed(edited(code, edits))
    return _split(code, tree)


def _in_texts(tree: ast.Module) -> set[int]:
    """Nodes inside f-strings: Python before 3.12 does not know where exactly they stand."""
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    return {id(inner) for text in texts for inner in ast.walk(text)}


def _split(code: str, tree: ast.Module) -> Program:
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Call) or _bare(node) for node in nodes):
        raise BadCode("the code does nothing: it calls no function")
    special = [(statement, word) for statement in tree.body if (word := _special(statement))]
    # In a loop or a condition they cannot split the code: which of them is reached is not known here.
    if sum(_bare(node) or _is_computer(node) for node in nodes) != len(special):
        raise BadCode("WAIT, DONE, FAIL, computer.wait and computer.terminate must each be a statement of its own")
    # Positions in the syntax tree count bytes.
    source, starts = code.encode(), line_starts(code)
    actions: list[str] = []
    ran_to = 0
    for statement, word in special:
        start, end = span(starts, statement)
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
    raise BadCode(f"computer.{value.func.attr[:40]} does not exist; only wait and terminate do")


def _status(call: ast.Call) -> TerminalAction:
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "status")]
    said = given[0].value if len(given) == 1 and isinstance(given[0], ast.Constant) else None
    status = _STATUS.get(said.strip().lower()) if isinstance(said, str) else None
    if status is None:
        raise BadCode("computer.terminate needs status='success' or status='failure'")
    return status


def _piece(source: bytes) -> list[str]:
    """One action, or none where there are only comments and separators between two words."""
    code = source.decode().strip(" \t;").strip("\n").rstrip(" \t\n;")
    try:
        return [_startable(code)] if compiled(code).body else []
    except SyntaxError as error:
        raise syntax_error(error) from error


def _startable(code: str) -> str:
    """OSWorld joins its own prefix to an action by `;`, where `for`, `if` or `with` may not stand: `pass` may."""
    for candidate in (code, f"pass\n{code}"):
        try:
            compiled(f"pass; {candidate}")
        except SyntaxError:
            continue
        return candidate
    raise BadCode("the code cannot be run after other statements (for instance `from __future__`)")
