"""Starts that cannot succeed, and starts whose try was given up: real Temporal, real ledger, the real engine."""

import asyncio
import dataclasses
import io
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import docker
import pytest
from sqlalchemy import text
from temporalio import activity, workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from activities.sandbox import SandboxActivities
from models.episode import AttemptRef
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import ImageInfo
from rollbook.worker.services import Services
from tests.support.system import NO_PAUSES, System, running_system, small_tasks, system_settings
from worker_main import make_worker, queues

NO_IMAGE = "127.0.0.1:9/rollbook/typo:1"
"""No server listens there: a pull is refused immediately."""


class Hasty(DockerProvider):
    """Finds every image at registration, as if it were removed afterwards; does not wait a minute for its return."""

    async def inspect_image(self, image: str) -> ImageInfo:
        return ImageInfo(image)


@pytest.fixture
async def system(
    scratch: Path, database_url: str, temporal_address: str, deployment_id: str, docker_client: docker.DockerClient
) -> AsyncIterator[System]:
    """Without a worker."""
    directory = scratch / f"start-{uuid.uuid4().hex[:6]}"
    settings = system_settings(directory, database_url, f"{deployment_id}-start")
    async with running_system(settings, temporal_address, workers=False) as system:
        await system.register_tasks("one", small_tasks(1))
        yield system


async def _run(system: System, services: Services, spec: dict[str, Any], batch_id: str) -> Any:
    ((queue, work),) = queues("all", services, system.client).items()
    async with make_worker(system.client, queue, work, system.settings):
        return await system.run_batch(spec, batch_id)


def _spec(**desktop: Any) -> dict[str, Any]:
    return {"task_set": "one", "policy": {"kind": "noop"}, "desktop": desktop, "max_attempts": 2}


async def test_a_batch_whose_image_is_nowhere_is_refused(system: System) -> None:
    with pytest.raises(WorkflowFailureError) as refused:
        await _run(system, system.services, _spec(image=NO_IMAGE), "typo")
    message = str(refused.value.cause)
    assert f"desktop.image: '{NO_IMAGE}' is not on the Docker host and could not be pulled (" in message
    async with system.ledger.engine.connect() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM rollout"))).scalar_one() == 0


async def test_the_image_of_a_setting_is_named_by_it(system: System) -> None:
    settings = system.settings.model_copy(update={"desktop_image": NO_IMAGE})
    with pytest.raises(WorkflowFailureError) as refused:
        await _run(system, dataclasses.replace(system.services, settings=settings), _spec(), "setting")
    assert f"ROLLBOOK_DESKTOP_IMAGE: '{NO_IMAGE}' is not on the Docker host" in str(refused.value.cause)


async def test_an_image_that_is_removed_later_ends_the_attempts_with_its_name(system: System) -> None:
    provider = Hasty(system.settings.deployment_id, max_desktops=2, quiet_s=0.1, image_wait_s=0.5)
    services = dataclasses.replace(system.services, providers={"docker": provider})
    async with asyncio.timeout(120):
        result = await _run(system, services, _spec(image=NO_IMAGE), "removed")
    assert (result.counts.masked, result.counts.admitted) == (1, 0)
    async with system.ledger.engine.connect() as connection:
        rows = (await connection.execute(text("SELECT termination_reason, detail FROM outcome"))).all()
    assert [reason for reason, _ in rows] == ["sandbox_start_failed"] * 2, "the budget ends it"
    assert all(f"desktop.image: '{NO_IMAGE}' is not on the Docker host" in detail for _, detail in rows)
    await provider.close()


async def test_a_tag_that_moves_changes_nothing_of_a_batch(
    system: System, docker_client: docker.DockerClient, desktop_image: str
) -> None:
    """Desktops are started by the digest of registration, and a relaunch under the moved tag is refused."""
    name = f"rollbook-test/moved:{uuid.uuid4().hex[:8]}"
    docker_client.images.get(desktop_image).tag(name)
    digest = str(docker_client.images.get(name).id)
    spec = _spec(image=name) | {"concurrency": 1, "samples": 2, "settle": NO_PAUSES}
    ((queue, work),) = queues("all", system.services, system.client).items()
    query = text("SELECT image_digest FROM sandbox WHERE image_digest IS NOT NULL")
    async with make_worker(system.client, queue, work, system.settings), asyncio.timeout(300):
        handle = await system.start_batch(spec, "moved")
        async with system.ledger.engine.connect() as connection:
            while not (await connection.execute(query)).all():
                await asyncio.sleep(0.1)
                await connection.rollback()
        other, _ = docker_client.images.build(
            fileobj=io.BytesIO(f"FROM {digest}\nLABEL another=image\n".encode()), tag=name, rm=True
        )
        assert other.id != digest
        result = await handle.result()
        with pytest.raises(WorkflowFailureError) as refused:
            await system.run_batch(spec, "moved")
    docker_client.images.remove(name, force=True)
    assert (result.counts.admitted, result.counts.masked) == (2, 0)
    assert "resolved.desktop_digest: " in str(refused.value.cause)
    async with system.ledger.engine.connect() as connection:
        assert [row.image_digest for row in await connection.execute(query)] == [digest, digest]
        found = await connection.execute(
            text("SELECT name, manifest FROM image WHERE digest = :digest"), {"digest": digest}
        )
        ((recorded, manifest),) = found.all()
    assert recorded == name
    assert "gedit" in manifest["programs"]
    assert (await system.audit("moved")).ok


@workflow.defn(sandboxed=False)
class Started:
    """One activity that Temporal gives up after a second, and tries again."""

    @workflow.run
    async def run(self) -> bool:
        answer: bool = await workflow.execute_activity(
            "start_again",
            result_type=bool,
            start_to_close_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
        )
        return answer


async def test_a_try_that_stalled_removes_nothing(system: System) -> None:
    """It wakes up when the next try of its start waits for the same desktop, and Temporal has not reported it yet."""
    sandboxes, answers = SandboxActivities(system.services), dict[tuple[int, str], bool]()
    nobody, next_one = AttemptRef(rollout_key="b/os/nobody/0", attempt_index=1), asyncio.Event()
    asked = asyncio.Event()

    @activity.defn(name="start_again")
    async def start_again() -> bool:
        number = activity.info().attempt
        if number == 1:
            answers[1, "in time"] = await sandboxes._ours(nobody)
            await next_one.wait()
            answers[1, "late"] = await sandboxes._ours(nobody)
            asked.set()
        else:
            next_one.set()
            await asyncio.wait_for(asked.wait(), 0.8)
            answers[number, "in time"] = await sandboxes._ours(nobody)
        return True

    queue = f"q-{uuid.uuid4().hex}"
    async with Worker(system.client, task_queue=queue, workflows=[Started], activities=[start_again]):
        assert await system.client.execute_workflow("Started", id=queue, task_queue=queue, result_type=bool)
    assert answers == {(1, "in time"): True, (1, "late"): False, (2, "in time"): True}
