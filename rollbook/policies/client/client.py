"""The chat-completions client: one bounded pool per endpoint profile and process. Nothing is streamed or repeated here.

Who repeats a call, and which, is decided where parse retries and contexts are known: the policy.
"""

import asyncio
import hashlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from rollbook.config.settings import Settings
from rollbook.errors import CallError, ConfigError, ModelTimeout, OutOfTime, TransportFailed
from rollbook.policies.client.faults import refusal
from rollbook.policies.client.profile import EndpointProfile, load_profiles
from rollbook.policies.client.reply import Asked, ChatReply, read_reply
from rollbook.policies.client.request import (
    OWN_PREFIX,
    ChatRequest,
    correlation_headers,
    digest_of,
    request_body,
    serialise,
    with_media,
)
from rollbook.redaction import redact, redact_bytes
from rollbook.workclock import TICK_S, WorkClock

KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn closes an idle connection: a request must not meet one that is just closing."""

LOOK_S = 10.0
LOOK_TIMEOUT_S = 10.0
"""Pause between two looks at a server that nothing is sent to, and the time limit of one."""

GATEWAY = frozenset({502, 503, 504})
"""Answers of a gateway before a server that is away."""

LARGEST_REPLY = 64 * 1024 * 1024
"""Bytes of an answer that are read, and kept: a bound for the worker's memory, far above any model's answer."""

ECHOED = tuple(OWN_PREFIX + name for name in ("execution-id", "rollout-key", "attempt-index", "step", "parse-attempt"))
"""Correlation headers which an answer may echo, but only as they were sent."""


@dataclass(frozen=True)
class Exchanged:
    """A call that was made, and what the server answered, unread."""

    status: int
    headers: Mapping[str, str]
    """As the server sent them."""
    raw: bytes
    asked: Asked
    sent_headers: Mapping[str, str]
    """The correlation of the call."""
    queued_s: float
    latency_s: float

    def reply(self) -> ChatReply:
        """Read the answer. Raises CallError when it is not a completed call; the error keeps the body."""
        if self.status != 200:
            raise refusal(self.status, self.raw, self.headers, self.asked.max_output_tokens, self.asked.model)
        _same_call(self.sent_headers, self.headers, self.raw)
        return read_reply(self.raw, self.asked, queued_s=self.queued_s, latency_s=self.latency_s)


class ModelClient:
    """Calls one endpoint. Safe for concurrent use within an event loop."""

    def __init__(self, profile: EndpointProfile) -> None:
        self.profile = profile
        self._slots = asyncio.Semaphore(profile.max_connections)
        self._http = _http_client(profile)
        self._look_at, self._trouble = 0.0, ""

    async def chat(self, request: ChatRequest) -> ChatReply:
        """One completion, read: `send`, then `Exchanged.reply`; raises as they do."""
        return (await self.send(request)).reply()

    async def send(self, request: ChatRequest) -> Exchanged:
        """Make one call. What the server answered is not judged here: once it is there, nothing may lose it.

        Raises ModelTimeout after `request.timeout_s`, TransportFailed when there is no whole answer, InvalidInput for
        a request that cannot be sent, OutOfTime when no connection was free within `request.queue_s`. Waiting for one
        is not part of the deadline.
        """
        body = request_body(request, self.profile.api)
        kept = serialise(body)
        sent = await asyncio.to_thread(lambda: serialise(with_media(body, request.media)))
        asked = Asked(
            model=request.model,
            kept=kept,
            digest=digest_of(kept),
            sent_digest=hashlib.sha256(sent).hexdigest(),
            max_output_tokens=request.sampling.max_output_tokens,
        )
        headers = correlation_headers(request.correlation)
        asked_at = time.monotonic()
        async with self._slot(request.queue_s):
            queued_s = time.monotonic() - asked_at
            async with WorkClock() as clock:
                status, answered, raw = await self._exchange(sent, headers, request.timeout_s)
        return Exchanged(status, answered, raw, asked, headers, queued_s=queued_s, latency_s=clock.seconds)

    @asynccontextmanager
    async def _slot(self, queue_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(queue_s):
                await self._slots.acquire()
        except TimeoutError:
            where = f"endpoint {self.profile.name!r}: max_connections {self.profile.max_connections}"
            raise OutOfTime(f"{where}: none was free within {queue_s:g} s") from None
        try:
            yield
        finally:
            self._slots.release()

    async def models(self, timeout_s: float = 30.0) -> list[str]:
        """Ids of the models that the endpoint lists; raises as `chat` does."""
        async with self._deadline(timeout_s):
            answer = await self._http.get(f"{self.profile.base_url}/models")
        if answer.status_code != 200:
            raise refusal(answer.status_code, answer.content, answer.headers)
        try:
            return [str(entry["id"]) for entry in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise TransportFailed("/models did not answer with a list of models", body=answer.content) from None

    async def trouble(self) -> str:
        """Words about a server that is away; empty when it answers, whatever it says. Asks every `LOOK_S` seconds."""
        if time.monotonic() >= self._look_at:
            self._trouble = ""
            try:
                await self.models(LOOK_TIMEOUT_S)
            except (TransportFailed, ModelTimeout) as error:
                silent = isinstance(error, ModelTimeout) or (error.status is None and not error.body)
                if silent or getattr(error, "status", None) in GATEWAY:
                    self._trouble = redact(str(error))
            except CallError:
                pass
            self._look_at = time.monotonic() + LOOK_S
        return self._trouble

    async def close(self) -> None:
        """Close the pool."""
        await self._http.aclose()

    async def _exchange(
        self, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, httpx.Headers, bytes]:
        url = f"{self.profile.base_url}/chat/completions"
        came = bytearray()
        try:
            async with (
                self._deadline(timeout_s),
                self._http.stream(
                    "POST", url, content=body, headers={**headers, "content-type": "application/json"}
                ) as answer,
            ):
                await _receive(answer, came)
                return answer.status_code, answer.headers, bytes(came)
        except TransportFailed as error:
            error.body = error.body or redact_bytes(bytes(came))  # half a reply is evidence too
            raise

    @asynccontextmanager
    async def _deadline(self, timeout_s: float) -> AsyncIterator[None]:
        where = f"endpoint {self.profile.name!r} at {self.profile.base_url}"
        clock = WorkClock()
        try:
            async with clock, asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            if clock.seconds < timeout_s - TICK_S:  # the server may have answered in time
                raise TransportFailed(f"{where}: this worker was suspended during the call") from None
            raise ModelTimeout(f"{where}: no reply within {timeout_s:g} s") from None
        except httpx.ConnectTimeout:
            seconds = self.profile.connect_timeout_s
            raise TransportFailed(f"{where}: no connection within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            said = str(error) or type(error).__name__
            raise TransportFailed(f"{where}: {type(error).__name__}: {redact(said)}") from None


def _http_client(profile: EndpointProfile) -> httpx.AsyncClient:
    headers = {name: value.get_secret_value() for name, value in profile.headers.items()}
    if profile.api_key is not None:
        headers["authorization"] = f"Bearer {profile.api_key.get_secret_value()}"
    try:
        verify = True if profile.ca_file is None else ssl.create_default_context(cafile=str(profile.ca_file))
    except OSError as error:
        raise ConfigError(f"endpoints.{profile.name}.ca_file: {profile.ca_file}: {error}") from None
    return httpx.AsyncClient(
        headers=headers,
        verify=verify,
        follow_redirects=False,
        # Our own deadline ends a call; only connecting has a limit of its own.
        timeout=httpx.Timeout(None, connect=profile.connect_timeout_s),
        limits=httpx.Limits(
            max_connections=profile.max_connections,
            max_keepalive_connections=profile.max_connections,
            keepalive_expiry=KEEP_ALIVE_S,
        ),
    )


async def _receive(answer: httpx.Response, came: bytearray) -> None:
    async for chunk in answer.aiter_bytes():
        came += chunk
        if len(came) > LARGEST_REPLY:
            del came[LARGEST_REPLY:]
            said = f"the reply is longer than {LARGEST_REPLY} bytes"
            raise TransportFailed(said, status=answer.status_code, body=bytes(came))


def _same_call(sent: Mapping[str, str], answered: Mapping[str, str], raw: bytes) -> None:
    """An answer that names another call than ours was mixed up on its way: it must not become ours."""
    for name in ECHOED:
        if name in sent and name in answered and answered[name] != sent[name]:
            said = f"the answer belongs to another call: {name} is not the one that was sent"
            raise TransportFailed(said, status=200, body=raw)


class ModelClients:
    """The clients of this process by profile name, opened when first asked for."""

    def __init__(self, profiles: Mapping[str, EndpointProfile] | None = None) -> None:
        self._profiles = dict(profiles or {})
        self._open: dict[str, ModelClient] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> "ModelClients":
        """Clients for the profiles of `ROLLBOOK_ENDPOINTS_FILE`; raises ConfigError that names the field."""
        return cls(load_profiles(settings))

    @property
    def names(self) -> list[str]:
        """Names of the known profiles."""
        return sorted(self._profiles)

    def get(self, name: str) -> ModelClient:
        """The client of a profile; raises ConfigError that names those this worker has."""
        if name not in self._open:
            profile = self._profiles.get(name)
            if profile is None:
                known = ", ".join(self.names) or "none"
                raise ConfigError(
                    f"this worker has no endpoint profile {name!r} (it has: {known}); add it to ROLLBOOK_ENDPOINTS_FILE"
                )
            self._open[name] = ModelClient(profile)
        return self._open[name]

    async def close(self) -> None:
        """Close every pool."""
        for client in self._open.values():
            await client.close()
        self._open.clear()
