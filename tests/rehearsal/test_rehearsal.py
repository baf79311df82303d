"""A small rehearsal; `make rehearsal` plays the whole one."""

from pathlib import Path

import pytest

from models.task import read_task
from tests.rehearsal.play import VICTIMS, Rehearsal
from tests.support.system import small_tasks
from tests.support.world import killable_world


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [12, pytest.param(40, marks=pytest.mark.slow)])
async def test_every_name_is_called_once_whoever_is_killed(scratch: Path, number: int) -> None:
    tasks = [read_task("os" if i % 2 else "chrome", task) for i, task in enumerate(small_tasks(number))]
    async with killable_world(scratch / f"rehearsal-{number}", f"rehearsal-{number}") as world:
        await Rehearsal(world, tasks, print, concurrency=8, patience_s=600).play(kills=3)
        assert set(world.kills) == set(VICTIMS)
