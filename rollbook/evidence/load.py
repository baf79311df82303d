"""The evidence of one attempt, its arrays read: what trajectories, envelopes and exports are built from.

Pure once loaded. A call that got no reply sampled nothing that was used; it is listed as a failure of its step and
is not a generation.
"""

import asyncio
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from models.contract import Contract
from models.identity import derived_group_id, short_id
from rollbook.errors import ArtifactError, InvalidInput
from rollbook.ledger.reader import RecordedAttempt, Row
from rollbook.ledger.records import CallRecord

REASONS = frozenset(
    [
        "model_call_evidence_unavailable",
        "model_call_evidence_invalid",
        "model_call_parse_attempt_invalid",
        "exact_prompt_messages_unavailable",
        "structured_generation_response_unavailable",
        "exact_prompt_token_ids_unavailable",
        "exact_prompt_token_ids_invalid",
        "exact_sampled_token_ids_unavailable",
        "exact_sampled_token_ids_invalid",
        "exact_sampled_logprobs_unavailable",
        "exact_sampled_logprobs_invalid",
        "sampled_token_logprob_length_mismatch",
        "caller_owned_rollout_identity_unavailable",
        "rollout_sample_masked",
    ]
)
"""Reasons of incomplete exact evidence: a closed set."""


class Artifacts(Protocol):
    """The artifact store, as far as evidence needs it."""

    async def get(self, sha256: str) -> bytes:
        """Bytes by digest; raises ArtifactError."""
        ...


@dataclass(frozen=True)
class Tokens:
    """Token arrays as the server gave them; None where it did not."""

    prompt_token_ids: list[int] | None = None
    sampled_token_ids: list[int] | None = None
    sampled_logprobs: list[float] | None = None
    routed_experts: list[Any] | str | None = None

    def to_json(self) -> dict[str, Any]:
        """As they are exported."""
        return {
            "prompt_token_ids": self.prompt_token_ids,
            "sampled_token_ids": self.sampled_token_ids,
            "sampled_logprobs": self.sampled_logprobs,
        }


@dataclass(frozen=True)
class CallEvidence:
    """One call with its arrays."""

    record: CallRecord
    turn_id: int | None
    """1, 2, … over the calls that got a reply; None without one."""
    model_call_id: str
    prompt: dict[str, Any] | None
    """The request as asked, images as `media://` references."""
    tokens: Tokens
    media: list[dict[str, Any]]
    """Images of the prompt in order, with repeats: media_id, sha256, width, height."""
    reasons: list[str]
    """Reasons why the exact evidence of this call is incomplete; empty when it is complete."""

    @property
    def media_ids(self) -> list[str]:
        """Ordered ids, with repeats."""
        return [one["media_id"] for one in self.media]

    @property
    def said(self) -> Row:
        """The parts of the reply."""
        return self.record.said or {}

    @property
    def telemetry(self) -> Row:
        """Telemetry of the call."""
        return self.record.telemetry or {}


