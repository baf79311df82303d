"""OSWorld tasks, task sets and the filter that selects from them."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, field_validator

from models.base import Input, Name, Sha256, Wire
from models.identity import digest

DOMAINS = (
    "chrome",
    "gimp",
    "libreoffice_calc",
    "libreoffice_impress",
    "libreoffice_writer",
    "multi_apps",
    "os",
    "thunderbird",
    "vlc",
    "vs_code",
)
"""OSWorld's domains in the order in which results are reported; others follow alphabetically."""

_SAFE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def domain_rank(domain: str) -> tuple[int, str]:
    """Sort key of a domain: OSWorld's order first, then by name."""
    return (DOMAINS.index(domain), "") if domain in DOMAINS else (len(DOMAINS), domain)


class Evaluator(BaseModel):
    """The parts of an OSWorld evaluator without which a task cannot be scored."""

    model_config = ConfigDict(extra="allow")
    func: str | list[str]
    conj: str = "and"


class TaskDocument(BaseModel):
    """One task in OSWorld's JSON format: the fields that the runner needs; all others are kept unchanged."""

    model_config = ConfigDict(extra="allow")
    id: str
    instruction: str = Field(min_length=1)
    config: list[dict[str, Any]] = []
    evaluator: Evaluator
    proxy: StrictBool = False

    @field_validator("id")
    @classmethod
    def _safe_id(cls, value: str) -> str:
        if not _SAFE.match(value):
            raise ValueError("an id holds letters, digits, '_', '.' and '-' only")
        return value

    @field_validator("config")
    @classmethod
    def _typed_steps(cls, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for position, step in enumerate(steps):
            if not isinstance(step.get("type"), str):
                raise ValueError(f"step {position} has no 'type'")
        return steps


class Task(Wire):
    """A task in its set. `domain` is the folder, not OSWorld's `snapshot`."""

    task_id: str
    domain: Name
    task_digest: Sha256
    document: dict[str, Any]
    unscorable: str | None = None
    """The reason for which the evaluator cannot set it up or score it, as registered; None where it can."""


def read_task(domain: str, document: dict[str, Any]) -> Task:
    """Validate an OSWorld document; raises ValueError that names the field."""
    try:
        parsed = TaskDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}") from error
    return Task(task_id=parsed.id, domain=domain, task_digest=digest(document), document=document)


def set_digest(tasks: list[Task]) -> str:
    """Content address of a task set: independent of the order and the layout of its files."""
    return digest(sorted([task.domain, task.task_id, task.task_digest] for task in tasks))


class TaskFilter(Input):
    """Selection of tasks from the set; without `domains` and `ids` it is everything."""

    domains: list[Name] | None = None
    """Domains (folders) to take; all of them when None."""
    ids: list[str] | None = None
    """Task ids to take; each must exist. All of them when None."""
    exclude_ids: list[str] = []
    """Task ids to leave out; each must exist."""
    on_unrunnable: Literal["refuse", "exclude"] = "refuse"
    """Tasks that the desktop image lacks an application for, or that the evaluator cannot score: refuse the batch, or
    leave them out of it, recorded with the reason."""

    @field_validator("domains", "ids")
    @classmethod
    def _not_empty(cls, value: list[str] | None) -> list[str] | None:
        # A program that found no task writes an empty list: to run all of them would be the opposite of what it meant.
        if value is not None and not value:
            raise ValueError("must not be empty; leave the key out to take all")
        return value


def recorded_filter(raw: dict[str, Any]) -> dict[str, Any]:
    """The filter of a spec in the ledger as one that is accepted: older records hold `[]` for a key left out."""
    return {key: value for key, value in raw.items() if value}


# The rule behind `egress: auto`, read off what the task declares: its proxy flag, its setup, its evaluator's getters.
# Compared with the hand-made classes of OSWorld's 369 tasks it misses none that needs a live website or a Google
# account; it also opens some that only install packages.

WEB_GETTERS = frozenset(
    {
        "active_tab_html_parse",
        "active_tab_info",
        "active_tab_url_parse",
        "active_url_from_accessTree",
        "gotoRecreationPage_and_get_html_content",
        "info_from_website",
        "open_tabs_info",
        "page_info",
        "pdf_from_url",
        "url_dashPart",
    }
)
"""Getters of `desktop_env` that look at web pages."""

WEB_SETUP = frozenset({"googledrive", "login"})

_REMOTE_URL = re.compile(r"https?://(?!localhost\b|127\.)")
_FETCHES = re.compile(r"\b(apt|apt-get|pip3?|snap|npm) (-\S+ )*install|\bcurl |\bwget |\bgit clone")


def needs_web(task: dict[str, Any]) -> str:
    """The reason for which an OSWorld task needs the internet, in a few words; empty without any."""
    if task.get("proxy") is True:
        return "proxy is true"
    evaluator = task["evaluator"]
    for step in [*task.get("config", []), *evaluator.get("postconfig", [])]:
        if reason := _step(step):
            return reason
    for getter in (*_types(evaluator.get("result")), *_types(evaluator.get("expected"))):
        if getter in WEB_GETTERS:
            return f"the evaluator looks at web pages ({getter})"
    return ""


def _step(step: dict[str, Any]) -> str:
    kind, parameters = step.get("type"), step.get("parameters") or {}
    if kind in WEB_SETUP:
        return f"setup step {kind}"
    if kind == "chrome_open_tabs" and any(_REMOTE_URL.match(url) for url in parameters.get("urls_to_open", [])):
        return "setup opens web pages"
    if kind in ("execute", "command", "launch"):
        command = parameters.get("command")
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        if _FETCHES.search(text) or _REMOTE_URL.search(text):
            return f"setup step {kind} fetches from the internet"
    return ""


def _types(getters: Any) -> Iterator[str]:
    for getter in getters if isinstance(getters, list) else [getters]:
        if isinstance(getter, dict) and isinstance(getter.get("type"), str):
            yield getter["type"]
