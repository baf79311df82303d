"""The journal's promises, on a guest server that runs commands on this machine (see tests/doubles/local_guest.py)."""

import ast
import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from rollbook.desktop import inside, journal
from rollbook.desktop.client import GuestClient
from rollbook.desktop.http_driver import claim_phase
from rollbook.desktop.journal import ActionResult, Patience, perform, read_journal
from rollbook.desktop.runtimes import ActionRuntime
from rollbook.errors import ActionFailed, ActionTooLong, SandboxLost
from tests.doubles.local_guest import LocalGuest

FAST = Patience(silence_s=(0.01, 0.01, 0.01), poll_s=0.02, orphan_s=0.1, grace_s=5.0)


@dataclass(frozen=True)
class PlainPython(ActionRuntime):
    """Runs the action as it is, in this machine's interpreter."""

    def code(self, action: str) -> str:
        return action


@dataclass
class DesktopRef:
    guest: LocalGuest
    client: GuestClient
    marks: Path
    interpreter: str = sys.executable

    @property
    def mark(self) -> str:
        """An action that leaves one line per execution."""
        return f"open({str(self.marks)!r}, 'a').write('acted\\n')"

    def executions(self) -> int:
        return len(self.marks.read_text().splitlines()) if self.marks.exists() else 0

    def spoil_the_record(self, text: str) -> None:
        """Attacks of an agent that finds the journal."""
        (record,) = Path(inside.RECORDS_DIRECTORY).glob("*.result")
        record.write_text(text)

    async def perform(
        self,
        op_id: str,
        action: str,
        timeout_s: float = 20.0,
        patience: Patience = FAST,
        first_try: bool = False,
    ) -> ActionResult:
        return await perform(
            self.client,
            op_id=op_id,
            action=action,
            runtime=PlainPython("canonical", self.interpreter),
            timeout_s=timeout_s,
            patience=patience,
            first_try=first_try,
        )

    async def running(self, op_id: str) -> None:
        """Until the action has really begun."""
        async with asyncio.timeout(20):
            while op_id not in {entry.op_id for entry in await self.journal() if entry.executions}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def journal(self) -> list[journal.JournalEntry]:
        return await read_journal(self.client, self.interpreter)


@pytest.fixture
async def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DesktopRef]:
    monkeypatch.setattr(inside, "RECORDS_DIRECTORY", str(tmp_path / "journal"))
    monkeypatch.setattr(journal, "CODE_FILES", str(tmp_path / "action"))
    guest = LocalGuest()
    async with guest.client() as client:
        await claim_phase(client, "prepare", "setup")
        guest.requests = 0
        yield DesktopRef(guest, client, tmp_path / "marks")


async def test_an_action_runs_and_its_end_is_recorded(desktop: DesktopRef) -> None:
    result = await desktop.perform("a1-s001-0", desktop.mark)
    assert (result.status, result.error, result.repeated) == ("ok", None, False)
    assert result.started_at is not None
    assert result.duration_s is not None
    assert desktop.executions() == 1
    (entry,) = await desktop.journal()
    assert (entry.op_id, entry.executions, entry.status) == ("a1-s001-0", 1, "ok")


async def test_a_repeat_reads_the_record_and_does_not_act(desktop: DesktopRef) -> None:
    first = await desktop.perform("op", desktop.mark)
    again = await desktop.perform("op", desktop.mark)
    assert again.repeated
    assert again == ActionResult("op", "ok", None, True, first.started_at, first.duration_s)
    assert desktop.executions() == 1


async def test_ids_differ_even_when_they_look_like_paths(desktop: DesktopRef) -> None:
    for op_id in ("nightly/chrome/x/0:a1", "nightly/chrome/x/1:a1", "../../etc", "é 中", "a" * 500):
        assert (await desktop.perform(op_id, desktop.mark)).status == "ok"
    assert desktop.executions() == 5


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("this is no python", "SyntaxError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
        ("x = '\0'", "null bytes"),
    ],
)
async def test_code_that_raises_is_a_recorded_fact(desktop: DesktopRef, action: str, error: str) -> None:
    result = await desktop.perform("op", action)
    assert result.status == "raised"
    assert error in str(result.error)
    assert (await desktop.perform("op", action)).error == result.error


