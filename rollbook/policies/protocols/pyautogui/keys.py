"""Key names in a model's code. pyautogui drops one that it does not know without a word, so it is found here."""

import ast
from collections import Counter
from collections.abc import Iterator

from rollbook.policies.keys import known_key
from rollbook.policies.protocols.pyautogui.names import KEYED, Names, calls_of
from rollbook.policies.protocols.pyautogui.source import Edit, Unusable

_Listed = ast.List | ast.Tuple | ast.Set

_TYPING = ("write", "typewrite")


def key_edits(tree: ast.Module, names: Names) -> Iterator[Edit]:
    """The edits that give every literal key name its name in pyautogui. Raises Unusable for one that does not exist.

    A literal stands in the call itself, or in the only places that a variable of the call has its values from.
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
                    if variable in elsewhere:
                        raise Unusable(f"{name}: the key {ast.unparse(edit.node)[:40]} is called {edit.text}")
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
                raise Unusable(f"{name}: there is no key named {node.value[:40]!r}")
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
