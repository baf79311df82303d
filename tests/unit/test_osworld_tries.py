"""Tries of one phase share nothing on the worker's disk."""

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from temporalio.testing import ActivityEnvironment

from activities.osworld import OsworldActivities
from models.episode import DesktopRef
from rollbook.ledger.records import AttemptContext
from rollbook.worker.services import Services


def test_a_try_finds_nothing_that_a_killed_one_left(tmp_path: Path) -> None:
    """OSWorld's `get_cloud_file` never looks into a file that is there: half a gold file would score an honest 0."""
    services = cast(Services, SimpleNamespace(work_dir=lambda key: tmp_path / key))
    context: Any = {name: None for name in AttemptContext.__slots__} | {"task": {}, "contract": None}
    desktop = DesktopRef(provider="docker", sandbox_id="s", sandbox_key=uuid.uuid4().hex, nonce="n")
    activities = OsworldActivities(services)
    first, second = (
        ActivityEnvironment().run(activities._job, AttemptContext(**context), desktop, 1.0) for _ in range(2)
    )
    assert first.work_dir != second.work_dir
    assert first.work_dir.parent == second.work_dir.parent == tmp_path / desktop.sandbox_key  # removed with the desktop