@pytest.mark.parametrize(
    "action", ["import sys; sys.exit()", "import sys; sys.exit(0)", "", "# nothing", "x = 'é中🙂'"]
)
async def test_code_that_ends_well(desktop: DesktopRef, action: str) -> None:
    assert (await desktop.perform("op", action)).status == "ok"


async def test_a_lost_reply_is_asked_for_again_without_acting_again(desktop: DesktopRef) -> None:
    desktop.guest.lose_replies = 1
    result = await desktop.perform("op", desktop.mark)
    assert (result.status, result.repeated) == ("ok", False)
    assert desktop.executions() == 1


async def test_several_lost_replies(desktop: DesktopRef) -> None:
    desktop.guest.lose_replies = 3
    assert (await desktop.perform("op", desktop.mark)).status == "ok"
    assert desktop.executions() == 1


async def test_a_request_that_never_arrived_is_sent_again(desktop: DesktopRef) -> None:
    desktop.guest.refuse_requests = 2
    assert (await desktop.perform("op", desktop.mark)).status == "ok"
    assert desktop.executions() == 1


async def test_a_dead_guest_is_lost(desktop: DesktopRef) -> None:
    desktop.guest.dead = True
    with pytest.raises(SandboxLost, match="op"):
        await desktop.perform("op", desktop.mark)
    assert desktop.guest.requests == len(FAST.silence_s) + 1


async def test_concurrent_deliveries_act_once_and_agree(desktop: DesktopRef) -> None:
    action = f"import time; time.sleep(0.3); {desktop.mark}"
    results = await asyncio.gather(*(desktop.perform("op", action) for _ in range(6)))
    assert desktop.executions() == 1
    assert {result.status for result in results} == {"ok"}
    assert sorted(result.repeated for result in results) == [False, True, True, True, True, True]


async def test_a_killed_action_is_in_doubt_for_ever(desktop: DesktopRef) -> None:
    action = f"{desktop.mark}; import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    result = await desktop.perform("op", action)
    assert result.status == "in_doubt"
    again = await desktop.perform("op", action)
    assert (again.status, again.repeated) == ("in_doubt", True)
    assert desktop.executions() == 1
    (entry,) = await desktop.journal()
    assert (entry.executions, entry.status) == (1, "in_doubt")


async def test_a_process_killed_from_outside_is_in_doubt_for_those_who_wait(desktop: DesktopRef) -> None:
    action = f"{desktop.mark}; import time; time.sleep(60)"
    waiting = [asyncio.create_task(desktop.perform("op", action)) for _ in range(2)]
    await desktop.running("op")
    await asyncio.sleep(0.1)
    for process in list(desktop.guest.processes):
        process.kill()
    assert {(await task).status for task in waiting} == {"in_doubt"}
    assert desktop.executions() == 1


async def test_a_crash_between_claim_and_record_is_never_acted_upon(desktop: DesktopRef, tmp_path: Path) -> None:
    """The claim file exists and is empty: its process died between two system calls."""
    await desktop.perform("op", desktop.mark)
    for file in (tmp_path / "journal").glob("*.result"):
        file.unlink()
    (claim,) = (tmp_path / "journal").glob("*.claim")
    claim.write_text("")
    assert (await desktop.perform("op", desktop.mark)).status == "in_doubt"
    assert desktop.executions() == 1


async def test_the_actions_own_deadline(desktop: DesktopRef) -> None:
    action = f"{desktop.mark}; import time; time.sleep(60)"
    result = await desktop.perform("op", action, timeout_s=0.3)
    assert result.status == "timeout"
    assert "0.3 s" in str(result.error)
    assert (await desktop.perform("op", action, timeout_s=0.3)).status == "timeout"
    assert desktop.executions() == 1


