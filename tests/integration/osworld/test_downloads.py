"""Files of a task are fetched before the phase, which itself has no network."""

import asyncio
import gzip
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from aiohttp import web

from rollbook.osworld.cache_files import Download
from rollbook.osworld.fetcher import DownloadFailed, fetch_all
from rollbook.osworld.runner import cache_dir
from tests.doubles.http_guest import HttpGuest
from tests.support.osworld import TASK_ID, Run, task, vm_file


@pytest.fixture
async def server() -> AsyncIterator[HttpGuest]:
    """A web server with the task's files."""
    async with HttpGuest() as server:
        yield server


@pytest.fixture
def _private_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_DOWNLOAD_PRIVATE", "1")


async def fetch(url: str, directory: Path) -> bytes:
    await fetch_all([Download(url, "file")], directory, lambda: None)
    return await asyncio.to_thread((directory / "file").read_bytes)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.usefixtures("_private_allowed")
async def test_an_evaluation_that_downloads_has_no_network(run: Run, guest: HttpGuest, server: HttpGuest) -> None:
    server.routes["/suite.py"] = b"import agent\ndef test():\n    return agent.reached == []\n"
    guest.routes["/file"] = _PROBE.format(port=server.port).encode()
    url = f"{server.url}/suite.py"
    suite = task(
        func="check_python_file_by_test_suite",
        result=vm_file("agent.py"),
        expected={"type": "cloud_file", "path": url, "dest": "suite.py"},
    )
    result = await run("evaluate", suite)
    assert (result.status, result.value, result.isolation) == ("ok", 1.0, "bwrap"), result
    assert result.downloads == (url,)
    assert server.paths() == ["/suite.py"]


_PROBE = """
import socket
reached = [name for _, name in socket.if_nameindex() if name != "lo"]
for address in (("127.0.0.1", {port}), ("192.0.2.1", 80), ("1.1.1.1", 53)):
    try:
        socket.create_connection(address, timeout=1).close()
        reached.append(address)
    except OSError:
        pass
"""


@pytest.mark.usefixtures("_private_allowed")
async def test_a_download_of_setup_reaches_the_guest(
    run: Run, guest: HttpGuest, server: HttpGuest, tmp_path: Path
) -> None:
    server.routes["/a%20deck.pptx"] = b"slides"  # as the task writes it: the URL goes out unchanged
    server.routes["/a deck.pptx"] = b"slides"
    guest.routes["/setup/upload"] = {"ok": True}
    url = f"{server.url}/a%20deck.pptx?download=true"
    files = [{"url": url, "path": "/home/user/deck.pptx"}]
    result = await run("prepare", {**task(), "config": [{"type": "download", "parameters": {"files": files}}]})
    assert (result.status, result.downloads) == ("ok", (url,)), result
    assert server.paths() == ["/a%20deck.pptx?download=true"]
    assert any(b"slides" in body for _, path, _, body in guest.seen if path == "/setup/upload")
    cached = cache_dir(tmp_path / "attempt", TASK_ID) / f"{uuid5(NAMESPACE_URL, url)}_deck.pptx"
    assert await asyncio.to_thread(cached.read_bytes) == b"slides"


async def test_a_file_that_cannot_be_had_ends_the_phase_before_it_begins(run: Run, guest: HttpGuest) -> None:
    wanting = task(expected={"type": "cloud_file", "path": f"{guest.url}/gold.txt", "dest": "gold.txt"})
    result = await run("evaluate", wanting)
    assert (result.status, result.value, result.error_type) == ("failed", None, "DownloadFailed")
    assert "ROLLBOOK_DOWNLOAD_PRIVATE=1 allows it" in result.error_message
    assert not result.guest_failed
    assert guest.paths() == [], "nothing was asked of the guest"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254"],
)
async def test_addresses_of_this_machine_and_its_networks_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(DownloadFailed, match="ROLLBOOK_DOWNLOAD_PRIVATE"):
        await fetch(f"http://{host}:9/secret", tmp_path)


async def test_a_public_name_of_a_private_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(DownloadFailed, match=r"files\.example\.org has the address 127\.0\.0\.1"):
        await fetch("http://files.example.org:9/secret", tmp_path)


@pytest.mark.usefixtures("_private_allowed")
async def test_redirects_are_followed_for_a_while(server: HttpGuest, tmp_path: Path) -> None:
    async def on(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/file"})

    async def around(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/around"})

    async def out(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "file:///etc/passwd"})

    server.routes |= {"/on": on, "/around": around, "/out": out, "/file": b"gold"}
    assert await fetch(f"{server.url}/on", tmp_path) == b"gold"
    with pytest.raises(DownloadFailed, match="redirects more than 5 times"):
        await fetch(f"{server.url}/around", tmp_path)
    with pytest.raises(DownloadFailed, match="is not an http or https URL"):
        await fetch(f"{server.url}/out", tmp_path)


@pytest.mark.usefixtures("_private_allowed")
async def test_a_download_is_bounded_and_leaves_nothing_half(
    server: HttpGuest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def packed(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=gzip.compress(bytes(5_000_000)), headers={"Content-Encoding": "gzip"})

    monkeypatch.setenv("ROLLBOOK_DOWNLOAD_BYTES", "1000000")
    server.routes["/packed"] = packed
    with pytest.raises(DownloadFailed, match="longer than 1000000 bytes; raise ROLLBOOK_DOWNLOAD_BYTES"):
        await fetch(f"{server.url}/packed", tmp_path)
    with pytest.raises(DownloadFailed, match="HTTP 404"):
        await fetch(f"{server.url}/missing", tmp_path)
    assert await asyncio.to_thread(os.listdir, tmp_path) == []
    assert server.paths() == ["/packed", "/missing"], "neither is worth a second try"
