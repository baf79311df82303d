"""Runs one phase of OSWorld's own setup or evaluation against a desktop, in a process that can be killed.

The evaluator executes content that the guest controls, has no timeouts of its own, and takes a guest it cannot reach
for a score of 0. Hence: a process group of its own, locked in as far as the machine allows; all traffic through the
recording forwarder; and a verdict from the recorded exchanges before the evaluator's result counts.
"""

import asyncio
import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self
from uuid import uuid4

import psutil

from rollbook.config.osworld import evaluator_settings
from rollbook.errors import InvalidInput, SandboxLost
from rollbook.guest.exchanges import Exchange, ExchangeLog, Outcome
from rollbook.guest.forwarder import Forwarder
from rollbook.guest.http import CHROMIUM_PORT, GUEST_PORT, VLC_PORT, Control, Endpoint, control_exchange, read_nonce
from rollbook.osworld.cache_files import missing_downloads, read_regular
from rollbook.osworld.environment import EvaluatorEnv
from rollbook.osworld.fetcher import DownloadFailed, fetch_all
from rollbook.osworld.isolation import Directories, Isolation, choose_isolation
from rollbook.osworld.results import ChildRun, GuestCheck, Phase, PhaseResult, Verdict, interpret_results
from rollbook.redaction import SECRETS, redact_bytes, redact_head, redact_tail

__all__ = ["PhaseResult", "cache_dir", "run_phase"]

PORTS = {"server": GUEST_PORT, "chromium": CHROMIUM_PORT, "vlc": VLC_PORT}
"""Guest ports that OSWorld's setup and evaluation use."""

TICK_S = 0.5
PROBE_TIMEOUT_S = 10.0
RESULT_LIMIT = 2**20
FAILURES_KEPT = 50

IDLE_TIMEOUT_S: dict[Phase, float] = {"prepare": 1830.0, "postconfig": 1830.0, "evaluate": 300.0}
"""Seconds without a byte from the guest before an exchange counts as timed out. A guest may take 1,800 s for `open`
and 120 s for a command."""

FILE_IDLE_TIMEOUT_S = 60.0
"""The same for a file: it is there, or it cannot be read."""


MARKER = "ROLLBOOK_EVALUATOR_RUN"
"""Environment variable by which a stray descendant is found again, whatever session it made for itself."""

