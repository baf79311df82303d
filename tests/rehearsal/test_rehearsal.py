"""A small rehearsal; `make rehearsal` plays the whole one."""

from pathlib import Path

import pytest

from models.task import read_task
from tests.rehearsal.play import VICTIMS, Rehearsal
from tests.rehearsal.stage import stage
from tests.support.system import small_tasks

TASKS = 40


@pytest.mark.timeout(900)
async def test_every_name_is_called_once_whoever_is_killed(scratch: Path) -> None:
    directory = scratch / "rehearsal"
    directory.mkdir(mode=0o711)
    tasks = [read_task("os" if number % 2 else "chrome", task) for number, task in enumerate(small_tasks(TASKS))]
    async with stage(directory, "small-rehearsal", print) as ready:
        await Rehearsal(ready, tasks, concurrency=8, patience_s=600).play(kills=3)
        assert set(ready.kills) == set(VICTIMS)
