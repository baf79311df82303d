"""Which tasks need the internet inside the desktop: the rule behind `egress: auto` (DESIGN §7).

Read off what the task itself declares: its proxy flag, its setup, its evaluator's getters. Held against the hand-made
classes of OSWorld's 369 tasks it misses none that needs a live website or a Google account; it also opens some that
only install packages.
"""

import re
from collections.abc import Iterator
from typing import Any

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
    """Why an OSWorld task needs the internet, in a few words; empty when nothing says so."""
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
