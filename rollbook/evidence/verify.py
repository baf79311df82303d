"""Proof that every prompt follows from what was recorded: each is rendered again and compared hash by hash.

Nothing of a stored prompt is read for that: the request is made anew from contract, task, screenshots and the calls
before it. The reply is parsed again too, from its raw bytes.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rollbook.errors import ArtifactError, InvalidInput, LedgerConflict, ModelCallFailed
from rollbook.ledger.recorded import Recorded, Row
from rollbook.ledger.storable import storable, told
from rollbook.policies.agent import OVERFLOW, Agent, PlannedCall, Screen, Task
from rollbook.policies.client import ChatReply, ChatRequest
from rollbook.policies.client.reply import Asked, read_reply
from rollbook.policies.client.request import request_body, serialise
from rollbook.policies.model import parsed_of, said_of, tokens_of
from rollbook.policies.screen import seen
from rollbook.redaction import redact_bytes


class Artifacts(Protocol):
    """The artifact store, as far as a proof needs it."""

    async def get(self, sha256: str) -> bytes:
        """Bytes by digest; raises ArtifactError."""
        ...


@dataclass(frozen=True)
class Mismatch:
    """Something that does not follow from the records."""

    step: int
    parse_attempt: int
    what: str
    detail: str


@dataclass(frozen=True)
class Proof:
    """What was checked of an attempt."""

    rollout_key: str
    attempt_index: int
    calls: int
    prompts_equal: int
    """Prompts that were rendered again, with the same digest."""
    replies_equal: int
    """Replies that were read again, to the same actions."""
    images_equal: int
    mismatches: list[Mismatch]

    @property
    def ok(self) -> bool:
        """Everything follows from the records."""
        return not self.mismatches

    def to_json(self) -> dict[str, Any]:
        """As printed with `--json`."""
        return {"ok": self.ok, **asdict(self)}


async def verify(attempt: Recorded, artifacts: Artifacts) -> Proof:
    """Check every call of an attempt; raises ConfigError when this version lacks the contract's protocol."""
    work = _Verification(attempt, artifacts)
    for row in attempt.calls:
        await work.check(row)
    return work.proof()


