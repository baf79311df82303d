"""The engine's view of real guest servers: in honest use, replaced on disk, killed, and attacked in memory."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import docker
import pytest

from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, Examination, SandboxSpec
from tests.support.waiting import until


class Desktop:
    """A desktop, and the two who may look at its guest server."""

    def __init__(self, provider: DockerProvider, container: Any, server: str) -> None:
        self.provider, self.container, self.server = provider, container, server

    async def shell(self, command: str, user: str = "user") -> str:
        """Run a command in the guest, as its agent can; the output."""
        run = self.container.exec_run
        done = await asyncio.to_thread(run, ["bash", "-c", command], user=user, environment={"HOME": f"/home/{user}"})
        return str(done.output.decode())

    async def examine(self) -> Examination:
        return await self.provider.examine(self.container.id, self.server)


Start = Callable[[], Awaitable[Desktop]]


@pytest.fixture
async def start(docker_client: docker.DockerClient, desktop_image: str, deployment_id: str) -> AsyncIterator[Start]:
    provider = DockerProvider(f"{deployment_id}-tampering", max_desktops=8)

    async def started() -> Desktop:
        rollout = uuid.uuid4().hex
        spec = SandboxSpec(
            deployment=provider.deployment,
            rollout=rollout,
            attempt=1,
            execution="e",
            image=desktop_image,
            vnc_port=8006,
        )
        handle = await provider.create(spec)
        container = await asyncio.to_thread(docker_client.containers.get, handle.sandbox_id)
        return Desktop(provider, container, await provider.server_process(handle.sandbox_id))

    yield started
    await provider.remove_all({LABEL_DEPLOYMENT: provider.deployment})
    await provider.close()


MEMORY_OF_THE_SERVER = """
import ctypes, os
(pid,) = [int(one) for one in os.listdir("/proc") if one.isdigit() and open(f"/proc/{one}/cmdline").read().rstrip("\\0")
    .endswith("guest.app")]
try:
    open(f"/proc/{pid}/mem", "r+b")
    print("open")
except OSError as error:
    print(error.strerror)
print(ctypes.CDLL(None).ptrace(16, pid, 0, 0))
"""


async def test_honest_use_leaves_the_server_alone(start: Start) -> None:
    desktop = await start()
    assert desktop.server
    await desktop.shell("cd ~ && mkdir -p .local/bin && echo hi > Desktop/a.txt && pip --version; echo 1 > /tmp/x")
    for line in (
        "echo 127.0.0.1 somewhere >> /etc/hosts; useradd -m charles; chmod -R a+r /home/charles",
        "cp /bin/ls /usr/bin/new-tool; ln -s /usr/bin/python3 /usr/local/bin/py; mkdir -p /opt/other",
        "python3 -c 'import flask, PIL'; python3 -m compileall -q /usr/lib/python3/dist-packages/flask",
        "dpkg --configure -a; ldconfig; update-alternatives --install /usr/bin/editor-x editor-x /bin/ls 1",
    ):
        await desktop.shell(line, user="root")
    seen = await desktop.examine()
    assert (seen.tampered, seen.detail) == (False, ""), seen
    assert seen.evidence["server_at_end"].split("@")[0] == desktop.server.split("@")[0]
    assert seen.evidence["system_files"] == []
    for user in ("user", "root"):
        refused = await desktop.shell(f"python3 - <<'END'\n{MEMORY_OF_THE_SERVER}\nEND", user=user)
        assert refused.split("\n")[:2] == ["Permission denied", "-1"], f"{user}: {refused}"


async def test_another_server_is_found(start: Start) -> None:
    changed, killed = await asyncio.gather(start(), start())
    await changed.shell("cp /bin/ls /bin/cat; echo '# forged' >> /opt/rollbook/guest/routes_execute.py", user="root")
    seen = await changed.examine()
    assert seen.tampered
    assert seen.evidence["server_files"][-1] == "/opt/rollbook/guest/routes_execute.py"
    assert any(path.endswith("/bin/cat") for path in seen.evidence["system_files"])

    await killed.shell("pkill -9 -f guest.app")

    async def back() -> bool:
        now = await killed.provider.server_process(killed.container.id)
        return now.split("@")[0] not in ("", killed.server.split("@")[0])

    await until("init has started the server again", back)
    seen = await killed.examine()
    assert (seen.tampered, "is not the process of the start" in seen.detail) == (True, True)

    await asyncio.to_thread(killed.container.kill)
    assert not (await killed.examine()).tampered, "a stopped desktop has no process"
    await asyncio.to_thread(killed.container.remove)
    assert await killed.examine() == Examination()
