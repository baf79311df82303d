"""The outcome of each exchange with a guest: the evidence that an evaluator's result rests on real answers."""

import json
import ssl
from collections import Counter, deque
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TextIO

import aiohttp

from rollbook.guest.http import Control

PATH_LIMIT = 300
"""Characters of a path (query included) that are kept."""


class Outcome(StrEnum):
    """The end of one exchange."""

    OK = "ok"  # answered below 400; a WebSocket that was closed in order
    HTTP_4XX = "http_4xx"  # answered 400..499: a fact about the guest
    HTTP_5XX = "http_5xx"  # answered 500 or above
    REFUSED = "refused"  # nothing listens there
    UNREACHABLE = "unreachable"  # no route, no name, TLS failure
    RESET = "reset"  # the connection broke before the reply was complete
    TIMEOUT = "timeout"  # no byte came for too long
    TOO_LONG = "too_long"  # more bytes came than any reply may have; broken off
    ABANDONED = "abandoned"  # the client gave up before the reply was complete
    REDIRECTED = "redirected"  # answered 300..399: not passed on, since it would lead the client elsewhere
    GARBLED = "garbled"  # answered completely, but in a form that this route of a guest never has
    BROKEN = "broken"  # the forwarder itself failed


ANSWERED = frozenset({Outcome.OK, Outcome.HTTP_4XX, Outcome.HTTP_5XX})
"""Outcomes with a complete and well-formed reply."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its reply, or one WebSocket connection from upgrade to close."""

    port: int
    """Guest port, for instance 5000."""
    method: str
    path: str
    outcome: Outcome
    status: int | None
    """HTTP status of the guest; None when no reply began."""
    started: float
    """Unix time in seconds."""
    duration_s: float
    received_bytes: int
    """Bytes of reply body (WebSocket: of messages from the guest)."""
    detail: str = ""
    """The error text; empty when answered."""
    killed: str = ""
    """The reason for which the guest killed the command that it was asked to run; empty when it did not."""
    control: Control = ""
    """The end of its control exchange."""
    absent: str = ""
    """The program that the guest was asked to start and does not have."""

    @property
    def answered(self) -> bool:
        """True when a complete and well-formed reply came."""
        return self.outcome in ANSWERED

    @property
    def delivery_failed(self) -> bool:
        """True when the guest did not answer: no usable reply, or one of a gateway (502, 503, 504).

        Not if it failed at this file or command only.
        """
        return self.control != "passed" and (not self.answered or self.status in (502, 503, 504))

    @property
    def guest_broke(self) -> bool:
        """True when the guest does answer, and cannot do what every sound guest can."""
        return self.control == "refused"


class ExchangeLog:
    """Counts of all exchanges, the newest failures, and all lines in a file if one is given.

    Memory is bounded by `keep`; the counts are exact. A failure is everything but `ok`.
    """

    def __init__(self, keep: int = 200, file: TextIO | None = None) -> None:
        self.counts: Counter[tuple[int, Outcome]] = Counter()
        self.undelivered: Counter[int] = Counter()
        self.unexplained: Counter[int] = Counter()
        """Per port: replies with 500 or above that are not a fact about one file or command."""
        self.broken: deque[Exchange] = deque(maxlen=keep)
        self.failures: deque[Exchange] = deque(maxlen=keep)
        self.killed: deque[Exchange] = deque(maxlen=keep)
        self.absent: deque[Exchange] = deque(maxlen=keep)
        self._file = file
        self._closed = False

    def close(self) -> None:
        """Take no more: what ends from now on was ended by us, not by the guest."""
        self._closed = True

    def add(self, exchange: Exchange) -> None:
        """Record one exchange."""
        if self._closed:
            return
        self.counts[exchange.port, exchange.outcome] += 1
        if exchange.outcome is not Outcome.OK:
            self.failures.append(exchange)
        if exchange.killed:
            self.killed.append(exchange)
        if exchange.absent:
            self.absent.append(exchange)
        if exchange.guest_broke:
            self.broken.append(exchange)
        if exchange.delivery_failed:
            self.undelivered[exchange.port] += 1
        if exchange.outcome is Outcome.HTTP_5XX and exchange.control != "passed":
            self.unexplained[exchange.port] += 1
        if self._file is not None:
            self._file.write(json.dumps(asdict(exchange)) + "\n")

    def count(self, port: int, *outcomes: Outcome) -> int:
        """Count the exchanges with `port` that ended in one of `outcomes`, or in any if none is named."""
        return sum(n for (p, outcome), n in self.counts.items() if p == port and (not outcomes or outcome in outcomes))

    def by_port(self) -> dict[int, dict[str, int]]:
        """Counts as `{port: {outcome: n}}`."""
        table: dict[int, dict[str, int]] = {}
        for (port, outcome), n in sorted(self.counts.items()):
            table.setdefault(port, {})[outcome.value] = n
        return table


def failure_outcome(error: BaseException, connected: bool = False) -> Outcome:
    """Map an error of the HTTP client to an outcome; `connected`: a reply had begun."""
    if isinstance(error, TimeoutError):
        return Outcome.TIMEOUT
    if not connected and isinstance(error, aiohttp.ClientConnectorError | ssl.SSLError):
        refused = isinstance(getattr(error, "os_error", None), ConnectionRefusedError)
        return Outcome.REFUSED if refused else Outcome.UNREACHABLE
    return Outcome.RESET


def stay_here() -> aiohttp.TraceConfig:
    """Keep the HTTP client from following redirects of WebSocket upgrades, for which it has no option."""

    async def refuse(_session: object, _context: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        params.response.close()
        raise Redirected(params.response.status, f"to {params.response.headers.get('Location', 'nowhere')}")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


class Redirected(aiohttp.ClientError):
    """The guest answered a WebSocket upgrade with another address."""

    def __init__(self, status: int, where: str) -> None:
        super().__init__(where)
        self.status = status


def refused_upgrade(status: int) -> Outcome:
    """Map the status of a WebSocket upgrade, other than 101, to an outcome."""
    if 300 <= status < 400:
        return Outcome.REDIRECTED
    return answered(status) if status >= 400 else Outcome.RESET


def answered(status: int) -> Outcome:
    """Map the status of a complete reply to an outcome."""
    if status >= 500:
        return Outcome.HTTP_5XX
    return Outcome.HTTP_4XX if status >= 400 else Outcome.OK
