"""Setup and postconfig change the desktop, so each is claimed once in the guest (DESIGN §3).

A worker that dies in the middle leaves a claim without an end: the next try then learns that the desktop is dirty.
"""

import asyncio
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from rollbook.desktop.client import GuestClient
from rollbook.errors import ActionFailed, SandboxLost

PhaseState = Literal["claimed", "done", "interrupted"]

DIRECTORY = "/tmp/.rollbook-phases"
_MARK = "@@rollbook-phase@@"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class PhaseClaim:
    """What the guest knows of a phase."""

    state: PhaseState
    note: str = ""
    """What was noted at its end. The guest is hostile: to be checked before it is believed."""


async def claim_phase(client: GuestClient, phase: str, token: str) -> PhaseClaim:
    """Claim `phase` on this desktop for the try that `token` names; safe to repeat with the same token.

    `claimed`: begin. `done`: it has ended here before. `interrupted`: another try began it and nobody knows how far
    it came. Raises SandboxLost.
    """
    answer = await _ask(client, phase, "claim", token=token)
    if answer.get("state") not in ("claimed", "done", "interrupted"):
        raise ActionFailed(f"the guest gave a claim of phase {phase} no meaning: {answer!r:.200}")
    return PhaseClaim(answer["state"], str(answer.get("note", "")))


async def finish_phase(client: GuestClient, phase: str, note: str = "") -> None:
    """Record in the guest that `phase` has ended, with a note for a later try."""
    await _ask(client, phase, "finish", note=note)


async def _ask(client: GuestClient, phase: str, verb: str, *, token: str = "", note: str = "") -> dict[str, Any]:
    source = resources.files("rollbook.desktop.inside").joinpath("phase.py").read_text()
    request = {"directory": DIRECTORY, "phase": phase, "verb": verb, "token": token, "note": note}
    command = ["python3", "-c", f"{source}\nmain({request!r})"]
    for number in range(1, _TRIES + 1):
        try:
            result = await client.execute(command, timeout_s=30)
            break
        except SandboxLost:
            if number == _TRIES:
                raise
            await asyncio.sleep(number)
    for line in result.output.splitlines():
        if line.startswith(_MARK):
            return _read(line.removeprefix(_MARK))
    raise ActionFailed(f"the guest could not {verb} phase {phase}: {(result.error or result.output)[:500]}")


def _read(text: str) -> dict[str, Any]:
    """The guest's answer; empty for what is none. The guest is hostile."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
