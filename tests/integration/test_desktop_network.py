"""The network of a desktop, seen from inside: root in the guest reaches neither its host nor another desktop."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from ipaddress import IPv4Interface

import docker
import httpx
import pytest

from rollbook.guest.http import GUEST_PORT
from rollbook.sandboxes.docker.provider import DockerProvider
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, SandboxHandle, SandboxSpec

PROBE = """
import json, socket, sys
gateway, neighbour, tcp, udp = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def outcome(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "done"
def stream(address, port):
    return lambda: socket.create_connection((address, port), timeout=1).close()
def datagram(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"from the guest", (address, udp))
print(json.dumps({
    "raw packets": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "raw ip": outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
    "raw ip6": outcome(lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)),
    "host": outcome(stream(gateway, tcp)),
    "host datagram": outcome(lambda: datagram(gateway)),
    "neighbour": outcome(stream(neighbour, 5000)),
    "metadata": outcome(stream("169.254.169.254", 80)),
    "addresses6": [line.split()[-1] for line in open("/proc/net/if_inet6")],
}))
"""

Probe = Callable[[SandboxHandle, SandboxHandle], dict[str, object]]


class Listener:
    """TCP and UDP services of the host, on every address."""

    def __init__(self) -> None:
        self.tcp, self.udp = socket.create_server(("0.0.0.0", 0)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("0.0.0.0", 0))
        self.heard: list[str] = []
        for name, read in (("tcp", self.tcp.accept), ("udp", lambda: self.udp.recvfrom(100))):
            threading.Thread(target=self._listen, args=(name, read), daemon=True).start()

    def _listen(self, name: str, read: Callable[[], object]) -> None:
        try:
            while True:
                read()
                self.heard.append(name)
        except OSError:
            return

    def close(self) -> None:
        for service in (self.tcp, self.udp):
            with suppress(OSError):  # UDP is not connected; the call wakes the thread all the same
                service.shutdown(socket.SHUT_RDWR)
            service.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as listener:
        yield listener


@pytest.fixture
async def provider(deployment_id: str, desktop_image: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider(f"{deployment_id}-net", max_desktops=4, quiet_s=0.1)
    yield provider
    await provider.remove_all({LABEL_DEPLOYMENT: provider.deployment})
    await provider.close()


def run_as_root(client: docker.DockerClient, handle: SandboxHandle, *arguments: str) -> dict[str, object]:
    """Run the probe in a desktop as its root, with the rights that sudo gives there."""
    code, output = client.containers.get(handle.sandbox_id).exec_run(["python3", "-c", PROBE, *arguments], user="root")
    assert isinstance(output, bytes)
    assert code == 0, output
    return dict(json.loads(output))


def addresses(client: docker.DockerClient, handle: SandboxHandle) -> tuple[str, str]:
    """(address of the bridge on the host, own address) of a desktop."""
    (network,) = client.containers.get(handle.sandbox_id).attrs["NetworkSettings"]["Networks"].values()
    subnet = IPv4Interface(f"{network['IPAddress']}/{network['IPPrefixLen']}").network
    return str(next(subnet.hosts())), network["IPAddress"]


@pytest.mark.parametrize("egress", ["none", "open"])
async def test_root_in_the_guest_reaches_neither_host_nor_neighbour(
    egress: str, provider: DockerProvider, desktop_image: str, docker_client: docker.DockerClient, listener: Listener
) -> None:
    ours, neighbour = [
        await provider.create(
            SandboxSpec.model_validate(
                {"deployment": provider.deployment, "rollout": f"b/os/{egress}/{index}", "attempt": 1, "execution": "e"}
                | {"image": desktop_image, "egress": egress, "vnc_port": provider.vnc_port}
            )
        )
        for index in range(2)
    ]
    assert (ours.isolation, neighbour.isolation) == ("full", "full")
    gateway, _ = addresses(docker_client, ours)
    tcp, udp = (str(service.getsockname()[1]) for service in (listener.tcp, listener.udp))
    seen = run_as_root(docker_client, ours, gateway, addresses(docker_client, neighbour)[1], tcp, udp)
    assert {name: seen[name] for name in ("raw packets", "raw ip", "raw ip6")} == {
        "raw packets": "PermissionError",
        "raw ip": "PermissionError",
        "raw ip6": "PermissionError",
    }
    for place in ("host", "neighbour", "metadata"):
        assert seen[place] != "done", place
    assert listener.heard == [], "nothing of the guest arrives at services of the host"
    assert set(seen["addresses6"]) <= {"lo"}, "no IPv6 beside loopback"  # type: ignore[call-overload]
    # and the way in still works
    endpoint = await provider.endpoint(ours.sandbox_id, GUEST_PORT)
    async with httpx.AsyncClient(base_url=endpoint.url) as http:
        assert (await http.get("/screenshot")).status_code == 200


async def test_the_listener_would_hear_a_desktop_without_rules(
    provider: DockerProvider, desktop_image: str, docker_client: docker.DockerClient, listener: Listener
) -> None:
    """Proof that the test above can fail."""
    container = docker_client.containers.run(
        desktop_image, entrypoint=["sleep", "60"], detach=True, labels={"rollbook.deployment": provider.deployment}
    )
    container.reload()
    handle = SandboxHandle.model_validate(
        {"provider": "docker", "sandbox_id": container.id, "key": "k", "created_at": "2026-01-01T00:00:00Z"}
        | {"vnc_port": 8006}
    )
    gateway, own = addresses(docker_client, handle)
    tcp, udp = (str(service.getsockname()[1]) for service in (listener.tcp, listener.udp))
    seen = run_as_root(docker_client, handle, gateway, own, tcp, udp)
    assert (seen["host"], seen["raw packets"]) == ("done", "done")
    assert "tcp" in listener.heard
