"""A real desktop, reached over HTTP: the guest client for the agent, OSWorld's own code for setup and evaluation."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from models.episode import DesktopRef
from models.outcome import Infra, TerminalAction
from rollbook.desktop.client import GuestClient
from rollbook.desktop.driver import Files, Job, Keep, Note, PhaseReport, Scored
from rollbook.desktop.inside import guest_program
from rollbook.desktop.journal import ActionResult, perform
from rollbook.desktop.observe import RawObservation, observe
from rollbook.desktop.runtimes import probe_runtime
from rollbook.desktop.runtimes import runtime as runtime_named
from rollbook.errors import (
    ActionFailed,
    DesktopBroken,
    EvaluationInterrupted,
    EvaluatorError,
    SandboxLost,
    SetupFailed,
    SetupInterrupted,
)
from rollbook.guest.http import SERVICE_PORTS, Endpoint
from rollbook.osworld.cache_files import collect, restore, written_by
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.osworld.results import BROKEN_BY_GUEST
from rollbook.osworld.runner import PhaseResult, cache_dir, run_phase
from rollbook.redaction import redact_head

LOG_LIMIT_BYTES = 4 * 2**20

_FILES = TypeAdapter(Files)
_PHASES: dict[str, Literal["setup", "postconfig", "evaluation"]] = {
    "prepare": "setup",
    "postconfig": "postconfig",
    "evaluate": "evaluation",
}

GetEndpoint = Callable[[int], Awaitable[Endpoint]]

CLIENT_PASSWORD = "password"
"""The guest user's password: a public constant of OSWorld's images, not a secret."""


class HttpDriver:
    """A desktop whose guest runs OSWorld's server; `endpoint` returns where one of its ports is reached now."""

    def __init__(self, desktop: DesktopRef, guest: Endpoint, env: EvaluatorEnv | None, endpoint: GetEndpoint) -> None:
        self._endpoint = endpoint
        self._desktop = desktop
        self._client = GuestClient(guest, nonce=desktop.nonce)
        self._env = env

    async def prepare(self, job: Job, note: Note, keep: Keep) -> Files:
        """See `Driver.prepare`."""
        await self._client.check_nonce(self._desktop.nonce)
        await self._probe(job)
        names = written_by(job.task.get("config") or [])
        endpoints = await self._equip(job)
        claim = await claim_phase(self._client, "prepare", job.token)
        if claim.state == "done" and (left := _left(claim.note, names)) is not None:
            return left
        if claim.state != "claimed":
            raise SetupInterrupted("setup began on this desktop before and its end is unknown")
        result, _ = await self._run("prepare", job, endpoints, None, note)
        if self._lost(result) or result.guest_failed:
            # A step whose reply was lost may or may not have happened: the state of this desktop is unknown.
            raise SandboxLost(f"the desktop failed during setup: {_words(result)}")
        if result.status != "ok" or result.value is not True:
            raise SetupFailed(f"setup failed: {_words(result)}")
        return await self._finish("prepare", job, names, keep)

    async def observe(self, *, screen: tuple[int, int], accessibility_tree: bool, terminal: bool) -> RawObservation:
        """See `Driver.observe`."""
        self._client.screen = screen
        return await observe(self._client, a11y=accessibility_tree, terminal=terminal)

    async def perform(
        self, op_id: str, action: str, *, runtime: str, timeout_s: float, first_try: bool = False
    ) -> ActionResult:
        """See `Driver.perform`."""
        return await perform(
            self._client,
            op_id=op_id,
            action=action,
            runtime=runtime_named(runtime),
            timeout_s=timeout_s,
            first_try=first_try,
        )

    async def postconfig(self, job: Job, note: Note, keep: Keep) -> Files:
        """See `Driver.postconfig`."""
        await self._client.check_nonce(self._desktop.nonce)
        steps = job.task["evaluator"].get("postconfig")
        if not steps:
            return {}
        names = written_by(steps)
        endpoints = await self._equip(job)
        claim = await claim_phase(self._client, "postconfig", job.token, first_try=job.first_try)
        if claim.state != "claimed":
            # The agent could have written this claim: it must not skip the postconfig or force a new attempt.
            if job.first_try:
                raise DesktopBroken("postconfig is claimed on this desktop before it ever began: not by us")
            raise EvaluationInterrupted("postconfig began on this desktop before, and its end is unknown")
        result, _ = await self._run("postconfig", job, endpoints, None, note)
        if self._lost(result):
            raise SandboxLost(f"the desktop died during postconfig: {_words(result)}")
        if result.error_type in BROKEN_BY_GUEST:
            raise DesktopBroken(f"postconfig failed: {_words(result)}")
        if result.status != "ok" or result.value is not True:
            raise EvaluatorError(f"postconfig failed: {_words(result)}", guest_failed=result.guest_failed)
        return await self._finish("postconfig", job, names, keep)

    async def evaluate(self, job: Job, terminal_action: TerminalAction | None, note: Note) -> Scored:
        """See `Driver.evaluate`. A score counts only when every exchange with the guest was sound."""
        endpoints = await self._equip(job)
        result, report = await self._run("evaluate", job, endpoints, terminal_action, note)
        assert self._env is not None
        reason, detail = self._trouble(result)
        return Scored(
            score=float(result.value) if reason is None and result.value is not None else None,
            score_type=result.score_type or "",
            reason=reason,
            guest_failed=result.guest_failed,
            detail=detail or result.checks,
            evaluator_revision=self._env.revision,
            numpy=self._env.numpy,
            isolation=result.isolation,
            exchanges=report.exchanges,
            log=report.log,
            duration_s=result.duration_s,
        )

    async def close(self) -> None:
        """See `Driver.close`."""
        await self._client.__aexit__(None, None, None)

    async def _probe(self, job: Job) -> None:
        """Raises SetupFailed when actions cannot run here: else each would fail as if it were the policy's doing."""
        chosen = runtime_named(job.contract.action_runtime)
        if missing := await probe_runtime(self._client, chosen):
            raise SetupFailed(
                f"action_runtime: {chosen.id} needs what this desktop lacks: {'; '.join(missing)}; use another image"
            )

    async def _finish(self, phase: str, job: Job, names: list[str], keep: Keep) -> Files:
        """Keep what the phase left, then record its end with that: a later try of the setup returns the same."""
        files: Files = {}
        if names:
            cache = cache_dir(job.work_dir, job.task["id"])
            files = await keep(await asyncio.to_thread(collect, cache, names))
        await finish_phase(self._client, phase, _FILES.dump_json(files).decode())
        return files

    async def _equip(self, job: Job) -> dict[int, Endpoint]:
        """Prepare this side of a phase. Must precede the claim: without an engine or disk space the phase is
        tried again, and after the claim that would count as interrupted."""
        await asyncio.to_thread(restore, cache_dir(job.work_dir, job.task["id"]), job.files)
        return {port: await self._endpoint(port) for port in SERVICE_PORTS}

    async def _run(
        self,
        phase: Any,
        job: Job,
        endpoints: dict[int, Endpoint],
        terminal_action: TerminalAction | None,
        note: Note,
    ) -> tuple[PhaseResult, PhaseReport]:
        assert self._env is not None, "setup and evaluation run on workers that have the evaluator"
        started_at = datetime.now(UTC)
        result = await run_phase(
            phase,
            task=job.task,
            endpoints=endpoints,
            work_dir=job.work_dir,
            terminal_action=terminal_action,
            screen=job.contract.desktop.screen,
            client_password=CLIENT_PASSWORD,
            timeout_s=job.timeout_s,
            expected_nonce=self._desktop.nonce,
            env=self._env,
            on_progress=lambda: note(phase),
        )
        report = PhaseReport(
            phase=_PHASES[phase],
            ok=result.status == "ok",
            guest_failed=result.guest_failed,
            detail="" if result.status == "ok" else _words(result),
            exchanges=_exchanges(result),
            log=await _log(result),
            started_at=started_at,
            duration_s=result.duration_s,
        )
        job.reports.append(report)
        return result, report

    @staticmethod
    def _lost(result: PhaseResult) -> bool:
        return result.guest_alive_after is False

    def _trouble(self, result: PhaseResult) -> tuple[Infra | None, str]:
        """Return the reason why a result is not a score; (None, "") when it is one."""
        if self._lost(result):
            return Infra.SANDBOX_LOST, f"the desktop died before or during evaluation: {_words(result)}"
        if result.error_type in BROKEN_BY_GUEST:
            return Infra.DESKTOP_BROKEN, _words(result)
        if result.status != "ok" or result.value is None:
            return Infra.EVALUATOR_ERROR, _words(result)
        return None, ""


