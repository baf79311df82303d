"""The Docker provider on a real engine with the real desktop."""

import asyncio
import io
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from ipaddress import IPv4Network
from typing import Any

import docker
import httpx
import pytest

from models.contract import DesktopLimits
from rollbook.config.settings import PROJECT_ROOT, load_settings
from rollbook.desktop.client import GuestClient
from rollbook.errors import CapacityBusy, InvalidInput, ProviderUnavailable, SandboxLost, SandboxStartFailed
from rollbook.guest.http import GUEST_PORT
from rollbook.osworld.needs import missing_needs, read_manifest
from rollbook.sandboxes.docker.network import DEFAULT_SUBNETS, create_network
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.docker.spec import container_arguments, container_name
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_KEY, SandboxSpec, SandboxStatus
from tests.support.servers import containers_of

MakeSpec = Callable[..., SandboxSpec]


@pytest.fixture
async def provider(docker_client: docker.DockerClient, deployment_id: str) -> AsyncIterator[DockerProvider]:
    """A provider of this session's deployment; whatever a test leaves is removed."""
    provider = DockerProvider(deployment_id, max_desktops=8, quiet_s=0.3)
    yield provider
    for container in containers_of(docker_client, deployment_id):
        container.remove(force=True, v=True)
    await provider.remove_networks()
    await provider.close()


@pytest.fixture
def spec(deployment_id: str, desktop_image: str) -> MakeSpec:
    """A spec with a key of its own."""

    def make(**changes: Any) -> SandboxSpec:
        given = {"deployment": deployment_id, "rollout": f"b/os/{uuid.uuid4().hex}/0", "attempt": 1, "execution": "e"}
        given |= {
            "image": desktop_image,
            "vnc_port": 8006,
            "ready_timeout_s": 120.0,
            "cleanup_timeout_s": 30.0,
            **changes,
        }
        return SandboxSpec.model_validate(given)

    return make


@pytest.fixture
def image_that(docker_client: docker.DockerClient, desktop_image: str) -> Callable[[str], str]:
    """The desktop image, but its container runs a shell command instead."""

    def build(command: str) -> str:
        recipe = f'FROM {desktop_image}\nENTRYPOINT ["/bin/sh", "-c", "{command}"]\n'
        image, _ = docker_client.images.build(fileobj=io.BytesIO(recipe.encode()), rm=True)
        return str(image.id)

    return build


def left(client: docker.DockerClient, spec: SandboxSpec) -> list[str]:
    rows = client.api.containers(all=True, filters={"label": f"{LABEL_KEY}={spec.key}"})
    return [row["Id"] for row in rows]


async def test_a_handle_names_the_image_that_was_run(provider: DockerProvider, spec: MakeSpec) -> None:
    handle = await provider.create(spec())
    assert handle.image_digest.startswith("sha256:")
    assert handle.isolation == "full"


async def test_workers_that_create_one_key_agree(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient, deployment_id: str
) -> None:
    wanted, other = spec(), DockerProvider(deployment_id, max_desktops=8)
    handles = await asyncio.gather(*(one.create(wanted) for one in (provider, other, provider, other)))
    await other.close()
    assert len({handle.sandbox_id for handle in handles}) == 1
    assert left(docker_client, wanted) == [handles[0].sandbox_id]


