"""Unknown `ROLLBOOK_*` variables: a misspelt one would be ignored silently."""

import os
from pathlib import Path

from dotenv import dotenv_values

from models.explain import similar_names
from rollbook.config.settings import Settings

PREFIX = "ROLLBOOK_"

INTERNAL = frozenset({"ROLLBOOK_STACK_TOKEN", "ROLLBOOK_READY_FILE", "ROLLBOOK_EVALUATOR_RUN"})
"""Not for people: marks and messages between our own processes."""


def known_names() -> frozenset[str]:
    """Every `ROLLBOOK_*` variable that some part of Rollbook reads."""
    return INTERNAL | {f"{PREFIX}{name}" for name in _settable()}


def _settable() -> list[str]:
    return [name.upper() for name in Settings.model_fields]


def unknown_names(settings: Settings, env_file: Path = Path(".env")) -> list[str]:
    """One line per `ROLLBOOK_*` name, of the environment and of `.env`, that nothing reads; with what was likely meant.

    Names that the endpoints file mentions are known: a profile may take its key from any variable.
    """
    known, endpoints = known_names(), _text(settings.endpoints_file)
    places = {name: "" for name in os.environ}
    places |= {name: f" (in {env_file})" for name in _names_in(env_file) if name not in places}
    lines = []
    for name, place in sorted(places.items()):
        if name.upper().startswith(PREFIX) and name.upper() not in known and name not in endpoints:
            similar = similar_names(name.upper().removeprefix(PREFIX), _settable())
            hint = f"did you mean {PREFIX}{similar[0]}?" if similar else "see docs/reference/settings.md"
            lines.append(f"{name}{place} is not a setting: {hint}")
    return lines


def _names_in(env_file: Path) -> list[str]:
    try:
        return list(dotenv_values(env_file, interpolate=False)) if env_file.is_file() else []
    except (OSError, UnicodeDecodeError):
        return []


def _text(path: Path | None) -> str:
    try:
        return "" if path is None else path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""  # the reader of the profiles reports the error