@dataclass(frozen=True)
class AttemptEvidence:
    """An attempt with the evidence of its calls."""

    attempt: RecordedAttempt
    calls: list[CallEvidence] = field(default_factory=list)

    @cached_property
    def generations(self) -> list[CallEvidence]:
        """The calls that got a reply."""
        return [call for call in self.calls if call.turn_id is not None]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The logical identity; the physical execution is not part of it."""
        return identity_of(self.attempt)

    @cached_property
    def trajectory_id(self) -> str:
        """Stable over executions."""
        return trajectory_id(self.attempt)

    @cached_property
    def media(self) -> dict[str, dict[str, Any]]:
        """The media arena: every image once, by media id."""
        return {one["media_id"]: one for call in self.calls for one in call.media}

    @property
    def incomplete_reasons(self) -> list[str]:
        """Reasons why there is no exact envelope; empty when there is one."""
        found = {reason for call in self.generations for reason in call.reasons}
        if not self.generations:
            found.add("model_call_evidence_unavailable")
        if self.attempt.rollout["identity_source"] != "caller":
            found.add("caller_owned_rollout_identity_unavailable")
        if not self.attempt.decision("runtime")["admitted"]:
            found.add("rollout_sample_masked")
        return sorted(found)

    @property
    def evidence_complete(self) -> bool:
        """Every call has its prompt, reply and token arrays; identity and admission are other questions."""
        return bool(self.generations) and not any(call.reasons for call in self.generations)


def identity_of(attempt: RecordedAttempt) -> dict[str, Any]:
    """Identity fields of an attempt; upstream counts attempts from 0."""
    rollout = attempt.rollout
    caller = {name: rollout[name] for name in ("sampling_event_id", "source_group_id") if rollout[name] is not None}
    return {
        "schema_version": 1,
        "rollout_id": attempt.attempt["trajectory_rollout_id"],
        "group_id": rollout["group_id"] or derived_group_id(rollout["task_id"]),
        "task_id": rollout["task_id"],
        "rollout_index": rollout["rollout_index"],
        "attempt_index": attempt.attempt_index - 1,
        **caller,
    }


def trajectory_id(attempt: RecordedAttempt) -> str:
    """Id of the trajectory: identity and model."""
    return short_id("trajectory", identity_of(attempt), attempt.policy.name)


def require_played(batch_id: str, contract: Row) -> Contract:
    """The contract of a batch that ran here; raises InvalidInput for one whose results were imported."""
    if contract["policy"]["kind"] == "imported":
        raise InvalidInput(
            f"batch: {batch_id} was imported: what its rollouts saw and said is not in this ledger; ask where it ran"
        )
    return Contract.read(contract)


async def load_calls(attempt: RecordedAttempt, artifacts: Artifacts) -> AttemptEvidence:
    """Read prompts and token arrays; a missing or corrupt artifact makes its call incomplete and is not an error.

    Raises InvalidInput for an imported rollout: what it saw and said was never here.
    """
    require_played(attempt.rollout["batch_id"], attempt.rollout["contract"])
    read = await asyncio.gather(*(_read(record, artifacts) for record in attempt.calls))
    trajectory, turn_id, calls = trajectory_id(attempt), 0, []
    known: dict[str, dict[str, Any]] = {}
    for record, (prompt, tokens, reasons) in zip(attempt.calls, read, strict=True):
        turn_id += int(record.completed)
        telemetry = record.telemetry or {}
        if image := telemetry.get("image"):
            width, height = image["sent"]
            known[image["sha256"]] = {
                "media_id": image["media_id"],
                "sha256": image["sha256"],
                "width": width,
                "height": height,
            }
        calls.append(
            CallEvidence(
                record=record,
                turn_id=turn_id if record.completed else None,
                # Upstream counts steps from 0.
                model_call_id=short_id("model-call", trajectory, record.step - 1, record.parse_attempt),
                prompt=prompt,
                tokens=tokens,
                # An image that no earlier call has sent cannot be named: its size is not known.
                media=[known[sha256] for sha256 in telemetry.get("media", []) if sha256 in known],
                reasons=reasons,
            )
        )
    return AttemptEvidence(attempt, calls)


async def _read(record: CallRecord, artifacts: Artifacts) -> tuple[dict[str, Any] | None, Tokens, list[str]]:
    telemetry = record.telemetry or {}
    noted = telemetry.get("token_problems")
    if noted is None:  # a policy without a model behind it, or a call without a reply
        reasons = {"model_call_evidence_unavailable"}
    else:
        # A worker of another version may have recorded a reason that is not in the closed set.
        reasons = {reason if reason in REASONS else "model_call_evidence_invalid" for reason in noted}
    prompt = await _json(record.prompt_sha256, artifacts)
    if prompt is None:
        reasons.add("exact_prompt_messages_unavailable")
    if record.response_sha256 is None or await _bytes(record.response_sha256, artifacts) is None:
        reasons.add("structured_generation_response_unavailable")
    arrays = await _json(record.tokens_sha256, artifacts)
    # The record says that there are arrays; a call with problems has none to miss.
    if arrays is None and noted == []:
        reasons.add("model_call_evidence_invalid")
    return prompt, Tokens(**(arrays or {})), sorted(reasons)


async def _bytes(sha256: str | None, artifacts: Artifacts) -> bytes | None:
    if sha256 is None:
        return None
    try:
        return await artifacts.get(sha256)
    # A lost artifact makes its call incomplete; it does not hide the rest of the attempt.
    except ArtifactError:
        return None


async def _json(sha256: str | None, artifacts: Artifacts) -> dict[str, Any] | None:
    data = await _bytes(sha256, artifacts)
    found: dict[str, Any] | None = None if data is None else json.loads(data)
    return found
