"""Code of a model, before it runs anywhere: its syntax, its coordinates, its key names, its WAIT, DONE and FAIL."""

import ast
from dataclasses import dataclass

from models.outcome import TerminalAction
from rollbook.policies.base import WAIT
from rollbook.policies.protocols.coordinates import Projection
from rollbook.policies.protocols.pyautogui.keys import key_edits
from rollbook.policies.protocols.pyautogui.names import names_of
from rollbook.policies.protocols.pyautogui.pointing import place_edits
from rollbook.policies.protocols.pyautogui.source import (
    Unusable,
    compiled,
    edited,
    line_starts,
    parsed,
    span,
    syntax_error,
)

_STATUS: dict[str, TerminalAction] = {"success": "DONE", "failure": "FAIL"}


@dataclass(frozen=True)
class Program:
    """What a piece of code comes to."""

    actions: list[str]
    terminal_action: TerminalAction | None


def read_code(code: str, projection: Projection, *, key_names: bool) -> Program:
    """Check code and split it into actions, in the order of the text.

    Coordinates of pyautogui calls become pixels of the screen; with `key_names`, literal key names become pyautogui's.
    The statements `WAIT`, `computer.wait()`, `DONE`, `FAIL` and `computer.terminate(...)` split the code; nothing after
    a terminal one is kept. Raises Unusable, for what could not be read and for what would do something else unseen.
    """
    code, tree = parsed(code)
    try:
        names = names_of(tree)
        edits = [*place_edits(tree, names, projection), *(key_edits(tree, names) if key_names else ())]
    except RecursionError as error:
        raise Unusable("the code is too deeply nested") from error
    if edits:
        if not {id(edit.node) for edit in edits}.isdisjoint(_in_texts(tree)):
            raise Unusable("call pyautogui outside of f-strings")
        code, tree = parsed(edited(code, edits))
    return _split(code, tree)


def _in_texts(tree: ast.Module) -> set[int]:
    """Nodes inside f-strings: Python before 3.12 does not know where exactly they stand."""
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    return {id(inner) for text in texts for inner in ast.walk(text)}


def _split(code: str, tree: ast.Module) -> Program:
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Call) or _bare(node) for node in nodes):
        raise Unusable("the code does nothing: it calls no function")
    special = [(statement, word) for statement in tree.body if (word := _special(statement))]
    if sum(_bare(node) or _is_computer(node) for node in nodes) != len(special):
        raise Unusable("WAIT, DONE, FAIL, computer.wait and computer.terminate must each be a statement of its own")
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
    raise Unusable("the code cannot be run after other statements (for instance `from __future__`)")
