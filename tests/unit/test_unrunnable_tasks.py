"""Tasks that a batch cannot run: from the image's manifest and from what the task set knows of the evaluator."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from activities.ledger import LedgerActivities
from models.contract import Resolved
from models.task import Task, read_task
from rollbook.worker.services import Services

SLIM = json.dumps({"schema_version": 1, "programs": ["gedit", "sh"], "modules": []})
RESOLVED = Resolved(desktop_image="slim:1", desktop_digest="sha256:1", evaluator_revision="r")


class Images:
    """The ledger's record of one image."""

    def __init__(self, manifest: str | None) -> None:
        self._manifest = manifest

    async def image_manifest(self, digest: str) -> str | None:
        assert digest == "sha256:1"
        return self._manifest


def task(task_id: str, *related: str, **changes: Any) -> Task:
    document = {"id": task_id, "instruction": "x", "evaluator": {"func": "infeasible"}, "related_apps": list(related)}
    return read_task("os", document).model_copy(update=changes)


TASKS = [task("plain", "gedit"), task("web", "chrome"), task("new", unscorable="no metric 'x'")]


async def unrunnable(manifest: str | None, resolved: Resolved = RESOLVED) -> tuple[dict[str, str], str]:
    services = SimpleNamespace(ledger=Images(manifest))
    return await LedgerActivities(cast("Services", services))._unrunnable(resolved, TASKS)


async def test_a_task_without_its_application_cannot_run() -> None:
    reasons, notice = await unrunnable(SLIM)
    assert reasons == {"web": "the image lacks chrome (related_apps)", "new": "the evaluator: no metric 'x'"}
    assert notice == ""


@pytest.mark.parametrize("manifest", [None, "", "{", '{"schema_version": 1}'])
async def test_an_image_without_a_manifest_is_accepted_with_a_notice(manifest: str | None) -> None:
    reasons, notice = await unrunnable(manifest)
    assert reasons.keys() == {"new"}
    assert "slim:1 has no manifest" in notice


async def test_a_rehearsal_plans_everything() -> None:
    assert await unrunnable(None, Resolved(evaluator_revision="null", null_desktop=True)) == ({}, "")
