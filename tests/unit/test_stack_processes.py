"""Processes are identified by pid and start time: no other process is ever signalled."""

import asyncio
import os
import signal
import subprocess
import sys
import uuid

from rollbook.stack.processes import ProcessRef, kill_group, marked_processes, stop_process, wait_gone

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def _sleeper(**options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(SLEEP, start_new_session=True, **options)  # type: ignore[call-overload, no-any-return]


def _script(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def test_a_reference_ends_with_its_process() -> None:
    process = _sleeper()
    ref = ProcessRef.of(process.pid)
    assert ref is not None
    assert ref.alive()
    _end(process)
    assert not ref.alive()
    assert not ref.signal(signal.SIGTERM)


def test_a_zombie_counts_as_gone() -> None:
    process = _sleeper()
    ref = ProcessRef.of(process.pid)
    assert ref is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, not reaped
    assert not ref.alive()
    assert ProcessRef.of(process.pid) is None
    process.wait()


def test_a_reused_pid_is_left_alone() -> None:
    process = _sleeper()
    ref = ProcessRef.of(process.pid)
    assert ref is not None
    earlier = ref.model_copy(update={"start_s": ref.start_s - 1})
    other_boot = ref.model_copy(update={"boot_id": "another"})
    for stale in (earlier, other_boot):
        assert not stale.alive()
        assert not stale.signal(signal.SIGKILL)
        kill_group(stale)
    assert process.poll() is None
    _end(process)


async def test_stop_escalates_to_sigkill() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('.', flush=True); time.sleep(60)"
    process = _script(code)
    assert process.stdout is not None
    process.stdout.read(1)  # the handler is set
    ref = ProcessRef.of(process.pid)
    assert ref is not None
    await stop_process(ref, grace_s=0.1)
    assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
    process.stdout.close()


async def test_a_group_is_killed_after_its_leader_died() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    leader = _script(code)
    ref = ProcessRef.of(leader.pid)
    assert leader.stdout is not None
    orphan = ProcessRef.of(int(leader.stdout.readline()))
    leader.wait()
    leader.stdout.close()
    assert ref is not None
    assert orphan is not None
    assert orphan.alive()
    kill_group(ref)
    assert await wait_gone(orphan, 5.0)


def test_marked_processes_finds_exactly_the_marked() -> None:
    token = uuid.uuid4().hex
    marked = _sleeper(env={**os.environ, "ROLLBOOK_TEST_TOKEN": token})
    other = _sleeper(env={**os.environ, "ROLLBOOK_TEST_TOKEN": token + "x"})
    found = marked_processes("ROLLBOOK_TEST_TOKEN", token)
    _end(marked)
    _end(other)
    assert [ref.pid for ref in found] == [marked.pid]
