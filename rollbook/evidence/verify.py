"""Proof that every call follows from what was recorded: each is made again, but for the model, and compared.

No stored prompt is read for that: the request is made anew from contract, task, screenshots and the calls before it,
also the bytes that went over the wire, images within. The reply is read and parsed again from its raw bytes.
"""

import asyncio
import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from models.contract import Contract
from models.sanitize import sanitize
from rollbook.errors import ArtifactError, ConfigError, InvalidInput, LedgerConflict, ModelCallFailed
from rollbook.ledger.reader import RecordedAttempt
from rollbook.ledger.records import CallRecord
from rollbook.ledger.sanitize import redact_text
from rollbook.policies.agent import OVERFLOW, TIMEOUT, TRANSPORT, Agent, AgentTask, PlannedCall, Screen
from rollbook.policies.base import Answer, summary_of
from rollbook.policies.client import ChatReply, ChatRequest
from rollbook.policies.client.reply import WITHHELD, Asked, read_reply
from rollbook.policies.client.request import request_body, serialise, with_media
from rollbook.policies.imaging import same_image, seen
from rollbook.policies.model import media_of, parsed_of, said_of, tokens_of
from rollbook.policies.protocols.base import Parsed
from rollbook.policies.registry import policy_kinds
from rollbook.redaction import MARK, redact_bytes


@dataclass(frozen=True)
class Mismatch:
    """A fact that does not follow from the records, or could not be checked."""

    step: int
    parse_attempt: int
    what: str
    detail: str


@dataclass(frozen=True)
class Proof:
    """Result of the checks of an attempt."""

    rollout_key: str
    attempt_index: int
    calls: int
    prompts_equal: int
    """Prompts that were rendered again, with the same digest."""
    requests_equal: int
    """Requests of completed calls that were built again with their images, byte for byte as they were sent."""
    replies_equal: int
    """Replies that were read again, to the same actions."""
    images_equal: int
    mismatches: list[Mismatch]
    unchecked: list[Mismatch]
    """Facts that could not be checked here, and why; not a proof of anything."""

    @property
    def ok(self) -> bool:
        """Everything follows from the records, and everything was checked."""
        return not self.mismatches and not self.unchecked

    def to_json(self) -> dict[str, Any]:
        """As printed with `--json`."""
        return {"ok": self.ok, **asdict(self)}


@dataclass
class Notes:
    """Notes taken while an attempt is checked."""

    mismatches: list[Mismatch] = field(default_factory=list)
    unchecked: list[Mismatch] = field(default_factory=list)
    prompts: int = 0
    requests: int = 0
    replies: int = 0
    images: int = 0

    def of(self, call: CallRecord) -> "CallNotes":
        """For one call."""
        return CallNotes(self, call)


@dataclass(frozen=True)
class CallNotes:
    """Notes on one call."""

    all: Notes
    call: CallRecord

    def wrong(self, what: str, detail: str) -> None:
        """It does not follow from the records."""
        self.all.mismatches.append(Mismatch(self.call.step, self.call.parse_attempt, what, detail))

    def unknown(self, what: str, detail: str) -> None:
        """It could not be checked."""
        self.all.unchecked.append(Mismatch(self.call.step, self.call.parse_attempt, what, detail))

    def compare(self, expected: dict[str, Any], recorded: dict[str, Any], again: str) -> bool:
        """True when `recorded` has all of `expected`; differences are noted."""
        different = [name for name, value in expected.items() if name not in recorded or value != recorded[name]]
        for name in different:
            self.wrong(name, f"{again} it is {expected[name]!r:.200}, recorded is {recorded.get(name)!r:.200}")
        return not different

    def compare_call(self, expected: dict[str, Any], again: str) -> bool:
        """True when the call's record has all of `expected`; differences are noted."""
        return self.compare(expected, {name: getattr(self.call, name) for name in expected}, again)


RENDERED, READ = "rendered again", "read again"
_MARK = MARK.encode()


class Artifacts(Protocol):
    """The artifact store, as far as a proof needs it."""

    async def get(self, sha256: str) -> bytes:
        """Bytes by digest; raises ArtifactError."""
        ...


async def verify(attempt: RecordedAttempt, artifacts: Artifacts) -> Proof:
    """Check every call of an attempt. Where this version lacks the contract's protocol, nothing could be checked."""
    notes = Notes()
    work = _Verification(attempt, artifacts, notes)
    for call in attempt.calls:
        await work.check(call)
    return Proof(
        attempt.key,
        attempt.attempt_index,
        len(attempt.calls),
        notes.prompts,
        notes.requests,
        notes.replies,
        notes.images,
        notes.mismatches,
        notes.unchecked,
    )