async def test_the_container_is_limited_and_published_on_loopback_only(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient
) -> None:
    wanted = spec(limits=DesktopLimits(cpus=0.75, memory_mib=1500, pids=700, shm_mib=100))
    handle = await provider.create(wanted)
    details = docker_client.api.inspect_container(handle.sandbox_id)
    host = details["HostConfig"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["Memory"] == host["MemorySwap"] == wanted.limits.memory_mib * 1024**2
    assert host["PidsLimit"] == wanted.limits.pids
    assert host["ShmSize"] == wanted.limits.shm_mib * 1024**2
    assert host["NanoCpus"] == 750_000_000
    assert not host["Privileged"]
    ports = details["NetworkSettings"]["Ports"]
    published = {int(name.removesuffix("/tcp")): rows for name, rows in ports.items() if rows}
    assert set(published) == set(wanted.ports)
    assert {row["HostIp"] for rows in published.values() for row in rows} == {"127.0.0.1"}

    async with GuestClient(await provider.endpoint(handle.sandbox_id, GUEST_PORT)) as guest:
        assert (await guest.execute(["getent", "hosts", "debian.org"])).returncode != 0, "no outside names"
        outside = await guest.execute(["bash", "-c", "timeout 2 bash -c '</dev/tcp/1.1.1.1/53'"])
        assert outside.returncode != 0, "no outside addresses"


async def test_of_two_desktops_with_one_key_the_oldest_running_stays(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient
) -> None:
    wanted = spec()
    first = await provider.create(wanted)
    twin = docker_client.containers.run(
        wanted.image, detach=True, labels=container_arguments(wanted, first.created_at)["labels"]
    )
    again = await provider.create(wanted)
    assert again.sandbox_id == first.sandbox_id
    assert left(docker_client, wanted) == [first.sandbox_id]
    assert await provider.status(str(twin.id)) is SandboxStatus.GONE


async def test_a_stopped_desktop_is_replaced(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient
) -> None:
    wanted = spec()
    first = await provider.create(wanted)
    docker_client.containers.get(first.sandbox_id).kill()
    assert await provider.status(first.sandbox_id) is SandboxStatus.STOPPED
    with pytest.raises(SandboxLost):
        await provider.endpoint(first.sandbox_id, GUEST_PORT)
    second = await provider.create(wanted)
    assert (second.adopted, second.sandbox_id == first.sandbox_id) == (False, False)
    assert left(docker_client, wanted) == [second.sandbox_id]
    with pytest.raises(SandboxLost, match="gone"):
        await provider.endpoint(first.sandbox_id, GUEST_PORT)


async def test_a_desktop_whose_creator_died_before_the_start_is_started(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient, deployment_id: str
) -> None:
    wanted = spec()
    dying = DockerProvider(deployment_id, max_desktops=8)
    dying._engine.start = _never  # type: ignore[method-assign]
    creation = asyncio.create_task(dying._make(wanted, lambda note: None))
    while not left(docker_client, wanted):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    creation.cancel()
    await asyncio.gather(creation, return_exceptions=True)
    handle = await provider.create(wanted)
    await dying.close()
    assert handle.adopted
    assert left(docker_client, wanted) == [handle.sandbox_id]


async def _never(container_id: str) -> None:
    await asyncio.Event().wait()


async def test_a_desktop_that_stops_early_fails_at_once_with_its_last_words(
    provider: DockerProvider, spec: MakeSpec, image_that: Callable[[str], str], docker_client: docker.DockerClient
) -> None:
    wanted = spec(image=image_that("echo no display here >&2; exit 3"), ready_timeout_s=600.0)
    with pytest.raises(SandboxStartFailed, match=r"exited with code 3.*no display here"):
        await provider.create(wanted)
    assert left(docker_client, wanted) == []


async def test_a_desktop_that_never_shows_anything(
    provider: DockerProvider, spec: MakeSpec, image_that: Callable[[str], str], docker_client: docker.DockerClient
) -> None:
    wanted = spec(image=image_that("sleep 1000"), ready_timeout_s=1.0)
    with pytest.raises(SandboxStartFailed, match=r"no usable screenshot within 1 s; last try"):
        await provider.create(wanted)
    assert left(docker_client, wanted) == []


async def test_a_screen_of_another_size_is_not_ready(provider: DockerProvider, spec: MakeSpec) -> None:
    other = {"SCREEN_WIDTH": "1024", "SCREEN_HEIGHT": "768"}
    with pytest.raises(SandboxStartFailed, match=r"1024×768 pixels, wanted 800×600"):
        await provider.create(spec(screen=(800, 600), env=other, ready_timeout_s=5.0))
    assert await provider.create(spec(screen=(800, 600)))


async def test_a_missing_image_fails_the_start_after_a_while_and_names_the_field(
    deployment_id: str, spec: MakeSpec
) -> None:
    provider = DockerProvider(deployment_id, max_desktops=8, quiet_s=0.1, image_wait_s=0.5)
    notes = list[str]()
    with pytest.raises(SandboxStartFailed, match=r"desktop\.image: 'rollbook/none:1' is not on the Docker host"):
        await provider.create(spec(image="rollbook/none:1"), notes.append)
    assert "waiting for the image rollbook/none:1" in notes, "it might have been on its way"
    with pytest.raises(SandboxStartFailed, match=r"ROLLBOOK_DESKTOP_IMAGE: 'rollbook/none:1'"):
        await provider.create(spec(image="rollbook/none:1", image_field="ROLLBOOK_DESKTOP_IMAGE"))
    await provider.close()


async def test_an_image_is_found_or_it_is_said_why_not(
    provider: DockerProvider, desktop_image: str, docker_client: docker.DockerClient
) -> None:
    digest = str(docker_client.images.get(desktop_image).id)
    image = await provider.inspect_image(desktop_image)
    assert image.digest == digest
    assert (await provider.inspect_image(digest)).digest == digest
    for typo in ("127.0.0.1:9/rollbook/none:1", "no such image", "rollbook/none@sha256:00"):
        with pytest.raises(InvalidInput, match="is not on the Docker host and could not be pulled"):
            await provider.inspect_image(typo)


async def test_the_desktop_image_says_what_it_holds(provider: DockerProvider, desktop_image: str) -> None:
    """The tasks of examples/batches/osworld-os-offline.json run on it, and none that needs Chrome."""
    manifest = read_manifest((await provider.inspect_image(desktop_image)).manifest)
    assert manifest is not None
    assert all(manifest.has(need) for need in ("gedit", "terminal", "file_manager", "socat", "python:pyautogui"))
    assert not any(manifest.has(need) for need in ("chrome", "gimp", "libreoffice_calc", "vlc", "python:json"))
    root = load_settings().osworld_tasks / "examples" / "os"
    offline = json.loads((PROJECT_ROOT / "examples" / "batches" / "osworld-os-offline.json").read_text())
    for task_id in offline["tasks"]["ids"] if root.is_dir() else ():
        assert missing_needs(json.loads((root / f"{task_id}.json").read_text()), manifest) == [], task_id


async def test_a_desktop_takes_its_network_along(
    spec: MakeSpec, deployment_id: str, docker_client: docker.DockerClient
) -> None:
    """A deployment of its own, or another test's desktops would be in the way."""
    own = f"{deployment_id}-networks"
    provider = DockerProvider(own, max_desktops=8, quiet_s=0.1)
    label = {"label": f"{LABEL_DEPLOYMENT}={own}"}
    first, second = spec(deployment=own), spec(deployment=own)
    handles = [await provider.create(first), await provider.create(second)]
    assert len(docker_client.networks.list(filters=label)) == 2, "each desktop has a network of its own"
    assert await provider.remove_networks() == 0, "both are in use"
    await provider.stop(handles[0].sandbox_id)
    assert len(docker_client.networks.list(filters=label)) == 1
    docker_client.containers.get(handles[1].sandbox_id).remove(force=True)
    assert not (await provider.create(second)).adopted, "a start whose network is left over creates another"
    assert await provider.stop_key(second.key) == 1
    assert docker_client.networks.list(filters=label) == []
    create_network(docker_client, first, DEFAULT_SUBNETS)
    assert await provider.tidy() == 1, "its desktop was never created"
    await provider.close()


async def test_a_range_without_a_free_subnet_names_the_setting(
    spec: MakeSpec, deployment_id: str, docker_client: docker.DockerClient
) -> None:
    full = IPv4Network("198.18.255.248/29")
    own = f"{deployment_id}-full"
    provider = DockerProvider(own, max_desktops=8, quiet_s=0.1, subnets=full)
    create_network(docker_client, spec(deployment=own), full)
    with pytest.raises(SandboxStartFailed, match="ROLLBOOK_DOCKER_SUBNETS"):
        await provider.create(spec(deployment=own))
    assert await provider.tidy() == 1
    await provider.close()


async def test_a_failing_cleanup_does_not_replace_the_error(
    provider: DockerProvider,
    spec: MakeSpec,
    image_that: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(container_id: str) -> None:
        raise docker.errors.APIError("the engine says no")

    monkeypatch.setattr(provider._engine, "remove", refuse)
    with caplog.at_level(logging.WARNING), pytest.raises(SandboxStartFailed, match="code 3"):
        await provider.create(spec(image=image_that("exit 3")))
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("rollbook.sandboxes.docker")]
    assert ["SandboxStartFailed" in text for text in texts] == [True, False], texts  # the error, then its cleanup's
    assert "the engine says no" in texts[1]


async def test_a_hanging_cleanup_is_not_waited_for(
    provider: DockerProvider, spec: MakeSpec, image_that: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = asyncio.Event()

    async def hang(container_id: str) -> None:
        await stuck.wait()

    monkeypatch.setattr(provider._engine, "remove", hang)
    with pytest.raises(SandboxStartFailed, match="code 3"):
        await provider.create(spec(image=image_that("exit 3"), cleanup_timeout_s=0.2))
    monkeypatch.undo()
    stuck.set()


@pytest.mark.parametrize("after", ["creating the desktop", "waiting for the first screenshot"])
async def test_a_cancelled_start_leaves_nothing(
    provider: DockerProvider,
    spec: MakeSpec,
    image_that: Callable[[str], str],
    docker_client: docker.DockerClient,
    after: str,
) -> None:
    wanted, reached = spec(image=image_that("sleep 1000")), asyncio.Event()
    start = asyncio.create_task(provider.create(wanted, lambda note: reached.set() if after in note else None))
    await reached.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert left(docker_client, wanted) == []


async def test_an_ambiguous_creation_leaves_nothing(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine created the container, but its answer was lost."""
    create, made = provider._engine.create, list[str]()

    async def lose_the_answer(*arguments: Any) -> str:
        made.append(await create(*arguments))
        raise ProviderUnavailable("read timed out")

    monkeypatch.setattr(provider._engine, "create", lose_the_answer)
    wanted = spec()
    with pytest.raises(ProviderUnavailable, match="read timed out"):
        await provider.create(wanted)
    assert len(made) == 1
    assert left(docker_client, wanted) == []


async def test_an_engine_that_is_away(spec: MakeSpec, deployment_id: str) -> None:
    away = DockerProvider(deployment_id, max_desktops=8, base_url="tcp://127.0.0.1:9", quiet_s=0.1)
    assert await away.status("0" * 64) is SandboxStatus.UNKNOWN
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: away.list({LABEL_DEPLOYMENT: deployment_id}),
        lambda: away.create(spec()),
        lambda: away.endpoint("0" * 64, GUEST_PORT),
        lambda: away.stop("0" * 64),
        lambda: away.stop_key(spec().key),
        lambda: away.inspect_image("rollbook/none:1"),
        lambda: away.tidy(),
        lambda: away.remove_networks(),
    ]
    for call in calls:
        with pytest.raises(ProviderUnavailable, match="the Docker engine does not answer"):
            await call()
    await away.close()


async def test_an_engine_that_refuses_proves_no_death(
    provider: DockerProvider, monkeypatch: pytest.MonkeyPatch, deployment_id: str
) -> None:
    """An engine that is going down answers with errors before it answers nothing."""

    async def refuse(*_: Any) -> None:
        raise docker.errors.APIError("500 Server Error", explanation="shutting down")

    for name in ("inspect", "rows"):
        monkeypatch.setattr(provider._engine, name, refuse)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: provider.list({LABEL_DEPLOYMENT: deployment_id}),
        lambda: provider.endpoint("0" * 64, GUEST_PORT),
        lambda: provider.stop("0" * 64),
        lambda: provider.stop_key("0" * 32),
        lambda: provider.tidy(),
    ]
    for call in calls:
        with pytest.raises(ProviderUnavailable, match="shutting down"):
            await call()
    assert await provider.status("0" * 64) is SandboxStatus.UNKNOWN
    monkeypatch.undo()


async def test_a_silent_engine_does_not_end_the_wait_for_a_screenshot(
    provider: DockerProvider, spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect, asked = provider._engine.inspect, list[str]()

    async def silent_after_the_first(container_id: str) -> Any:
        asked.append(container_id)
        if len(asked) > 1:
            raise ProviderUnavailable("silent")
        return await inspect(container_id)

    monkeypatch.setattr(provider._engine, "inspect", silent_after_the_first)
    handle = await provider.create(spec())
    assert len(asked) > 1, "the desktop needed a moment, and the engine was asked for it"
    monkeypatch.undo()
    assert await provider.status(handle.sandbox_id) is SandboxStatus.RUNNING


async def test_the_live_view_is_served_on_loopback(provider: DockerProvider, spec: MakeSpec) -> None:
    handle = await provider.create(spec())
    for port in (GUEST_PORT, 9222, 8080, handle.vnc_port):
        assert (await provider.endpoint(handle.sandbox_id, port)).url.startswith("http://127.0.0.1:")
    view = await provider.view_url(handle.sandbox_id)
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(60):
        while True:  # the live view may come up after the first screenshot
            try:
                assert (await client.get(view, follow_redirects=True)).status_code < 500
                break
            except httpx.HTTPError:
                await asyncio.sleep(0.2)


async def test_nothing_of_another_deployment_is_seen_or_touched(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient, deployment_id: str
) -> None:
    wanted = spec()
    stranger = docker_client.containers.create(
        wanted.image, labels={LABEL_DEPLOYMENT: f"{deployment_id}-other", LABEL_KEY: wanted.key}
    )
    try:
        for labels in ({}, {LABEL_KEY: wanted.key}, {LABEL_DEPLOYMENT: ""}):
            with pytest.raises(InvalidInput, match="deployment"):
                await provider.list(labels)
        assert await provider.list({LABEL_DEPLOYMENT: deployment_id}) == []
        with pytest.raises(InvalidInput, match="left alone"):
            await provider.stop(str(stranger.id))
        assert await provider.stop_key(wanted.key) == 0
        with pytest.raises(InvalidInput, match="deployment"):
            await provider.create(spec(deployment="another"))
        assert stranger.id in left(docker_client, wanted)
    finally:
        stranger.remove(force=True)


async def test_a_name_that_is_not_ours_is_reported(
    provider: DockerProvider, spec: MakeSpec, docker_client: docker.DockerClient
) -> None:
    wanted = spec()
    squatter = docker_client.containers.create(wanted.image, name=container_name(wanted))
    try:
        with pytest.raises(SandboxStartFailed, match="taken by another container"):
            await provider.create(wanted)
    finally:
        squatter.remove(force=True)


async def test_a_full_host_is_busy_and_keeps_nothing(
    spec: MakeSpec, deployment_id: str, provider: DockerProvider, docker_client: docker.DockerClient
) -> None:
    small = DockerProvider(deployment_id, max_desktops=1, quiet_s=0.3)
    first, second = spec(), spec()
    handle = await small.create(first)
    with pytest.raises(CapacityBusy, match=r"1 of 1 desktops.*ROLLBOOK_MAX_DESKTOPS"):
        await small.create(second)
    assert left(docker_client, second) == []
    assert (await small.create(first)).adopted, "a desktop that has its place is adopted on a full host"
    await small.stop(handle.sandbox_id)
    assert not (await small.create(second)).adopted
    await small.close()


async def test_who_asked_first_is_served_first(
    spec: MakeSpec, deployment_id: str, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = DockerProvider(deployment_id, max_desktops=1, quiet_s=0.1)
    running, first, second, third = (spec() for _ in range(4))
    handle = await small.create(running)
    for asking, ahead in ((second, 0), (third, 1), (first, 0), (second, 1)):  # `first` asked here only once
        with pytest.raises(CapacityBusy, match=f"{ahead} starts have waited longer") as busy:
            await small.create(asking)
        assert busy.value.retry_after_s == 1 + ahead
    await small.stop(handle.sandbox_id)
    with pytest.raises(CapacityBusy, match=r"0 of 1 desktops.* 2 starts have waited longer"):
        await small.create(third)
    served = await small.create(first)
    await small.stop(served.sandbox_id)
    monkeypatch.setattr("rollbook.sandboxes.docker.spec.GONE_S", 0.0)  # `second` does not ask any more
    await small.create(third)
    await small.close()


async def test_workers_that_race_for_the_last_places_do_not_overshoot(
    spec: MakeSpec,
    deployment_id: str,
    image_that: Callable[[str], str],
    provider: DockerProvider,
    docker_client: docker.DockerClient,
) -> None:
    """Six starts by three workers for two places: two containers run, and the four others know that it is full."""
    workers = [DockerProvider(deployment_id, max_desktops=2, quiet_s=0.1) for _ in range(3)]
    image = image_that("sleep 1000")
    starts = [worker.create(spec(image=image, ready_timeout_s=5.0)) for worker in workers for _ in range(2)]
    tasks = [asyncio.create_task(start) for start in starts]
    most = 0
    while not all(task.done() for task in tasks):
        running = docker_client.api.containers(filters={"label": f"{LABEL_DEPLOYMENT}={deployment_id}"})
        most = max(most, len(running))
        await asyncio.sleep(0.05)
    errors = [type(task.exception()) for task in tasks]
    assert sorted(error.__name__ for error in errors) == ["CapacityBusy"] * 4 + ["SandboxStartFailed"] * 2
    assert most == 2
    for worker in workers:
        await worker.close()


async def test_a_ticket_of_a_dead_worker_holds_no_place_for_ever(
    spec: MakeSpec,
    deployment_id: str,
    provider: DockerProvider,
    docker_client: docker.DockerClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    abandoned = spec()
    docker_client.containers.create(abandoned.image, labels={LABEL_DEPLOYMENT: deployment_id, LABEL_KEY: abandoned.key})
    small = DockerProvider(deployment_id, max_desktops=1, quiet_s=0.1)
    waiting = spec()
    with pytest.raises(CapacityBusy):
        await small.create(waiting)
    monkeypatch.setattr("rollbook.sandboxes.docker.spec.STALE_TICKET", timedelta(0))
    handle = await small.create(waiting)
    assert await small.status(handle.sandbox_id) is SandboxStatus.RUNNING
    await small.close()
