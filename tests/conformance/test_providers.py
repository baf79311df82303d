"""Promises of every registered sandbox provider, and the effects of its registration.

The provider `memory` stands for one of another package: its module and one entry point are all there is of it.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from models.episode import AttemptRef, DesktopRef, DesktopRequest
from rollbook.cli.submit import load_spec
from rollbook.config.settings import Settings, load_settings
from rollbook.errors import ConfigError, InvalidInput, SandboxLost
from rollbook.guest.http import GUEST_PORT, SERVICE_PORTS
from rollbook.sandboxes.provider import (
    LABEL_DEPLOYMENT,
    LABEL_KEY,
    LABEL_STACK,
    ProviderKind,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    remove_sandbox,
)
from rollbook.sandboxes.registry import GROUP, opened_providers, provider_kind, provider_kinds, provider_names
from rollbook.stack.doctor import examinations
from rollbook.stack.lifecycle import count_desktops, remove_desktops
from tests.support.system import null_spec, running_system, small_tasks, system_settings


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution that offers the provider `memory`, as pip would have installed it."""
    site = tmp_path_factory.mktemp("site")
    info = site / "rollbook_memory-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollbook-memory\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nmemory = tests.doubles.memory_provider:KIND\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield


@dataclass
class Bench:
    """One opened provider, and specs for it."""

    kind: ProviderKind
    provider: SandboxProvider
    settings: Settings
    image: str
    keys: list[str] = field(default_factory=list)

    @property
    def real(self) -> bool:
        """True if its sandboxes exist: the do-nothing desktop lists none and loses none."""
        return self.kind.name != "null"

    def spec(self, **changes: Any) -> SandboxSpec:
        """A spec with a key of its own."""
        values: dict[str, Any] = {
            "deployment": self.settings.deployment_id,
            "rollout": f"b/os/{uuid.uuid4().hex}/0",
            "attempt": 1,
            "execution": "e",
            "image": self.image,
            "vnc_port": self.provider.vnc_port,
            "ready_timeout_s": 120.0,
            "cleanup_timeout_s": 30.0,
        }
        spec = SandboxSpec.model_validate(values | changes)
        self.keys.append(spec.key)
        return spec

    def labels(self, spec: SandboxSpec) -> dict[str, str]:
        return {LABEL_DEPLOYMENT: spec.deployment, LABEL_KEY: spec.key}


