"""What is wrong with an input, in words that name the field and the fix."""

from typing import Any

from pydantic import ValidationError


def explain(error: ValidationError) -> str:
    """A validation error in words: one `field: what is wrong` per wrong field."""
    return "; ".join(_explain(item) for item in error.errors())


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
    text = _SHORT.get(kind) or item["msg"]
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