def _left(note: str, names: list[str]) -> Files | None:
    """Return what a finished phase left, from its note in the guest; None for a note that lacks it."""
    if not names:
        return {}
    try:
        files = _FILES.validate_json(note)
    except ValidationError:
        return None
    return files if files.keys() <= set(names) else None


def _exchanges(result: PhaseResult) -> dict[str, Any]:
    """The exchange record as objects that SQL can ask."""
    failures = [
        {
            name: redact_head(value, 300) if isinstance(value, str) else value
            for name, value in asdict(exchange).items()
            if value not in ("", None)
        }
        for exchange in result.failures[-10:]
    ]
    return {"by_port": {str(port): counts for port, counts in result.exchanges.items()}, "failures": failures}


def _words(result: PhaseResult) -> str:
    """Return the problem in one line."""
    return redact_head(f"{result.error_type or result.status}: {result.error_message}", 1500)


async def _log(result: PhaseResult) -> bytes:
    """The evaluator's own log, cut to what people read."""

    def read() -> bytes:
        with result.log_path.open("rb") as file:
            return file.read(LOG_LIMIT_BYTES)

    try:
        return await asyncio.to_thread(read)
    except OSError:
        return b""


PhaseState = Literal["claimed", "done", "interrupted"]

_MARK = "@@rollbook-phase@@"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class PhaseClaim:
    """The guest's record of a phase."""

    state: PhaseState
    note: str = ""
    """The note of its end. The guest is hostile: it must be checked before it is used."""