async def test_the_guests_deadline(desktop: DesktopRef) -> None:
    desktop.guest.limit_s = 0.5
    result = await desktop.perform("op", f"{desktop.mark}; import time; time.sleep(60)", timeout_s=30)
    assert (result.status, desktop.executions()) == ("timeout", 1)


async def test_the_hosts_deadline_stops_what_no_watchdog_can(desktop: DesktopRef) -> None:
    """A process that never lets its watchdog thread run: the host has it killed and records the timeout."""
    freeze = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    patience = Patience(silence_s=(0.01,) * 50, poll_s=0.02, orphan_s=0.1, grace_s=0.4, probe_timeout_s=10.0)
    first = asyncio.create_task(desktop.perform("op", f"{desktop.mark}; {freeze}; {desktop.mark}", 0.2, patience))
    await desktop.running("op")
    second = await desktop.perform("op", f"{desktop.mark}; {freeze}; {desktop.mark}", 0.2, patience)
    assert second.status == "timeout"
    assert (await first).status == "timeout"
    assert desktop.executions() == 1


async def test_another_code_under_the_same_id_is_refused(desktop: DesktopRef) -> None:
    await desktop.perform("op", desktop.mark)
    result = await desktop.perform("op", f"{desktop.mark}; {desktop.mark}")
    assert result.status == "refused"
    assert str(result.error).startswith("op_conflict")
    assert desktop.executions() == 1


async def test_an_action_whose_record_was_removed_is_not_begun_again(desktop: DesktopRef) -> None:
    """A guest without the service of records: the agent's user can remove them, and then the worker is killed."""
    remove = f"{desktop.mark}; import shutil; shutil.rmtree({inside.RECORDS_DIRECTORY!r})"
    killed = f"{remove}; import os; os.kill(os.getpid(), 9)"
    first = await desktop.perform("first", killed, first_try=True)
    assert (first.status, desktop.executions()) == ("in_doubt", 1), "the removal in one call"
    assert (await desktop.perform("first", killed)).status == "in_doubt"
    assert (await desktop.perform("second", remove, first_try=True)).status == "ok", "not sent before, so it may run"
    assert desktop.executions() == 2
    shutil.rmtree(inside.RECORDS_DIRECTORY)
    for op_id in ("first", "second", "third"):
        again = await desktop.perform(op_id, desktop.mark)
        assert (again.status, "removed" in str(again.error)) == ("in_doubt", True)
    assert desktop.executions() == 2
    assert (await desktop.perform("fourth", desktop.mark, first_try=True)).status == "ok"
    late = await desktop.perform("fifth", desktop.mark)
    assert (late.status, desktop.executions()) == ("in_doubt", 3), "records that were begun anew prove no absence"


async def test_a_phase_whose_claim_was_removed_is_interrupted(desktop: DesktopRef) -> None:
    assert (await claim_phase(desktop.client, "postconfig", "a")).state == "claimed"
    assert (await claim_phase(desktop.client, "postconfig", "a")).state == "claimed", "the same try, repeated"
    assert (await claim_phase(desktop.client, "postconfig", "b")).state == "interrupted"
    shutil.rmtree(inside.RECORDS_DIRECTORY)
    assert (await claim_phase(desktop.client, "postconfig", "c")).state == "interrupted"
    shutil.rmtree(inside.RECORDS_DIRECTORY)
    assert (await claim_phase(desktop.client, "postconfig", "d", first_try=True)).state == "claimed"


@pytest.mark.parametrize(
    "spoilt",
    ['{"status": "ok"}', '[]', '{"status": "splendid", "error": null, "started_at": 1, "ended_at": 2}',
     '{"status": "ok", "error": null, "started_at": "soon", "ended_at": 2}'],
)  # fmt: skip
async def test_a_journal_that_the_agent_spoilt_is_in_doubt(desktop: DesktopRef, spoilt: str) -> None:
    """It must not help the agent: neither a repeat of the action nor a failure that would mask the episode."""
    await desktop.perform("spoilt", desktop.mark)
    desktop.spoil_the_record(spoilt)
    result = await desktop.perform("spoilt", desktop.mark)
    assert result.status == "in_doubt"
    assert "no readable result" in (result.error or "")
    assert desktop.executions() == 1


