"""Places in a model's code: from the model's space to pixels of the screen, or refused."""

import ast
from collections.abc import Iterator

from rollbook.policies.protocols.coordinates import OutOfSpace, Projection
from rollbook.policies.protocols.pyautogui.names import OFFSET, POINTED, Names, calls_of, check_plain
from rollbook.policies.protocols.pyautogui.source import Edit, Unusable


def place_edits(tree: ast.Module, names: Names, projection: Projection) -> Iterator[Edit]:
    """The edits that bring every place in the code to pixels of the screen.

    Where the model does not speak in pixels of the screen, a place that is not a literal cannot be brought there, and
    run as it stands it would point somewhere else without a word: Unusable. Nothing is looked at where the model
    does.
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
            raise Unusable(f"{name}: write the coordinates into the call, as plain numbers")
        try:
            yield Edit(node, str(projection.axis(value, axis)))
        except OutOfSpace as error:
            raise Unusable(str(error)) from error


def _check_offset(name: str, call: ast.Call) -> None:
    """Offsets are pixels in every space; a fraction of one would be cut to nothing."""
    for _, node in _axes(name, call, (0, 1), ("xOffset", "yOffset")):
        value = number(node)
        if value is not None and not value.is_integer():
            raise Unusable(f"{name}: its offset is in pixels of the screen, a whole number")


def _axes(
    name: str, call: ast.Call, positions: tuple[int, int], keywords: str | tuple[str, str]
) -> list[tuple[int, ast.expr]]:
    """A call's x (0) and y (1), as far as given, with what stands for each. Raises Unusable where that is hidden."""
    if any(isinstance(given, ast.Starred) for given in call.args) or any(one.arg is None for one in call.keywords):
        raise Unusable(f"{name}: write the arguments out, without * and **")
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    x, y = (
        call.args[position] if position < len(call.args) else named.get(keyword)
        for position, keyword in zip(positions, keywords, strict=True)
    )
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
    except OverflowError:
        return float("inf")