class _Verification:
    def __init__(self, attempt: RecordedAttempt, artifacts: Artifacts, notes: Notes) -> None:
        self._artifacts = artifacts
        self._notes = notes
        self._calls = attempt.calls
        self._screens = {turn["step"]: turn["screenshot_sha256"] for turn in attempt.turns}
        name = attempt.policy.kind
        kind = policy_kinds().get(name)
        self._problem = "" if kind else f"the policy kind {name!r} is not installed here"
        self._calls_model = kind is not None and kind.calls_model
        self._agent, self._why_not = _agent(attempt.contract) if self._calls_model else (None, "")
        self._task = AgentTask(attempt.key, attempt.attempt_index, str(attempt.rollout["document"]["instruction"]))

    async def check(self, call: CallRecord) -> None:
        notes = self._notes.of(call)
        try:
            if self._problem:
                notes.unknown("policy", self._problem)
            elif not self._calls_model:
                await self._check_scripted(call, notes)
            elif self._agent is None:
                notes.unknown("protocol", self._why_not)
            else:
                await self._check_call(self._agent, call, notes)
        # One call that cannot be made again is a finding about it, not the end of the check of all others.
        except (ArtifactError, InvalidInput, LedgerConflict, ModelCallFailed, ValueError, KeyError) as error:
            notes.wrong("evidence", f"{type(error).__name__}: {error}")

    async def _check_scripted(self, call: CallRecord, notes: CallNotes) -> None:
        """A policy without prompts: what it said must still be there."""
        if call.response_sha256 is not None:
            await self._artifacts.get(call.response_sha256)
        notes.all.replies += 1

    async def _check_call(self, agent: Agent, call: CallRecord, notes: CallNotes) -> None:
        screen = await self._screen(agent, call, notes)
        # Only what was known then: a call may not follow from one that was made after it.
        before = [earlier for earlier in self._calls if _place(earlier) < _place(call)]
        planned = agent.next_call(self._task, call.step, screen, before)
        telemetry = call.telemetry or {}
        request = ChatRequest(agent.model, planned.messages, tools=planned.tools, sampling=planned.sampling)
        body = request_body(request, telemetry["api"])
        kept = serialise(body)
        self._check_prompt(call, planned, kept, notes)
        if not call.completed:
            _check_unanswered(call, planned, notes)
            return
        await self._check_sent(call, planned, body, notes)
        await self._check_reply(agent, call, planned, kept, screen, notes)

    async def _screen(self, agent: Agent, call: CallRecord, notes: CallNotes) -> Screen:
        """The screen of the turn before, scaled again; as it was recorded where that comes out otherwise."""
        sha256 = self._screens.get(call.step - 1)
        if sha256 is None:
            raise LedgerConflict(f"turn {call.step - 1} is missing")
        png = await self._artifacts.get(sha256)
        screen, image = await asyncio.to_thread(seen, png, agent.options.max_image_pixels)
        kept = (call.telemetry or {}).get("image")
        if screen.to_json() == kept and screen.media.sha256 == call.image_sha256:
            notes.all.images += 1
            return screen
        if await self._encoded_otherwise(screen, image, kept, call):
            notes.unknown("image", "it is the same picture in other bytes: scaled by another version of Pillow?")
        else:
            notes.wrong("image", f"the screen as sent is {screen.to_json()}, recorded is {kept}, {call.image_sha256}")
        # What was sent, so that one difference of the image is not reported again for prompt and request.
        return Screen.from_json(kept) if kept else screen

    async def _encoded_otherwise(
        self, screen: Screen, image: bytes, kept: dict[str, Any] | None, call: CallRecord
    ) -> bool:
        """A scaled picture that only its library would write otherwise now. What is not scaled is sent as it is."""
        # An image that was not scaled is the stored screenshot: other bytes are another screenshot.
        if kept is None or screen.size == screen.sent or kept["sha256"] != call.image_sha256:
            return False
        if (kept["screen"], kept["sent"]) != (list(screen.size), list(screen.sent)):
            return False
        return await asyncio.to_thread(same_image, image, await self._artifacts.get(kept["sha256"]))

    def _check_prompt(self, call: CallRecord, planned: PlannedCall, kept: bytes, notes: CallNotes) -> None:
        # The stored prompt was redacted before its digest was taken.
        digest = _digest(redact_bytes(kept))
        if digest != call.prompt_sha256:
            notes.wrong("prompt", f"{RENDERED} it has digest {digest}, as sent it had {call.prompt_sha256}")
        else:
            notes.all.prompts += 1
        notes.compare_call({"parse_attempt": planned.number}, "counted again")
        wanted = {
            "history": planned.plan.telemetry,
            "max_images": planned.max_images,
            "media": media_of(planned.messages),
            "temperature": planned.sampling.temperature,
            "seed": planned.sampling.seed,
        }
        notes.compare(redact_text(wanted), call.telemetry or {}, RENDERED)

    async def _check_sent(self, call: CallRecord, planned: PlannedCall, body: dict[str, Any], notes: CallNotes) -> None:
        """The bytes that went over the wire, from the images as they are stored."""
        # An image that is shown twice is fetched once.
        wanted = sorted(set(media_of(planned.messages)))
        media = {sha256: await self._artifacts.get(sha256) for sha256 in wanted}
        # In a thread: images make the body tens of megabytes of base64.
        digest = await asyncio.to_thread(lambda: _digest(serialise(with_media(body, media))))
        if notes.compare({"sent_digest": digest}, call.telemetry or {}, "built again"):
            notes.all.requests += 1

    async def _check_reply(
        self, agent: Agent, call: CallRecord, planned: PlannedCall, kept: bytes, screen: Screen, notes: CallNotes
    ) -> None:
        if call.response_sha256 is None:
            raise LedgerConflict("the reply of a completed call is missing")
        raw = await self._artifacts.get(call.response_sha256)
        # Without the request: where a secret in it withheld tokens is handled below.
        reply = read_reply(raw, Asked(agent.model, b"", "", ""), queued_s=0.0, latency_s=0.0)
        parsed = parsed_of(agent.protocol, reply, screen)
        equal = notes.compare_call(_columns(agent, reply, parsed, planned), READ)
        telemetry = call.telemetry or {}
        # Telemetry without this key is that of an answer in the form of the API.
        noted = {"normalization_error": None} | telemetry
        wanted: dict[str, Any] = {
            "served_model": reply.model_name,
            "usage": reply.usage,
            "normalization_error": reply.normalization_error,
            "token_problems": list(reply.token_evidence_problems),
        }
        secret = _MARK in raw or _MARK in redact_bytes(kept)
        if secret and reply.prompt_token_ids is reply.sampled_token_ids is None:
            # What would spell a secret was withheld, under these reasons; none of it is in the reply that was kept.
            withheld = list(WITHHELD.problems)
            if telemetry.get("token_problems") == withheld:
                wanted["token_problems"] = withheld
        equal = notes.compare(redact_text(wanted), noted, READ) and equal
        tokens = tokens_of(reply)
        arrays = {"tokens_sha256": None if tokens is None else _digest(redact_bytes(tokens))}
        if notes.compare_call(arrays, READ) and equal:
            notes.all.replies += 1