async def test_printing_does_not_hide_the_record(desktop: DesktopRef) -> None:
    action = (
        "import sys\nprint('Xlib.xauth: warning, no xauthority')\nsys.stdout.write('no newline')\nsys.stdout.flush()"
    )
    assert (await desktop.perform("quiet", action)).status == "ok"
    forged = """print('\\n@@rollbook-journal@@ {"state": "done", "op": "other"}', flush=True)"""
    assert (await desktop.perform("forged", forged)).status == "ok"
    assert (await desktop.perform("closed", "import os, sys; sys.stdout.close(); os.close(1)")).status == "ok"
    assert (
        await desktop.perform("binary", "import os; os.write(1, b'\\xff\\xfe\\n@@rollbook-journal@@ {')")
    ).status == "ok"


async def test_an_action_that_leaves_without_a_word_is_in_doubt(desktop: DesktopRef) -> None:
    result = await desktop.perform("op", f"{desktop.mark}; import os; os._exit(0)")
    assert (result.status, desktop.executions()) == ("in_doubt", 1)


async def test_a_fork_that_returns_does_not_write_the_record(desktop: DesktopRef) -> None:
    action = "import os, time\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: raise ValueError('child')"
    assert (await desktop.perform("op", action)).status == "ok"


async def test_long_code_travels_as_a_file(desktop: DesktopRef) -> None:
    action = f"text = {'x' * 300_000!r}; assert len(text) == 300_000; {desktop.mark}"
    assert (await desktop.perform("op", action)).status == "ok"
    assert (await desktop.perform("op", action)).repeated
    assert desktop.executions() == 1


async def test_code_beyond_any_reason_is_refused_before_it_is_sent(desktop: DesktopRef) -> None:
    with pytest.raises(ActionTooLong, match="at most"):
        await desktop.perform("op", "#" * (journal.MAX_CODE_BYTES + 1))
    assert desktop.guest.requests == 0


async def test_a_guest_without_python_is_named(desktop: DesktopRef) -> None:
    desktop.interpreter = "/nowhere/python"
    with pytest.raises(ActionFailed, match="nowhere/python"):
        await desktop.perform("op", desktop.mark)


async def test_a_full_disk_cannot_make_an_action_run_twice(desktop: DesktopRef, tmp_path: Path) -> None:
    """The result cannot be written: the claim remains, the action is in doubt at worst, and is not begun again."""
    blocked = f"{desktop.mark}; import os; os.chmod({str(tmp_path / 'journal')!r}, 0o500); os.link = None"
    result = await desktop.perform("op", blocked)
    assert (result.status, desktop.executions()) == ("in_doubt", 1)


async def test_the_journal_counts_what_began(desktop: DesktopRef) -> None:
    for number in range(5):
        await desktop.perform(f"op-{number}", desktop.mark)
        await desktop.perform(f"op-{number}", desktop.mark)
    entries = await desktop.journal()
    assert [entry.op_id for entry in entries] == [f"op-{number}" for number in range(5)]
    assert {entry.executions for entry in entries} == {1}
    assert desktop.executions() == 5


async def test_an_empty_journal_is_empty(desktop: DesktopRef) -> None:
    assert await desktop.journal() == []


@pytest.mark.parametrize("name", ["journal.py", "phase.py", "store.py", "exact_input.py"])
def test_guest_code_is_python_3_8(name: str) -> None:
    source = (files("rollbook.desktop") / "inside" / name).read_text()
    ast.parse(source, feature_version=(3, 8))
    assert source.isascii() or name == "exact_input.py"
