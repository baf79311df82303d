"""The artifact server: what it serves, and to whom it does not."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from rollbook.artifacts import ArtifactStore
from rollbook.stack.processes import free_port
from rollbook.stack.servers import ArtifactServer
from tests.support.servers import scratch_directory

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
PAGE = b"<html><script>alert(document.domain)</script></html>"


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[tuple[ArtifactServer, str, str]]:
    """A running server and the digests of a picture and of a page."""
    with scratch_directory() as directory:
        url = (directory / "artifacts").as_uri()
        store = ArtifactStore.open(url)
        png, page = await store.put(PNG, "image/png"), await store.put(PAGE, "text/html")
        server = ArtifactServer(url, directory / "artifacts.log", free_port())
        await server.start()
        yield server, png.sha256, page.sha256
        await server.stop()


async def _get(server: ArtifactServer, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, base_url=server.base_url) as client:
        return await client.request(method, path, headers=headers)


async def test_an_artifact_arrives_whole_with_its_type(served: tuple[ArtifactServer, str, str]) -> None:
    server, png, _ = served
    answer = await _get(server, f"/artifacts/{png}")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, PNG, "image/png")


async def test_what_a_desktop_made_is_never_a_page(served: tuple[ArtifactServer, str, str]) -> None:
    server, _, page = served
    answer = await _get(server, f"/artifacts/{page}")
    assert answer.content == PAGE
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1.evil.example:{port}"]
)
async def test_another_host_name_is_refused(served: tuple[ArtifactServer, str, str], host: str) -> None:
    server, png, _ = served
    answer = await _get(server, f"/artifacts/{png}", Host=host.format(port=server.port))
    assert answer.status_code == 421
    assert PNG not in answer.content


async def test_localhost_is_the_same_machine(served: tuple[ArtifactServer, str, str]) -> None:
    server, png, _ = served
    assert (await _get(server, f"/artifacts/{png}", Host=f"localhost:{server.port}")).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/artifacts", "/artifacts/", "/artifacts/" + "0" * 64, "/artifacts/%2e%2e%2fartifacts.log", "/artifacts/ab"],
)
async def test_nothing_is_listed_and_nothing_else_is_found(served: tuple[ArtifactServer, str, str], path: str) -> None:
    server, _, _ = served
    assert (await _get(server, path)).status_code == 404


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
async def test_it_is_read_only(served: tuple[ArtifactServer, str, str], method: str) -> None:
    server, png, _ = served
    assert (await _get(server, f"/artifacts/{png}", method=method)).status_code == 405


async def test_a_damaged_artifact_is_not_served(served: tuple[ArtifactServer, str, str]) -> None:
    server, _, _ = served
    root = Path(server.store_url.removeprefix("file://"))
    store = ArtifactStore.open(server.store_url)
    ref = await store.put(b"soon damaged", "text/plain")
    (root / ref.sha256[:2] / ref.sha256).write_bytes(b"damaged")
    assert (await _get(server, f"/artifacts/{ref.sha256}")).status_code == 404