class _Verification:
    def __init__(self, attempt: Recorded, artifacts: Artifacts) -> None:
        self._attempt = attempt
        self._artifacts = artifacts
        self._calls = attempt.stored_calls
        self._screens = {turn["step"]: turn["screenshot_sha256"] for turn in attempt.turns}
        is_model = attempt.contract["policy"]["kind"] == "openai"
        self._agent = Agent(attempt.contract) if is_model else None
        self._task = Task(attempt.key, attempt.attempt_index, str(attempt.rollout["document"]["instruction"]))
        self._mismatches: list[Mismatch] = []
        self._equal = {"prompt": 0, "reply": 0, "image": 0}

    def proof(self) -> Proof:
        return Proof(
            self._attempt.key,
            self._attempt.attempt_index,
            len(self._calls),
            self._equal["prompt"],
            self._equal["reply"],
            self._equal["image"],
            self._mismatches,
        )

    async def check(self, row: Row) -> None:
        def note(what: str, detail: str) -> None:
            self._mismatches.append(Mismatch(row["step"], row["parse_attempt"], what, detail))

        if self._agent is None:
            await self._check_scripted(row, note)
            return
        try:
            screen = await self._screen(row, note)
            before = [call for call in self._calls if (call.step, call.parse_attempt) < _place(row)]
            planned = self._agent.next_call(self._task, row["step"], screen, before)
            self._check_prompt(self._agent, row, planned, note)
            await self._check_reply(self._agent, row, planned, screen, note)
        except (ArtifactError, InvalidInput, LedgerConflict, ModelCallFailed, ValueError, KeyError) as error:
            note("evidence", f"{type(error).__name__}: {error}")

    async def _check_scripted(self, row: Row, note: Callable[[str, str], None]) -> None:
        """A policy without prompts: what it said must still be there."""
        try:
            if row["response_sha256"] is not None:
                await self._artifacts.get(row["response_sha256"])
            self._equal["reply"] += 1
        except ArtifactError as error:
            note("response", str(error))

    async def _screen(self, row: Row, note: Callable[[str, str], None]) -> Screen:
        """The screen of the turn before, scaled again."""
        sha256 = self._screens.get(row["step"] - 1)
        if sha256 is None:
            raise LedgerConflict(f"turn {row['step'] - 1} is missing")
        assert self._agent is not None
        png = await self._artifacts.get(sha256)
        pixels = self._agent.options.max_image_pixels
        screen, _ = await asyncio.to_thread(seen, png, pixels)
        kept = (row["telemetry"] or {}).get("image")
        if screen.to_json() != kept or screen.media.sha256 != row["image_sha256"]:
            note("image", f"the screen as sent is {screen.to_json()}, recorded is {kept}")
            return Screen.from_json(kept) if kept else screen
        self._equal["image"] += 1
        return screen

    def _check_prompt(self, agent: Agent, row: Row, planned: PlannedCall, note: Callable[[str, str], None]) -> None:
        if planned.number != row["parse_attempt"]:
            note("parse_attempt", f"the next call is number {planned.number}")
        telemetry = row["telemetry"] or {}
        request = ChatRequest(agent.model, planned.messages, tools=planned.tools, sampling=planned.sampling)
        digest = _digest(serialise(request_body(request, telemetry["api"])))
        if digest != row["prompt_sha256"]:
            note("prompt", f"rendered again it has digest {digest}, as sent it had {row['prompt_sha256']}")
        else:
            self._equal["prompt"] += 1
        if telemetry["history"] != planned.plan.telemetry:
            note("history", f"the plan is {planned.plan.telemetry}, recorded is {telemetry['history']}")

    async def _check_reply(
        self, agent: Agent, row: Row, planned: PlannedCall, screen: Screen, note: Callable[[str, str], None]
    ) -> None:
        if row["failure_kind"] == OVERFLOW:
            wanted = ("model_context_overflow" if planned.smaller is None else None, planned.smaller)
            found = (row["policy_stop_reason"], row["telemetry"].get("next_max_images"))
            if found != wanted:
                note("overflow", f"it leads to {wanted}, recorded is {found}")
        if not row["completed"]:
            return
        reply = await self._reply(row)
        parsed = parsed_of(agent.protocol, reply, screen)
        failed = parsed.failure_kind is not None
        wanted_row = {
            "actions": storable([] if failed else parsed.actions),
            "terminal_action": None if failed else parsed.terminal_action,
            "policy_stop_reason": parsed.stop_reason if planned.last_sample else None,
            "failure_kind": parsed.failure_kind,
            "parse_error": told(parsed.error) if failed else None,
            "finish_reason": told(reply.finish_reason),
            "said": told(said_of(reply, parsed)),
        }
        different = [name for name, value in wanted_row.items() if value != row[name]]
        for name in different:
            note(name, f"read again it is {wanted_row[name]!r:.200}, recorded is {row[name]!r:.200}")
        tokens = tokens_of(reply)
        digest = None if tokens is None else _digest(tokens)
        if digest != row["tokens_sha256"]:
            note("tokens", f"the raw reply's arrays have digest {digest}, recorded is {row['tokens_sha256']}")
        elif not different:
            self._equal["reply"] += 1

    async def _reply(self, row: Row) -> ChatReply:
        raw = await self._artifacts.get(row["response_sha256"])
        asked = Asked(model=row["model_name"], kept=b"", digest="", sent_digest="")
        return read_reply(raw, asked, queued_s=0.0, latency_s=0.0)


def _digest(text: bytes) -> str:
    """Digest of a text as it is kept: without the secrets of this deployment."""
    return hashlib.sha256(redact_bytes(text)).hexdigest()


def _place(row: Row) -> tuple[int, int]:
    return row["step"], row["parse_attempt"]
