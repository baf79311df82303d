"""The clock of work: it counts what passes while the process runs, and of a stall only a little."""

import time

import pytest

from rollbook.workclock import LONGEST_TICK_S, WorkClock


async def test_a_stall_counts_as_one_long_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    async with WorkClock() as clock:
        now += 2.0
        assert clock.seconds == 2.0
        now += 3600.0  # the process was stopped
        assert clock.seconds == 2.0 + LONGEST_TICK_S
        now += 1.0
    now += 50.0
    assert clock.seconds == 3.0 + LONGEST_TICK_S, "it counts only while it is entered"