def _agent(contract: Contract) -> tuple[Agent | None, str]:
    try:
        return Agent(contract), ""
    except ConfigError as error:
        return None, str(error)


def _columns(agent: Agent, reply: ChatReply, parsed: Parsed, planned: PlannedCall) -> dict[str, Any]:
    """Columns of a completed call that follow from its reply."""
    failed = parsed.failure_kind is not None
    answer = Answer(
        actions=[] if failed else parsed.actions,
        terminal_action=None if failed else parsed.terminal_action,
        # An earlier sample that fails is drawn again and stops nothing.
        policy_stop_reason=parsed.stop_reason if planned.last_sample else None,
        failure_kind=parsed.failure_kind,
    )
    return {
        "actions": sanitize(answer.actions),
        "terminal_action": answer.terminal_action,
        "policy_stop_reason": answer.policy_stop_reason,
        "accepted": answer.accepted,
        "summary": redact_text(summary_of(answer)),
        "failure_kind": parsed.failure_kind,
        "parse_error": redact_text(parsed.error) if failed else None,
        "finish_reason": redact_text(reply.finish_reason),
        "said": redact_text(said_of(reply, parsed)),
        "model_name": redact_text(agent.model),
        "model_version": redact_text(reply.model_version),
        "prompt_tokens": reply.tokens("prompt"),
        "completion_tokens": reply.tokens("completion"),
    }


def _check_unanswered(call: CallRecord, planned: PlannedCall, notes: CallNotes) -> None:
    """A call without a reply decides nothing; a context that did not fit leads to a smaller one, or ends all."""
    if call.failure_kind not in (OVERFLOW, TRANSPORT, TIMEOUT):
        notes.wrong("failure_kind", f"a call without a reply cannot be {call.failure_kind!r}")
    # A history that can still shrink is planned again by the next call.
    ends = call.failure_kind == OVERFLOW and planned.smaller is None
    nothing: dict[str, Any] = {
        "actions": [],
        "terminal_action": None,
        "accepted": False,
        "tokens_sha256": None,
        "said": None,
    }
    notes.compare_call(nothing | {"policy_stop_reason": "model_context_overflow" if ends else None}, "without a reply")
    if call.failure_kind == OVERFLOW:
        notes.compare({"next_max_images": planned.smaller}, call.telemetry or {}, "planned again")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _place(call: CallRecord) -> tuple[int, int]:
    return call.step, call.parse_attempt
