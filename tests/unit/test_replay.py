"""Workflow code replays the histories of finished runs: a change that would break running episodes is found here.

The histories come from batches on real desktops (`python -m tests.record_histories`): one complete, one frozen for a
time, one cancelled; episodes whose first desktop was killed, whose deadline came, that were frozen, cancelled,
infeasible.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from rollbook.temporal.plugin import RollbookPlugin
from worker_main import WORKFLOWS

HISTORIES = sorted((Path(__file__).parent.parent / "histories").glob("*.json"))


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", HISTORIES, ids=[path.stem for path in HISTORIES])
async def test_history_replays(path: Path) -> None:
    stored = _read(path)
    replayer = Replayer(workflows=WORKFLOWS, plugins=[RollbookPlugin()])
    await replayer.replay_workflow(WorkflowHistory.from_json(stored["workflow_id"], stored["history"]))


def test_there_are_histories() -> None:
    assert len(HISTORIES) >= 8


def test_histories_carry_references_not_bytes() -> None:
    for path in HISTORIES:
        for event in _read(path)["history"]["events"]:
            assert len(json.dumps(event)) < 16 * 1024, (path.name, event["eventId"])


def test_histories_belong_to_no_machine() -> None:
    for path in HISTORIES:
        text = path.read_text()
        assert "stackTrace" not in text, path.name
        assert set(re.findall(r'"identity":"([^"]*)"', text)) == {"worker"}, path.name
