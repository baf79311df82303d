"""Reading of what people write: strict JSON, and error messages that name the field and the fix."""

import json
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def parse_json(text: str) -> Any:
    """Parse a document that a person wrote; raises ValueError also for NaN, infinities and repeated keys."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        result[key] = value
    return result


def similar_names(value: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Up to `count` known names that are similar to `value`, else those that begin with it."""
    names = sorted(known)
    close = get_close_matches(value, names, n=count, cutoff=0.5) or [name for name in names if name.startswith(value)]
    return close[:count] if value else []


def did_you_mean(value: str, known: Iterable[str], *, count: int = 1) -> str:
    """`did you mean a, b?` with the `similar_names`; empty without any."""
    similar = similar_names(value, known, count)
    return f"did you mean {', '.join(similar)}?" if similar else ""


def explain(error: ValidationError, model: type[BaseModel] | None = None, *, prefix: str = "") -> str:
    """A validation error in words: one `field: problem` per wrong field, each field after `prefix`.

    With the `model` that was read, an unknown key comes with the known one that is most like it.
    """
    known = dict.fromkeys(_keys(model, "")) if model else {}
    return "; ".join(prefix + _explain(item) + _guess(item, list(known)) for item in error.errors())


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
"""Least likeness (0 to 1) of a guess."""
ELSEWHERE = 0.1
"""Additional likeness that a key of another object needs."""


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
