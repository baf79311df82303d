"""What is wrong with an input, in words that name the field and the fix."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """A validation error in words: one `field: what is wrong` per wrong field.

    With the `model` that was read, an unknown key comes with the known one that is most like it.
    """
    known = dict.fromkeys(_keys(model, "")) if model else {}
    return "; ".join(_explain(item) + _guess(item, list(known)) for item in error.errors())


def _keys(annotation: Any, path: str) -> Iterator[str]:
    """Every key of a model as its writer knows it: `limits.max_steps`; of a union, those of all its members."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield f"{path}{name}"
            yield from _keys(field.annotation, f"{path}{name}.")
    else:
        for argument in get_args(annotation):
            yield from _keys(argument, path)


def _guess(item: Any, known: list[str]) -> str:
    if item["type"] != "extra_forbidden":
        return ""
    *above, key = _path(item["loc"], item["type"])
    likeness = {name: _likeness(name, key, above) for name in known}
    best = max(known, key=likeness.__getitem__, default="")
    return f" (did you mean {best}?)" if likeness.get(best, 0.0) >= ENOUGH else ""


ENOUGH = 0.7
"""Likeness (0 to 1) from which a guess is worth telling."""
ELSEWHERE = 0.1
"""How much more alike a key of another object must be than one of the same object."""


def _likeness(name: str, key: str, above: list[str]) -> float:
    where, _, last = name.rpartition(".")
    return SequenceMatcher(None, key, last).ratio() - (0.0 if where == ".".join(above) else ELSEWHERE)


_SHORT = {
    "extra_forbidden": "unknown key; remove it or correct its name",
    "missing": "required",
    "union_tag_not_found": "required",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
}


def _explain(item: Any) -> str:
    kind, given = item["type"], item.get("input")
    where = ".".join(_path(item["loc"], kind)) or "spec"
    if kind == "union_tag_invalid":
        return f"{where}: must be one of {item['ctx']['expected_tags']} (given: {item['ctx']['tag']!r:.80})"
    text = _SHORT.get(kind) or item["msg"].removeprefix("Value error, ")
    if kind in _SHORT or isinstance(given, dict | list):
        return f"{where}: {text}"
    return f"{where}: {text} (given: {given!r:.80})"


def _path(loc: tuple[int | str, ...], kind: str) -> list[str]:
    """The place as the writer knows it: `policy.waits`, not `policy.noop.waits`; the union's own trouble is `kind`."""
    parts = [str(part) for part in loc]
    if parts[:1] == ["policy"]:
        del parts[1:2]
        if kind.startswith("union_tag"):
            parts.append("kind")
    return parts