@pytest.fixture(params=["docker", "null", "memory"])
def named(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A provider's name and an image for it."""
    return request.param, request.getfixturevalue("desktop_image") if request.param == "docker" else "any"


@pytest.fixture
async def bench(named: tuple[str, str], deployment_id: str) -> AsyncIterator[Bench]:
    kind, image = provider_kind(named[0]), named[1]
    settings = load_settings(_env_file=None, deployment_id=deployment_id, allow_null_desktop=True, max_desktops=8)
    provider = kind.open(settings, 60.0)
    bench = Bench(kind, provider, settings, image)
    yield bench
    for key in bench.keys:
        await provider.stop_key(key)
    await provider.tidy()
    await provider.close()


def test_every_registered_provider_is_tested() -> None:
    assert provider_names() == ["docker", "memory", "null"]


async def test_a_registration_is_whole(bench: Bench) -> None:
    assert bench.kind.name == bench.provider.name
    assert bench.provider.vnc_port not in SERVICE_PORTS
    assert bench.kind.default_image(bench.settings, "slim").name
    assert bench.kind.enabled(bench.settings)
    for check in bench.kind.checks:
        assert check in examinations(bench.settings)
        assert (await asyncio.to_thread(check, bench.settings)).level in ("ok", "warn", "fail")


async def test_a_desktop_from_its_creation_to_its_end(bench: Bench) -> None:
    provider, spec, notes = bench.provider, bench.spec(batch="b"), list[str]()
    handle = await provider.create(spec, notes.append)
    assert notes or not bench.real, "long waits must report progress"
    assert (handle.provider, handle.key, handle.adopted) == (bench.kind.name, spec.key, False)
    assert handle.vnc_port == provider.vnc_port
    assert await provider.status(handle.sandbox_id) is SandboxStatus.RUNNING

    again = await provider.create(spec)
    assert (again.sandbox_id, again.adopted) == (handle.sandbox_id, bench.real)
    rows = await provider.list(bench.labels(spec))
    assert [row.sandbox_id for row in rows] == ([handle.sandbox_id] if bench.real else [])
    for row in rows:
        assert (row.key, row.status, row.labels["rollbook.batch"]) == (spec.key, SandboxStatus.RUNNING, "b")

    await provider.stop(handle.sandbox_id)
    await provider.stop(handle.sandbox_id)
    assert await provider.stop_key(spec.key) == 0
    assert await provider.list(bench.labels(spec)) == []
    if bench.real:
        assert await provider.status(handle.sandbox_id) is SandboxStatus.GONE
        with pytest.raises(SandboxLost):
            await provider.endpoint(handle.sandbox_id, GUEST_PORT)


async def test_the_driver_sees_the_screen(bench: Bench) -> None:
    spec = bench.spec(screen=(800, 600))
    handle = await bench.provider.create(spec)
    nonce = await bench.provider.nonce(handle.sandbox_id)
    assert nonce == await bench.provider.nonce(handle.sandbox_id) != ""
    attempt = AttemptRef(rollout_key=spec.rollout, attempt_index=1)
    desktop = DesktopRef(
        provider=bench.kind.name, sandbox_id=handle.sandbox_id, sandbox_key=handle.key, nonce=nonce, view_url=""
    )
    driver = await bench.provider.driver(DesktopRequest(attempt=attempt, desktop=desktop), None)
    observation = await driver.observe(screen=spec.screen, accessibility_tree=False, terminal=False)
    await driver.close()
    assert observation.screenshot.startswith(b"\x89PNG")
    assert (observation.width, observation.height) == (spec.screen if bench.real else (1, 1))


async def test_the_cause_of_a_failure(bench: Bench) -> None:
    """The host of a desktop that was removed from outside never passes for the guest's doing."""
    provider, spec = bench.provider, bench.spec()
    handle = await provider.create(spec)
    nonce = await provider.nonce(handle.sandbox_id)
    assert (await provider.cause(handle.sandbox_id, nonce)).kind == "unknown", "nothing is wrong with it"
    server = await provider.server_process(handle.sandbox_id)
    assert not (await provider.examine(handle.sandbox_id, server)).tampered
    if bench.real:
        replaced = await provider.cause(handle.sandbox_id, f"not-{nonce}"[:60])
        assert (replaced.kind, "another boot" in replaced.detail) == ("guest", True)
    await provider.stop(handle.sandbox_id)
    ended = await provider.cause(handle.sandbox_id, nonce)
    assert ended.kind in ("host", "unknown")
    assert ended.detail
    assert not (await provider.examine(handle.sandbox_id, server)).tampered, "what is gone shows nothing"
    assert (await provider.cause("0" * 64, nonce)).kind == "unknown"


async def test_declared_ports_only(bench: Bench) -> None:
    spec = bench.spec()
    handle = await bench.provider.create(spec)
    for port in spec.ports if bench.real else ():
        assert (await bench.provider.endpoint(handle.sandbox_id, port)).url.startswith("http")
    with pytest.raises(InvalidInput, match=r"port.*22"):
        await bench.provider.endpoint(handle.sandbox_id, 22)
    view = await bench.provider.view_url(handle.sandbox_id)
    assert view.endswith(bench.provider.view_path) if bench.real else view == ""
    assert await bench.provider.view_url("0" * 64) == "", "a missing view is no error"


async def test_creators_of_one_key_agree_on_one_desktop(bench: Bench) -> None:
    spec = bench.spec()
    handles = await asyncio.gather(*(bench.provider.create(spec) for _ in range(3)))
    assert len({handle.sandbox_id for handle in handles}) == 1
    assert len(await bench.provider.list(bench.labels(spec))) == int(bench.real)
    assert await bench.provider.stop_key(spec.key) == int(bench.real)


async def test_a_listing_names_its_deployment(bench: Bench) -> None:
    spec = bench.spec()
    await bench.provider.create(spec)
    for labels in ({}, {LABEL_KEY: spec.key}, {LABEL_DEPLOYMENT: ""}):
        with pytest.raises(InvalidInput, match="deployment"):
            await bench.provider.list(labels)
    assert await bench.provider.list({LABEL_DEPLOYMENT: "another", LABEL_KEY: spec.key}) == []


@dataclass
class Lease:
    sandbox_key: str
    sandbox_id: str | None
    deployment_id: str


async def test_the_desktop_of_another_ledger_is_not_adopted(bench: Bench) -> None:
    """Two ledgers with one deployment id know the same rollout and attempt; their claims differ."""
    rollout = "b/os/shared/0"
    theirs = await bench.provider.create(bench.spec(rollout=rollout, execution="theirs"))
    ours = await bench.provider.create(bench.spec(rollout=rollout, execution="ours"))
    assert (ours.adopted, ours.sandbox_id != theirs.sandbox_id) == (False, True)


@pytest.mark.parametrize("known", [True, False], ids=["id-recorded", "id-unknown"])
async def test_the_desktop_of_a_lease_is_removed(bench: Bench, known: bool) -> None:
    spec = bench.spec()
    handle = await bench.provider.create(spec)
    await remove_sandbox(bench.provider, Lease(spec.key, handle.sandbox_id if known else None, spec.deployment))
    assert await bench.provider.list(bench.labels(spec)) == []


async def test_images_tidying_and_repeated_ends(bench: Bench) -> None:
    image = await bench.provider.inspect_image(bench.image)
    assert image.name == bench.image
    if image.digest is not None:
        assert (await bench.provider.inspect_image(image.digest)).digest == image.digest
    await bench.provider.tidy()
    assert await bench.provider.tidy() == 0
    if bench.real:
        assert await bench.provider.status("0" * 64) is SandboxStatus.GONE


async def test_the_end_of_a_deployment(bench: Bench) -> None:
    own = bench.settings.model_copy(update={"deployment_id": f"{bench.settings.deployment_id}-end"})
    provider = bench.kind.open(own, 60.0)
    deployment, stack = {LABEL_DEPLOYMENT: own.deployment_id}, {LABEL_STACK: "a"}
    for name in "aab":
        await provider.create(bench.spec(deployment=own.deployment_id, stack=name))
    removed = await provider.remove_all(deployment | stack)
    assert removed.desktops == (2 if bench.real else 0)
    assert len(await provider.list(deployment)) == (1 if bench.real else 0), "another stack's stays"
    await provider.remove_all(deployment)
    assert await provider.remove_all(deployment) == (0, 0)
    await provider.close()


# --- a provider of another package: its module and one entry point ------------------------------------------------


async def test_what_lists_providers_sees_it(deployment_id: str) -> None:
    settings = load_settings(_env_file=None, deployment_id=f"{deployment_id}-x", allow_null_desktop=True)
    assert [kind.name for kind in provider_kinds()] == ["docker", "memory", "null"]
    async with opened_providers(settings) as providers:
        assert sorted(providers) == ["docker", "memory", "null"]


async def test_down_and_ps_ask_every_provider(deployment_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.doubles import memory_provider

    provider = memory_provider.MemoryProvider()
    kind = ProviderKind(name="memory", open=lambda settings, timeout_s: provider)
    monkeypatch.setattr(memory_provider, "KIND", kind)
    monkeypatch.setattr("rollbook.sandboxes.registry.BUILT_IN", ())
    settings = load_settings(_env_file=None, deployment_id=deployment_id)
    await provider.create(Bench(kind, provider, settings, "any").spec(stack=settings.stack_id))
    assert await count_desktops(settings) == 1
    assert await remove_desktops(settings) == (1, 0)
    assert await count_desktops(settings) == 0


def test_an_unknown_provider_is_refused_with_the_known_names(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"task_set": "t", "policy": {"kind": "noop"}, "desktop": {"provider": "memroy"}}')
    with pytest.raises(InvalidInput) as error:
        load_spec(str(path))
    for part in ("desktop.provider", "'memroy'", "docker or memory or null", "did you mean memory?"):
        assert part in str(error.value)


def test_a_broken_registration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nbroken = nowhere.to_be_found:KIND\nother = os:sep\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'broken' \(nowhere\.to_be_found:KIND\) cannot be loaded"):
        provider_kind("broken")
    with pytest.raises(ConfigError, match="must be a ProviderKind"):
        provider_kind("other")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ndocker = nowhere:KIND\n")
    with pytest.raises(ConfigError, match="registered twice"):
        provider_names()
    assert os.sep


async def test_a_batch_runs_on_it(scratch: Path, ledger_url: str, temporal_address: str) -> None:
    """Spec, registration, worker, desktops and scores; without a line about the provider anywhere else."""
    settings = system_settings(scratch / "memory", ledger_url, "memory-test")
    async with running_system(settings, temporal_address) as system:
        await system.register_tasks("two", small_tasks(2))
        spec = null_spec("two", desktop={"provider": "memory", "screen_width": 640, "screen_height": 480})
        result = await system.run_batch(spec, "memory-1")
        assert (result.state, result.counts.admitted) == ("complete", 2)
        assert (await system.audit("memory-1")).ok
        provider = system.services.provider("memory")
        assert await provider.list({LABEL_DEPLOYMENT: settings.deployment_id}) == []
        with pytest.raises(WorkflowFailureError) as failure:
            await system.run_batch(null_spec("two", desktop={"provider": "memroy"}), "memory-2")
        assert "desktop.provider: unknown provider 'memroy'" in str(failure.value.cause)
        with pytest.raises(ConfigError, match="does not offer 'memroy'"):
            system.services.provider("memroy")
