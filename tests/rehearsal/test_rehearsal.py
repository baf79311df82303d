"""A small rehearsal; `make rehearsal` plays the whole one."""

from pathlib import Path

import pytest

from models.task import read_task
from tests.rehearsal.play import VICTIMS, Rehearsal
from tests.support.system import small_tasks
from tests.support.world import killable_world

TASKS = 40


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_name_is_called_once_whoever_is_killed(scratch: Path) -> None:
    tasks = [read_task("os" if i % 2 else "chrome", task) for i, task in enumerate(small_tasks(TASKS))]
    async with killable_world(scratch / "rehearsal", "small-rehearsal") as world:
        await Rehearsal(world, tasks, print, concurrency=8, patience_s=600).play(kills=3)
        assert set(world.kills) == set(VICTIMS)