async def claim_phase(client: GuestClient, phase: str, token: str, *, first_try: bool = False) -> PhaseClaim:
    """Claim `phase` on this desktop for the try that `token` names; safe to repeat with the same token.

    `claimed`: begin. `done`: it has ended here before. `interrupted`: another try began it, or may have begun it since
    records were removed and this is not the `first_try`. The claim of `prepare` opens the desktop's records. Raises
    SandboxLost.
    """
    answer = await _ask(client, phase, "claim", token=token, first=first_try)
    if answer.get("state") not in ("claimed", "done", "interrupted"):
        raise ActionFailed(f"unexpected answer to the claim of phase {phase}: {redact_head(repr(answer), 200)}")
    return PhaseClaim(answer["state"], str(answer.get("note", "")))


async def finish_phase(client: GuestClient, phase: str, note: str = "") -> None:
    """Record in the guest that `phase` has ended, with a note for a later try."""
    await _ask(client, phase, "finish", note=note)


async def _ask(client: GuestClient, phase: str, verb: str, **request: Any) -> dict[str, Any]:
    command = ["python3", "-c", guest_program("phase", {"phase": phase, "verb": verb, **request})]
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
    raise ActionFailed(f"the guest could not {verb} phase {phase}: {redact_head(result.error or result.output, 500)}")


def _read(text: str) -> dict[str, Any]:
    """The guest's answer; empty for what is none. The guest is hostile."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
