"""Fetches the files that a phase downloads, before it begins: the evaluator's own process never has a network.

Bound to the URLs of the task, which its author chose; where they redirect to is checked at each hop. What comes back is
a file in the phase's cache directory, which OSWorld's code takes for its own earlier download.
"""

import asyncio
import os
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from rollbook.config.osworld import EvaluatorSettings, evaluator_settings
from rollbook.errors import EvaluatorError
from rollbook.osworld.cache_files import Download

REDIRECTS = 5
TRIES = 3
CHUNK_BYTES = 2**18
_REDIRECTED = (301, 302, 303, 307, 308)


class DownloadFailed(EvaluatorError):
    """A file of the task could not be fetched; the message names its URL and the fix, if there is one."""


class _Refused(OSError):
    """The address is one of this machine or its networks. An OSError, so that aiohttp hands it on."""


async def fetch_all(downloads: Iterable[Download], directory: Path, on_progress: Callable[[], None]) -> None:
    """Fetch each file into `directory`; raises DownloadFailed for the first that cannot be had.

    `on_progress` is called with each piece. A proxy of the environment is used as by any program here; it resolves the
    names then, and only addresses written as such are checked.
    """
    wanted = list(downloads)
    if not wanted:
        return
    settings = evaluator_settings()
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    # the variable is the one that `requests`, OSWorld's own client, reads
    trust = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE") or None)
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=_PublicResolver(settings.download_private), ssl=trust),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as direct,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust), cookie_jar=aiohttp.DummyCookieJar()
        ) as proxied,
    ):
        for download in wanted:
            await _fetch(download, directory, _Web(direct, proxied, settings, on_progress))


class _Web:
    """Requests under the rules of the settings."""

    def __init__(
        self,
        direct: aiohttp.ClientSession,
        proxied: aiohttp.ClientSession,
        settings: EvaluatorSettings,
        on_progress: Callable[[], None],
    ) -> None:
        self._direct = direct
        self._proxied = proxied
        self._private = settings.download_private
        self._limit = settings.download_bytes
        self.timeout_s = settings.download_timeout_s
        self._on_progress = on_progress

    async def save(self, url: URL, target: Path) -> None:
        """Follow redirects from `url` and write the answer; the file appears under its name once it is whole."""
        for _ in range(REDIRECTS + 1):
            async with self._get(url) as response:
                if response.status in _REDIRECTED and "Location" in response.headers:
                    url = response.url.join(URL(response.headers["Location"]))
                    continue
                response.raise_for_status()
                await self._write(response, target)
                return
        raise DownloadFailed(f"it redirects more than {REDIRECTS} times")

    def _get(self, url: URL) -> Any:
        if url.scheme not in ("http", "https") or not url.host:
            raise DownloadFailed(f"{url} is not an http or https URL")
        # aiohttp asks no resolver about an address that is written as one
        if not self._private and not _is_public_name(url.host):
            raise _Refused(f"{url.host} is an address of this machine or of a private network")
        proxy = _proxy_of(url)
        session = self._proxied if proxy else self._direct
        return session.get(url, allow_redirects=False, proxy=proxy, timeout=aiohttp.ClientTimeout(sock_read=60))

    async def _write(self, response: aiohttp.ClientResponse, target: Path) -> None:
        partial = target.with_name(f".{uuid4().hex}.partial")
        size = 0
        try:
            with partial.open("xb") as file:
                async for piece in response.content.iter_chunked(CHUNK_BYTES):
                    size += len(piece)
                    if size > self._limit:
                        raise DownloadFailed(
                            f"it is longer than {self._limit} bytes; raise ROLLBOOK_DOWNLOAD_BYTES if it should be"
                        )
                    await asyncio.to_thread(file.write, piece)
                    self._on_progress()
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


async def _fetch(download: Download, directory: Path, web: _Web) -> None:
    for number in range(1, TRIES + 1):
        try:
            async with asyncio.timeout(web.timeout_s):
                await web.save(URL(download.url), directory / download.name)
            return
        except TimeoutError:
            problem = f"no end within {web.timeout_s:g} s (ROLLBOOK_DOWNLOAD_TIMEOUT_S)"
        except DownloadFailed as error:
            raise DownloadFailed(f"download of {download.url}: {error}") from error
        except aiohttp.ClientResponseError as error:
            problem = f"HTTP {error.status} {error.message}"
            if error.status < 500 and error.status not in (408, 429):
                break
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if refused := _refusal(error):
                raise DownloadFailed(
                    f"download of {download.url}: {refused}; ROLLBOOK_DOWNLOAD_PRIVATE=1 allows it"
                ) from error
            problem = str(error) or type(error).__name__
        if number < TRIES:
            await asyncio.sleep(number)
    raise DownloadFailed(f"download of {download.url}: {problem}")


def _refusal(error: BaseException | None) -> _Refused | None:
    """The refusal that an error of aiohttp wraps."""
    while error is not None and not isinstance(error, _Refused):
        error = getattr(error, "os_error", None) or error.__cause__
    return error


class _PublicResolver(AbstractResolver):
    """Resolves names to public addresses only, and connects to those: a name cannot change between look and use."""

    def __init__(self, private: bool) -> None:
        self._inner = aiohttp.ThreadedResolver()
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of the host, if each may be asked."""
        results = await self._inner.resolve(host, port, family)
        for result in results:
            if not self._private and not _is_public(result["host"]):
                raise _Refused(f"{host} has the address {result['host']} of this machine or of a private network")
        return results

    async def close(self) -> None:
        """Nothing is held."""
        await self._inner.close()


def _is_public_name(host: str) -> bool:
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return False
    try:
        return _is_public(host)
    except ValueError:
        pass
    try:  # the C library also reads `127.1`, `0x7f000001` and `2130706433` as addresses
        return _is_public(socket.inet_ntoa(socket.inet_aton(host)))
    except OSError:
        return True


def _is_public(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address):
        # an IPv4 address in IPv6 clothes is judged as what it is
        parsed = parsed.ipv4_mapped or parsed.sixtofour or parsed
    return parsed.is_global and not parsed.is_multicast


def _proxy_of(url: URL) -> str | None:
    host = url.host or ""
    if urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(url.scheme) or proxies.get("all")
