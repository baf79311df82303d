"""Desktops as containers of one Docker engine.

A desktop is found again by the label `rollbook.key`, and its name is made of the key, so that the engine itself
refuses a second container for one attempt: the loser of that race adopts the winner's.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any

from docker.errors import APIError

from models.outcome import Cause
from rollbook.config.settings import Settings
from rollbook.errors import CapacityBusy, InvalidInput, ProviderUnavailable, SandboxLost, SandboxStartFailed
from rollbook.guest.http import GUEST_PORT, Endpoint, OnProgress, wait_ready
from rollbook.sandboxes.docker.checks import check_docker_disk, check_engine, check_image
from rollbook.sandboxes.docker.engine import (
    MANIFEST_LABEL,
    ContainerGone,
    Engine,
    ImageMissing,
    NameTaken,
    NetworkGone,
    explain,
)
from rollbook.sandboxes.docker.image import image_tag
from rollbook.sandboxes.docker.network import (
    DEFAULT_SUBNETS,
    create_network,
    remove_helpers,
    remove_networks,
    set_rules,
)
from rollbook.sandboxes.docker.post_mortem import Event, cause_of_end
from rollbook.sandboxes.docker.spec import (
    Capacity,
    FailedStarts,
    container_arguments,
    created_at,
    declared_ports,
    host_arguments,
    host_port,
    info_of,
    status_of,
    why_stopped,
)
from rollbook.sandboxes.docker.tampering import KEPT, PS_COLUMNS, changes_of, problems, server_process
from rollbook.sandboxes.provider import (
    LABEL_DEPLOYMENT,
    LABEL_KEY,
    DefaultImage,
    Examination,
    ImageInfo,
    IsOwner,
    ProviderKind,
    SandboxHandle,
    SandboxInfo,
    SandboxProvider,
    SandboxSpec,
    SandboxStatus,
    always_owner,
    ignore_progress,
    require_deployment,
)

log = logging.getLogger(__name__)

Rows = list[dict[str, Any]]

ADOPTION_TRIES = 5
POLL_S = 0.05
IMAGE_POLL_S = 2.0
ABANDONED_NETWORK_S = 600.0
"""Older than any start between the creation of its network and that of its container."""


class DockerProvider(SandboxProvider):
    """Desktops of one deployment on one Docker engine.

    `base_url` None means DOCKER_HOST or the local socket. Ports are published on `publish_ip` only.
    """

    name = "docker"

    def __init__(
        self,
        deployment: str,
        *,
        max_desktops: int,
        base_url: str | None = None,
        publish_ip: str = "127.0.0.1",
        api_timeout_s: float = 60.0,
        quiet_s: float = 2.0,
        image_wait_s: float = 60.0,
        subnets: IPv4Network = DEFAULT_SUBNETS,
    ) -> None:
        self.deployment = deployment
        self._engine = Engine(base_url, api_timeout_s)
        self._capacity = Capacity(self._engine, deployment, max_desktops)
        self._publish_ip = publish_ip
        self._quiet_s = quiet_s
        self._image_wait_s = image_wait_s
        self._subnets = subnets
        self._failed_starts = FailedStarts(self.stop_key)

    async def create(
        self, spec: SandboxSpec, on_progress: OnProgress = ignore_progress, is_owner: IsOwner = always_owner
    ) -> SandboxHandle:
        """See `SandboxProvider.create`."""
        if spec.deployment != self.deployment:
            raise InvalidInput(f"deployment: {spec.deployment!r} is not this provider's, {self.deployment!r}")
        try:
            return await self._create(spec, on_progress)
        except CapacityBusy:
            await self._remove_networks(spec.key)  # the container was removed by then, or never created
            raise
        except APIError as error:
            await self._failed_starts.clean_up(spec, error, is_owner)
            raise SandboxStartFailed(f"the Docker engine refused: {explain(error)}") from error
        except BaseException as error:
            await self._failed_starts.clean_up(spec, error, is_owner)
            raise

    async def _create(self, spec: SandboxSpec, on_progress: OnProgress) -> SandboxHandle:
        on_progress("looking for the desktop")
        container_id, adopted = await self._adopt_or_create(spec, on_progress)
        details = await self._alive(container_id)
        # The guest boots meanwhile. No task runs in it yet, so nothing can leave before the rules are in force.
        refusal = await self._engine.run(lambda client: set_rules(client, details, spec.egress))
        if refusal is not None:
            await self._alive(container_id)  # a container that ended meanwhile has no network to set rules in
            log.warning("desktop %s: its packet rules cannot be set, isolation is partial: %s", spec.key, refusal)
        await wait_ready(
            self._endpoint_of(details, GUEST_PORT),
            spec.screen,
            still_running=lambda: self._still(container_id),
            timeout_s=spec.ready_timeout_s,
            poll_s=spec.ready_poll_s,
            on_progress=on_progress,
        )
        return SandboxHandle(
            provider=self.name,
            sandbox_id=container_id,
            key=spec.key,
            created_at=created_at(details),
            adopted=adopted,
            image_digest=details["Image"],
            vnc_port=spec.vnc_port,
            isolation="full" if refusal is None else "partial",
        )

    async def _adopt_or_create(self, spec: SandboxSpec, on_progress: OnProgress) -> tuple[str, bool]:
        tries, patient_until = 0, time.monotonic() + self._image_wait_s
        while True:
            try:
                adopted = await self._adopt(spec)
                return (adopted, True) if adopted is not None else (await self._make(spec, on_progress), False)
            except (NameTaken, NetworkGone, ContainerGone) as error:
                tries += 1
                if tries == ADOPTION_TRIES:
                    raise SandboxStartFailed(
                        f"tried {tries} times; is the name taken by another container? {error}"
                    ) from error
                await asyncio.sleep(POLL_S)
            except ImageMissing as error:  # it may be on its way, being built or loaded
                if time.monotonic() >= patient_until:
                    raise SandboxStartFailed(
                        f"{spec.image_field}: {spec.image!r} is not on the Docker host, nor came within "
                        f"{self._image_wait_s:g} s: load, pull or build it there"
                    ) from error
                on_progress(f"waiting for the image {spec.image}")
                await asyncio.sleep(min(IMAGE_POLL_S, self._image_wait_s))

    async def _adopt(self, spec: SandboxSpec) -> str | None:
        """The oldest living container of the key, running; the others are removed. One that ran and stopped has lost
        its guest's state, so it is removed as well."""
        rows = await self._rows_of(spec.key)
        living = [row for row in rows if row["State"] in ("created", "running", "paused", "restarting")]
        living.sort(key=lambda row: (row["State"] == "created", row["Created"], row["Id"]))
        keep = living[0] if living else None
        for row in rows:
            if row is not keep:
                await self.stop(row["Id"])
        if keep is None:
            return None
        if keep["State"] == "paused":
            await self._engine.unpause(keep["Id"])
        elif keep["State"] == "created":
            await self._start(spec, keep["Id"])
        return str(keep["Id"])

    async def _make(self, spec: SandboxSpec, on_progress: OnProgress) -> str:
        await self._capacity.check(spec)
        on_progress("creating the desktop")
        network = await self._engine.run(lambda client: create_network(client, spec, self._subnets))
        host = host_arguments(spec, network, self._publish_ip, await self._engine.cpus())
        call = self._engine.create(container_arguments(spec, datetime.now(UTC)), host)
        container_id = await asyncio.shield(self._failed_starts.remember(spec.key, call))
        await self._start(spec, container_id)
        return container_id

    async def _start(self, spec: SandboxSpec, container_id: str) -> None:
        await self._capacity.admit(spec, container_id)
        try:
            await self._engine.start(container_id)
        except NetworkGone:
            await self._engine.remove(container_id)
            log.info("desktop %s: its network was removed, both are created again", container_id[:12])
            raise

    async def status(self, sandbox_id: str) -> SandboxStatus:
        """See `SandboxProvider.status`."""
        try:
            details = await self._engine.inspect(sandbox_id)
        except Exception as error:
            log.warning("status of desktop %s is unknown: %s", sandbox_id, explain(error))
            return SandboxStatus.UNKNOWN
        return SandboxStatus.GONE if details is None else status_of(details["State"]["Status"])

    async def cause(self, sandbox_id: str, nonce: str) -> Cause:
        """See `SandboxProvider.cause`: the engine's records first, then a look at a guest that still runs."""
        try:
            with _no_proof("cause"):
                details = await self._engine.inspect(sandbox_id)
                raw = await self._engine.events()
        except ProviderUnavailable as error:
            return Cause(kind="host", detail=str(error))
        ours = [Event.of(event) for event in raw if (event.get("Actor") or {}).get("ID") == sandbox_id]
        found = cause_of_end(details, ours, all_events=len(raw))
        return found or await super().cause(sandbox_id, nonce)

    async def server_process(self, sandbox_id: str) -> str:
        """See `SandboxProvider.server_process`."""
        try:
            return await self._server_process(sandbox_id) or ""
        except APIError as error:  # for instance an engine's host whose `ps` lacks a column
            log.warning("the process of the guest server cannot be seen: %s", explain(error))
            return ""

    async def _server_process(self, sandbox_id: str) -> str | None:
        """The guest server's process; empty without one, None when the container does not run."""
        details = await self._engine.inspect(sandbox_id)
        top = await self._engine.processes(sandbox_id, PS_COLUMNS) if details is not None else None
        return None if details is None or top is None else server_process(top, details["State"]["Pid"], time.time())

    async def examine(self, sandbox_id: str, started_as: str) -> Examination:
        """See `SandboxProvider.examine`."""
        with _no_proof("examination"):
            diff = await self._engine.changed_files(sandbox_id)
            now = await self._server_process(sandbox_id) if started_as else None
        if diff is None:
            return Examination()
        changes = changes_of(diff)
        found = problems(changes, started_as, now)
        evidence = {
            "server_at_start": started_as,
            "server_at_end": now,
            "server_files": changes.server[:KEPT],
            "system_files": changes.system[:KEPT],
        }
        return Examination(tampered=bool(found), detail="; ".join(found), evidence=evidence)

    async def endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        """See `SandboxProvider.endpoint`."""
        with _no_proof("endpoint"):
            details = await self._engine.inspect(sandbox_id)
        if details is None:
            raise SandboxLost(f"desktop {sandbox_id[:12]} is gone")
        return self._endpoint_of(details, port)

    def _endpoint_of(self, details: Mapping[str, Any], port: int) -> Endpoint:
        if port not in declared_ports(details):
            raise InvalidInput(f"port: {port} was not declared; declared are {sorted(declared_ports(details))}")
        published = host_port(details, port)
        if published is None:
            raise SandboxLost(f"desktop {details['Id'][:12]} does not run: {details['State']['Status']}")
        return Endpoint(f"http://{self._publish_ip}:{published}")

    async def stop(self, sandbox_id: str) -> None:
        """See `SandboxProvider.stop`. Refuses a container of another deployment."""
        deadline, key = time.monotonic() + 60.0, None
        with _no_proof("stop"):
            while (details := await self._engine.inspect(sandbox_id)) is not None:
                self._must_be_ours(details)
                key = details["Config"]["Labels"].get(LABEL_KEY)
                if time.monotonic() > deadline:
                    raise ProviderUnavailable(f"desktop {sandbox_id[:12]} could not be removed within 60 s")
                await self._engine.remove(details["Id"])
                await asyncio.sleep(POLL_S)
        if key:
            await self._remove_networks(key)

    def _must_be_ours(self, details: Mapping[str, Any]) -> None:
        owner = (details["Config"].get("Labels") or {}).get(LABEL_DEPLOYMENT)
        if owner != self.deployment:
            raise InvalidInput(f"sandbox_id: {details['Id'][:12]} belongs to deployment {owner!r}, left alone")

    async def stop_key(self, key: str) -> int:
        """See `SandboxProvider.stop_key`."""
        removed: set[str] = set()
        quiet_since = time.monotonic()
        while True:
            rows = await self._rows_of(key)
            for row in rows:
                await self.stop(row["Id"])
                removed.add(row["Id"])
            if rows:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= self._quiet_s:
                await self._remove_networks(key)  # also those of creations that were cut short
                return len(removed)
            await asyncio.sleep(min(POLL_S, self._quiet_s))

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `SandboxProvider.list`."""
        require_deployment(labels)
        with _no_proof("list"):
            return [info_of(row) for row in await self._engine.rows(labels)]

    async def inspect_image(self, image: str) -> ImageInfo:
        """See `SandboxProvider.inspect_image`. The digest is the engine's image id: equal on every host that has it."""
        with _no_proof("image"):
            details = await self._engine.image(image)
            problem = None if details else await self._engine.pull(image)
            details = details or await self._engine.image(image)
            if details is None:
                raise InvalidInput(
                    f"{image!r} is not on the Docker host and could not be pulled ({problem}); "
                    "load, pull or build it there, or correct the name"
                )
        labels = (details.get("Config") or {}).get("Labels") or {}
        return ImageInfo(image, str(details["Id"]), labels.get(MANIFEST_LABEL))

    async def tidy(self) -> int:
        """See `SandboxProvider.tidy`: networks whose desktop was never created, or was removed by another program.

        A start that loses its network retries.
        """
        with _no_proof("networks"):
            idle = not await self._engine.rows({LABEL_DEPLOYMENT: self.deployment})
            return await self.remove_networks(0 if idle else ABANDONED_NETWORK_S)

    async def close(self) -> None:
        """See `SandboxProvider.close`; cleanups under way are waited for."""
        await self._failed_starts.close()
        await self._engine.close()

    async def remove_networks(self, older_than_s: float = 0) -> int:
        """Remove every network of the deployment that is not in use; returns how many."""
        labels = {LABEL_DEPLOYMENT: self.deployment}
        await self._engine.run(lambda client: remove_helpers(client, self.deployment))
        return await self._engine.run(lambda client: remove_networks(client, labels, older_than_s))

    async def _remove_networks(self, key: str) -> None:
        labels = {LABEL_DEPLOYMENT: self.deployment, LABEL_KEY: key}
        with _no_proof("networks"):
            await self._engine.run(lambda client: remove_networks(client, labels))

    async def _rows_of(self, key: str) -> Rows:
        with _no_proof("list"):
            return await self._engine.rows({LABEL_DEPLOYMENT: self.deployment, LABEL_KEY: key})

    async def _alive(self, container_id: str) -> dict[str, Any]:
        details = await self._engine.inspect(container_id)
        if details is None:
            raise SandboxStartFailed("the container was removed while it started")
        if details["State"]["Status"] in ("exited", "dead", "removing"):
            raise SandboxStartFailed(why_stopped(details, await self._engine.last_output(container_id)))
        return details

    async def _still(self, container_id: str) -> None:
        with contextlib.suppress(ProviderUnavailable):  # no proof of death: the screenshot decides
            await self._alive(container_id)


@contextlib.contextmanager
def _no_proof(what: str) -> Iterator[None]:
    """An engine that refuses a question about a desktop has not said that it is dead: ask again later."""
    try:
        yield
    except APIError as error:
        raise ProviderUnavailable(f"{what}: the Docker engine refused: {explain(error)}") from error


def _default_image(settings: Settings, variant: str) -> DefaultImage:
    if settings.desktop_image:
        return DefaultImage(settings.desktop_image, "ROLLBOOK_DESKTOP_IMAGE")
    return DefaultImage(image_tag(variant), None)


KIND = ProviderKind(
    name=DockerProvider.name,
    open=lambda settings, timeout_s: DockerProvider(
        settings.deployment_id,
        max_desktops=settings.max_desktops,
        api_timeout_s=timeout_s,
        subnets=settings.docker_subnets,
    ),
    default_image=_default_image,
    default_image_source="ROLLBOOK_DESKTOP_IMAGE, or the image of `make setup`",
    checks=(check_engine, check_image, check_docker_disk),
)