TERM_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of `run_phase`."""

    phase: Phase
    task: dict[str, Any]
    endpoints: Mapping[int, Endpoint]
    work_dir: Path
    terminal_action: str | None
    screen: tuple[int, int]
    client_password: str
    timeout_s: float
    env: EvaluatorEnv
    on_progress: Callable[[], None] | None


class KillableProcess:
    """Runs while entered; leaving kills what is left, also on cancellation."""

    def __init__(
        self, command: Sequence[str], *, stdin: bytes, log: BinaryIO, cwd: Path, env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._command = list(command)
        self._stdin = stdin
        self._log = log
        self._cwd = cwd
        self._marker = uuid4().hex
        self._env = {**env, MARKER: self._marker}
        self._pass_fds = pass_fds

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=self._log, stderr=self._log, cwd=self._cwd,
            env=self._env, start_new_session=True, pass_fds=self._pass_fds,
        )  # fmt: skip
        self._feeding = asyncio.create_task(self._feed())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = asyncio.create_task(self.kill())
        await asyncio.shield(self._ending)  # a second cancellation does not leave it half killed

    async def wait(self) -> int:
        """The exit code, once the process has ended. Negative: the signal that ended it."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End the process group, politely for two seconds, then what else carries our marker."""
        self._feeding.cancel()
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), TERM_GRACE_S)
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        await asyncio.to_thread(_kill_marked, self._marker)

    def resident_bytes(self) -> int:
        """Memory that the process and its descendants hold now."""
        total = 0
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            for process in (parent, *parent.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # it may have ended since the listing
                    total += process.memory_info().rss
        return total

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:  # not reaped yet: the group is still ours
            os.killpg(self._process.pid, number)

    async def _feed(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(self._stdin)
            await pipe.drain()
            pipe.close()
        except ConnectionError:
            pass  # it ended before it read its request: its exit code says so


def _kill_marked(marker: str) -> None:
    """Kill what still carries the marker; twice over, since a fork may run ahead of the first look."""
    needle = f"{MARKER}={marker}".encode()
    for _ in range(20):
        found = [pid for pid in _pids() if needle in _environment(pid)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def cache_dir(work_dir: Path, task_id: str) -> Path:
    """OSWorld's cache directory of the task in an attempt's work directory. Seed it with copies, never with links."""
    return work_dir / "cache" / task_id


async def run_phase(
    phase: Phase,
    *,
    task: dict[str, Any],
    endpoints: Mapping[int, Endpoint],
    work_dir: Path,
    terminal_action: str | None,
    screen: tuple[int, int],
    client_password: str,
    timeout_s: float,
    expected_nonce: str | None,
    env: EvaluatorEnv,
    on_progress: Callable[[], None] | None = None,
) -> PhaseResult:
    """Run `prepare` (the task's config), `postconfig`, or `evaluate` (without postconfig) and return its result.

    `endpoints` maps guest ports (5000; 9222 and 8080 where the guest has them) to where they are reached; `work_dir`
    belongs to one attempt; `on_progress` is called about twice a second. Failures of guest, task and evaluator are
    results. Raises InvalidInput for arguments that cannot be right and ConfigError for a missing isolation.
    Cancelling kills the evaluator before CancelledError goes on.
    """
    job = _Job(
        phase,
        task,
        endpoints,
        _absolute(work_dir),
        terminal_action,
        screen,
        client_password,
        timeout_s,
        env,
        on_progress,
    )
    _validate(job)
    SECRETS.add(client_password)
    started = time.monotonic()
    cache = cache_dir(job.work_dir, task["id"])
    log, run, isolation = ExchangeLog(), ChildRun("aborted", None, None), Isolation("none", "never started")
    downloads = await asyncio.to_thread(missing_downloads, task, phase, cache)
    unfetched = ""
    guest = await _probe(job, expected_nonce)
    if guest.same:
        try:
            await fetch_all(downloads, cache, on_progress or (lambda: None))
        except DownloadFailed as error:
            unfetched = str(error)
    if not guest.same or unfetched:
        await asyncio.to_thread(_make_directories, job)
    else:
        isolation = await choose_isolation(env)
        await asyncio.to_thread(_make_directories, job, isolation.owner)
        run, log = await _run_child(job, isolation, guest)
        guest = await _probe(job, guest.expected)
    await asyncio.to_thread(tidy_log, _log_path(job))
    verdict = interpret_results(phase, run, log, guest)
    if unfetched and not verdict.guest_failed:
        verdict = Verdict("failed", error_type=DownloadFailed.__name__, error_message=unfetched)
    urls = tuple(download.url for download in downloads)
    return _report(job, run, log, guest, isolation, verdict, urls, time.monotonic() - started)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def _validate(job: _Job) -> None:
    if GUEST_PORT not in job.endpoints:
        raise InvalidInput(f"endpoints: port {GUEST_PORT} is missing")
    if job.terminal_action not in (None, "DONE", "FAIL"):
        raise InvalidInput(f"terminal_action: {job.terminal_action!r} is none of DONE, FAIL, None")
    for key in ("id", "instruction", "evaluator"):
        if key not in job.task:
            raise InvalidInput(f"task.{key} is missing")
    if Path(str(job.task["id"])).name != job.task["id"]:
        raise InvalidInput(f"task.id: {job.task['id']!r} must be a plain name (no slash)")


async def _probe(job: _Job, expected: str | None) -> GuestCheck:
    """Read the guest's identity; once more after a failure, since one packet may be lost."""
    error = ""
    for _ in range(2):
        try:
            nonce = await read_nonce(job.endpoints[GUEST_PORT], PROBE_TIMEOUT_S)
            return GuestCheck(expected if expected is not None else nonce, nonce)
        except SandboxLost as lost:
            error = str(lost)
            await asyncio.sleep(0.2)
    return GuestCheck(expected, None, error)


SOCKETS_KEY = 12
"""Digits of a desktop's key in the name of its directory of sockets, after `sockets_prefix`."""


def sockets_prefix(work_root: Path) -> str:
    """Begin of the names of the socket directories that belong to the attempts below `work_root`.

    They lie in the temporary directory, which others use as well: the path of a socket may have 107 bytes only.
    """
    return f"rollbook-{hashlib.sha256(str(work_root).encode()).hexdigest()[:12]}-"


async def _run_child(job: _Job, isolation: Isolation, guest: GuestCheck) -> tuple[ChildRun, ExchangeLog]:
    suspicion = asyncio.Event()

    def on_exchange(exchange: Exchange) -> None:
        if exchange.port == GUEST_PORT and exchange.delivery_failed and exchange.outcome is not Outcome.ABANDONED:
            suspicion.set()  # whatever the evaluator makes of it, it will not count: no need to wait for it

    async def control(path: str) -> Control:
        return await control_exchange(job.endpoints[GUEST_PORT], path, guest.expected or "")

    prefix = sockets_prefix(job.work_dir.parent.parent) + f"{job.work_dir.parent.name[:SOCKETS_KEY]}-"
    with tempfile.TemporaryDirectory(prefix=prefix) as sockets, _exchange_path(job).open("w") as lines:
        log = ExchangeLog(file=lines)
        public = Path(sockets) / "s"  # readable inside the isolation; its parent keeps everybody else out
        public.mkdir(mode=0o755)
        async with Forwarder(
            {port: job.endpoints[port] for port in PORTS.values() if port in job.endpoints},
            log=log,
            socket_dir=public if isolation.bridged else None,
            idle_timeout_s=IDLE_TIMEOUT_S[job.phase],
            file_idle_timeout_s=FILE_IDLE_TIMEOUT_S,
            on_exchange=on_exchange,
            control=control if job.phase == "evaluate" and guest.expected else None,
        ) as forwarder:
            directories = Directories(
                job.work_dir, job.work_dir / "cache", job.work_dir / "home", job.work_dir / "out", public
            )
            request = _request(job, isolation, directories, forwarder)
            with _log_path(job).open("wb") as output:
                child = KillableProcess(
                    isolation.command(job.env, directories), stdin=json.dumps(request).encode(), log=output,
                    cwd=directories.home, env=isolation.environment(directories),
                )  # fmt: skip
                async with child:
                    ended, code = await _watch(job, child, suspicion)
                    await forwarder.settle()
                    log.close()
        answer = await asyncio.to_thread(_read_answer, directories.out / "result.json") if ended == "exited" else None
        return ChildRun(ended, code, answer if code == 0 else None), log


async def _watch(job: _Job, child: KillableProcess, suspicion: asyncio.Event) -> tuple[Any, int | None]:
    deadline, memory_bytes = time.monotonic() + job.timeout_s, evaluator_settings().evaluator_memory_bytes
    exited = asyncio.create_task(child.wait())
    suspected = asyncio.create_task(suspicion.wait())
    try:
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.wait({exited, suspected}, timeout=min(TICK_S, left), return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                return "exited", exited.result()
            if suspected.done():
                return "aborted", None
            if child.resident_bytes() > memory_bytes:
                return "memory", None
            if job.on_progress is not None:
                job.on_progress()
        return "timeout", None
    finally:
        exited.cancel()
        suspected.cancel()


def _request(job: _Job, isolation: Isolation, directories: Directories, forwarder: Forwarder) -> dict[str, Any]:
    inside = isolation.inside(directories)
    if isolation.bridged:
        ports = dict(PORTS)
        bridge = {port: str(inside.sockets / f"{port}.sock") for port in forwarder.sockets}
    else:
        # Port 1 is what a guest port that the provider does not offer looks like: closed.
        ports = {name: forwarder.ports.get(port, 1) for name, port in PORTS.items()}
        bridge = {}
    return {
        "phase": job.phase,
        "task": job.task,
        "host": "127.0.0.1",
        "ports": ports,
        "bridge": bridge,
        "cache_dir": str(inside.cache),
        "result_path": str(inside.out / "result.json"),
        "terminal_action": job.terminal_action,
        "screen": list(job.screen),
        "client_password": job.client_password,
        "drop_root": isolation.drop_root,
        "parent_pid": None if isolation.kind == "bwrap" else os.getpid(),
        "limits": {
            "memory_bytes": 4 * evaluator_settings().evaluator_memory_bytes,
            "cpu_s": int(job.timeout_s) + 60,
            "file_bytes": 2 * 2**30,
        },
    }


def _make_directories(job: _Job, owner: int | None = None) -> None:
    (job.work_dir / "out" / "result.json").unlink(missing_ok=True)
    directories = [cache_dir(job.work_dir, job.task["id"]), *(job.work_dir / name for name in ("cache", "home", "out"))]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    for record in (_log_path(job), _exchange_path(job)):
        record.write_bytes(b"")
    if owner is not None:
        for root in ("cache", "home", "out"):
            for path, _, names in os.walk(job.work_dir / root):
                for name in (path, *(os.path.join(path, name) for name in names)):
                    os.chown(name, owner, owner, follow_symlinks=False)


def _read_answer(path: Path) -> dict[str, Any] | None:
    """The child's JSON."""
    data = read_regular(path, RESULT_LIMIT)
    if data is None:
        return None
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _log_path(job: _Job) -> Path:
    return job.work_dir / f"{job.phase}.log"


def _exchange_path(job: _Job) -> Path:
    return job.work_dir / f"{job.phase}-exchanges.jsonl"


def _report(
    job: _Job,
    run: ChildRun,
    log: ExchangeLog,
    guest: GuestCheck,
    isolation: Isolation,
    verdict: Verdict,
    downloads: tuple[str, ...],
    took_s: float,
) -> PhaseResult:
    answer = run.answer or {}
    return PhaseResult(
        phase=job.phase,
        status=verdict.status,
        value=verdict.value,
        checks=redact_head(str(answer.get("checks", "")), MESSAGE_LIMIT),
        score_type=answer.get("score_type"),
        error_type=verdict.error_type,
        error_message=redact_head(verdict.error_message, MESSAGE_LIMIT),
        traceback=redact_tail(str(answer.get("traceback", "")), TRACEBACK_LIMIT),
        guest_failed=verdict.guest_failed,
        guest_alive_after=guest.same,
        nonce=guest.expected,
        exchanges=log.by_port(),
        failures=tuple(log.failures)[-FAILURES_KEPT:],
        log_path=_log_path(job),
        exchange_log_path=_exchange_path(job),
        duration_s=took_s,
        isolation=isolation.kind,
        isolation_reason=isolation.reason,
        evaluator_revision=job.env.revision,
        numpy=job.env.numpy,
        downloads=downloads,
    )


LOG_LIMIT = 4 * 2**20
"""Bytes of a log that are kept: its first and its last half."""

_SEAM = 2**12
"""Bytes dropped at a cut after redaction: the part of a secret that the cut left there is shorter."""

MESSAGE_LIMIT = 4000
TRACEBACK_LIMIT = 8000


def tidy_log(path: Path) -> None:
    """Remove secrets from a log, and the middle from an oversized one. The file need not exist."""
    path.touch()
    size = path.stat().st_size
    if size <= LOG_LIMIT:
        path.write_text(redact_bytes(path.read_bytes()).decode(errors="replace"))
        return
    half = LOG_LIMIT // 2
    with path.open("rb") as file:
        first = redact_bytes(file.read(half))[:-_SEAM]
        file.seek(size - half)
        last = redact_bytes(file.read(half))[_SEAM:]
    data = first + f"\n[{size - LOG_LIMIT + 2 * _SEAM} bytes left out]\n".encode() + last
    path.write_text(data.decode(errors="replace"))
