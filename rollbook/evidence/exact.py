"""The exact envelope: what a trainer needs to reproduce every generation, or the reasons why there is none.

A prompt that extends the one before it, measured on tokens and on media, can be trained in one physical sequence;
everything else starts a new segment. History policies only hint at this; the arrays decide.

The envelope of version 3 repeats no arrays: each call names the digest of its own, which is also the name of the
artifact that holds them. Version 2, for people who debug, has every array and every call in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from models.identity import digest, short_id
from rollbook.evidence.load import AttemptEvidence, CallEvidence
from rollbook.evidence.trajectory import REJECTED, trajectory_contract
from rollbook.policies.client.request import MEDIA_SCHEME


@dataclass(frozen=True)
class Assigned:
    """A generation within its segment."""

    call: CallEvidence
    segment_index: int
    segment_id: str
    append_compatible: bool
    """Prompt and media extend those of the generation before, its sampled tokens included."""
    delta_start: int
    """First token of the prompt that no earlier sequence of the segment holds."""
    retained_tokens: int
    """Leading tokens shared with the generation before."""
    retained_media: int

    @property
    def view_digest(self) -> str:
        """Digest of what the model saw."""
        return view_digest(self.call)


def view_digest(call: CallEvidence) -> str:
    """Digest of prompt tokens and media."""
    return digest({"prompt_token_ids": call.tokens.prompt_token_ids, "media_ids": call.media_ids})


def assign_segments(trajectory_id: str, generations: list[CallEvidence]) -> list[Assigned]:
    """Put generations into segments, in their order. A call without arrays extends nothing and is not extended."""
    placed: list[Assigned] = []
    before: CallEvidence | None = None
    for call in generations:
        tokens, media = _shared(before, call)
        # `tokens > 0`: two calls without arrays share an empty sequence, which is not an extension.
        compatible = before is not None and tokens == len(_sequence(before) or ()) and tokens > 0
        # Tokens alone do not decide: the placeholder of an image is the same for every image.
        compatible = compatible and before is not None and media == len(before.media_ids)
        index = placed[-1].segment_index + int(not compatible) if placed else 0
        placed.append(
            Assigned(
                call=call,
                segment_index=index,
                segment_id=short_id("segment", trajectory_id, index),
                append_compatible=compatible,
                # A new segment repeats its whole prompt, whatever it happens to share with the one before.
                delta_start=tokens if compatible else 0,
                retained_tokens=tokens,
                retained_media=media,
            )
        )
        before = call
    return placed


def _sequence(call: CallEvidence) -> list[int] | None:
    prompt, sampled = call.tokens.prompt_token_ids, call.tokens.sampled_token_ids
    # The sampled tokens are part of it: the next prompt must hold the reply as it was drawn, not as a template writes
    # it.
    return None if prompt is None or sampled is None else prompt + sampled


def _shared(before: CallEvidence | None, call: CallEvidence) -> tuple[int, int]:
    """(tokens, media) that both begin with."""
    if before is None:
        return 0, 0
    return (
        _common(_sequence(before) or [], call.tokens.prompt_token_ids or []),
        _common(before.media_ids, call.media_ids),
    )


def _common(left: Sequence[object], right: Sequence[object]) -> int:
    number = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        number += 1
    return number


POLICY_NAME, POLICY_VERSION = "osworld_exact_prompt_trace", "1"

GAPS = ["tokenizer_identity", "chat_template_identity", "multimodal_processor_identity"]
"""Facts that servers do not report; a trainer tolerates exactly these."""

SAMPLING = ("temperature", "top_p", "max_output_tokens")
"""The fields of a sampling contract."""


def exact_envelope(loaded: AttemptEvidence) -> dict[str, Any] | None:
    """The envelope; None unless every call is complete. Whether it may be trained on is decided elsewhere."""
    if not loaded.evidence_complete:
        return None
    placed = assign_segments(loaded.trajectory_id, loaded.generations)
    return sealed(loaded, placed, 3, {"model_call_metadata": model_call_metadata(loaded, placed)})


def sealed(loaded: AttemptEvidence, placed: list[Assigned], version: int, calls: dict[str, Any]) -> dict[str, Any]:
    """An envelope of either version around what it says of the calls, with the digest of all of it."""
    generation = generation_contract(loaded)
    contract = {
        "schema_version": version,
        "mode": "exact_trace_authority",
        "identity": loaded.identity,
        "trajectory_contract_id": trajectory_contract(loaded)["trajectory_contract_id"],
        "generation_contract": generation,
    }
    body = {
        "context_compaction_contract": contract,
        **calls,
        "boundary_events": [
            _boundary(loaded, before, after, generation)
            for before, after in pairwise(placed)
            if not after.append_compatible
        ],
        "lineage_deltas": lineage_deltas(placed),
        "final_policy_decision": _final(placed, generation),
    }
    return body | {"evidence_digest": digest(body)}


def generation_contract(loaded: AttemptEvidence, sampling: dict[str, Any] | None = None) -> dict[str, Any]:
    """Origin of the tokens, as far as it is known; never training-eligible by itself.

    `sampling`: of a call that was drawn otherwise than the contract's configuration says.
    """
    contract = loaded.attempt.contract
    policy = contract.policy
    # A server may be updated in the middle of a rollout; every version that answered is named.
    versions = sorted({call.record.model_version for call in loaded.generations if call.record.model_version})
    model = {"name": policy.model, "versions": versions}
    compaction = {
        "adapter": "rollbook",
        "agent_contract_id": contract.agent_contract_id,
        "model_protocol": {"protocol_id": policy.protocol_id, "parser_id": policy.parser_id},
        "history_policy": policy.history,
        "agent_options": policy.options,
    }
    configured = {name: (policy.sampling or {}).get(name) for name in SAMPLING}
    drawn = configured if sampling is None or sampling == configured else sampling
    body = {
        "schema_version": 1,
        "model_identity": model,
        "tokenizer_identity": None,
        "chat_template_identity": None,
        "sampling_contract": drawn,
        "sampling_contract_id": short_id("sampling", drawn),
        "multimodal_processor_identity": None,
        "compaction_policy": compaction,
        "compaction_policy_id": short_id("compaction-policy", compaction),
        "gaps": GAPS,
        "loss_normalization": "global_action_token_mean",
        "training_eligible": False,
    }
    # Outside the digested body: `model_id` is derived from it.
    identified = {"model_identity": model | {"model_id": short_id("model", model)}}
    return body | identified | {"generation_contract_id": short_id("generation-contract", body)}


def drawn_of(call: CallEvidence) -> dict[str, Any]:
    """The sampling contract under which a call was drawn, as its request asked for it.

    Repeated samples of a step are drawn warmer than configured, so it is the call's own.
    """
    asked = call.prompt or {}
    # Newer APIs call the limit of the reply by the second name.
    limit = asked.get("max_tokens", asked.get("max_completion_tokens"))
    return {"temperature": asked.get("temperature"), "top_p": asked.get("top_p"), "max_output_tokens": limit}


def model_call_metadata(loaded: AttemptEvidence, placed: list[Assigned]) -> list[dict[str, Any]]:
    """One entry per call that got a reply, arrays by digest."""
    return [_metadata(loaded, one) for one in placed]


def _metadata(loaded: AttemptEvidence, placed: Assigned) -> dict[str, Any]:
    call, record = placed.call, placed.call.record
    drawn = drawn_of(call)
    generation = generation_contract(loaded, drawn)
    completion = short_id("completion", call.model_call_id)
    sampled = call.tokens.sampled_token_ids or []
    return {
        "rollout_id": loaded.identity["rollout_id"],
        "completion_id": completion,
        "action_id": f"policy-action-{call.turn_id:06d}",
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "environment_step": record.step,
        "parse_attempt": record.parse_attempt,
        "accepted": record.accepted,
        "parse_error": record.parse_error,
        "prepared_request_id": short_id("prepared-request", call.model_call_id, record.prompt_sha256),
        "request_id": short_id("request", call.model_call_id),
        "context_epoch": placed.segment_index,
        "segment_index": placed.segment_index,
        "segment_id": placed.segment_id,
        "expected_append_compatible": placed.append_compatible,
        "compaction_event_id": None if placed.append_compatible or call.turn_id == 1 else _event_id(loaded, call),
        "generation_evidence_digest": record.tokens_sha256,
        "prompt_digest": record.prompt_sha256,
        "response_digest": record.response_sha256,
        "prompt_token_count": len(call.tokens.prompt_token_ids or []),
        "sampled_token_count": len(sampled),
        "finish_reason": record.finish_reason,
        "media_ids": call.media_ids,
        "media_occurrences": [
            {"position": position, "media_id": media_id} for position, media_id in enumerate(call.media_ids)
        ],
        "policy_decision": _decision(placed),
        "generation_contract_id": generation["generation_contract_id"],
        "sampling": drawn | {"seed": (call.prompt or {}).get("seed")},
        "sampling_contract_id": generation["sampling_contract_id"],
        # One span over all sampled tokens: the policy wrote every one of them.
        "policy_output_spans": [
            {
                "span_id": short_id("policy-output-span", completion),
                "start": 0,
                "end": len(sampled),
                "alignment": "sampled_tokens",
            }
        ],
        "processor_fingerprint": None,
        "eligible": bool(loaded.attempt.decision("runtime")["admitted"]),
        "evidence_source": "generation_response",
        "history": call.telemetry.get("history"),
    }


def _decision(placed: Assigned) -> dict[str, Any]:
    return {
        "name": POLICY_NAME,
        "version": POLICY_VERSION,
        "decision": "append" if placed.append_compatible else "rewrite",
        "view_digest": placed.view_digest,
    }


def _event_id(loaded: AttemptEvidence, call: CallEvidence) -> str:
    return short_id("rewrite-boundary", loaded.trajectory_id, call.turn_id)


def _boundary(loaded: AttemptEvidence, before: Assigned, after: Assigned, generation: dict[str, Any]) -> dict[str, Any]:
    old = before.call.tokens
    length = len(old.prompt_token_ids or []) + len(old.sampled_token_ids or [])
    return {
        "event_id": _event_id(loaded, after.call),
        "trigger_after_step": before.call.record.step,
        "applies_to_step": after.call.record.step,
        "reason": "prompt_or_media_not_append_compatible",
        "policy_name": POLICY_NAME,
        "policy_version": POLICY_VERSION,
        "policy_config_digest": digest(generation["compaction_policy"]),
        "previous_view_digest": before.view_digest,
        "current_view_digest": after.view_digest,
        "retained_count": after.retained_tokens,
        "omitted_count": length - after.retained_tokens,
        "retained_media_count": after.retained_media,
        "removed_media_count": len(before.call.media_ids) - after.retained_media,
        "schedule": "per_action",
        "chunk_id": after.segment_id,
        "block_index": after.segment_index,
    }


def lineage_deltas(placed: list[Assigned]) -> list[dict[str, Any]]:
    """Each state follows from the one before: nothing can be left out unseen."""
    deltas: list[dict[str, Any]] = []
    before: Assigned | None = None
    parent: str | None = None
    for number, one in enumerate(placed, start=1):
        unit = {"model_call_id": one.call.model_call_id, "view_digest": one.view_digest}
        # The parent is in the digest: a call that is left out changes every state after it.
        state = digest([parent, unit, one.call.record.tokens_sha256])
        deltas.append(
            {
                "turn_id": one.call.turn_id,
                "parent_state_digest": parent,
                "unit_upserts": [unit],
                "source_unit_count": number,
                "state_digest": state,
                "validator_result": _validated(before, one, number),
            }
        )
        before, parent = one, state
    return deltas


def _validated(before: Assigned | None, one: Assigned, number: int) -> str:
    """`passed` when the delta is one that a trainer can follow, else what is wrong with it."""
    tokens, last = one.call.tokens, before.segment_index if before else 0
    problems = {
        "turn_id": one.call.turn_id != number,
        "segment_index": one.segment_index != last + int(before is not None and not one.append_compatible),
        "prompt_token_ids": not tokens.prompt_token_ids,
        "sampled_tokens": not tokens.sampled_token_ids
        or len(tokens.sampled_token_ids) != len(tokens.sampled_logprobs or ()),
        "generation_evidence_digest": one.call.record.tokens_sha256 is None,
    }
    found = [name for name, wrong in problems.items() if wrong]
    return f"failed: {', '.join(found)}" if found else "passed"


def _final(placed: list[Assigned], generation: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": POLICY_NAME,
        "version": POLICY_VERSION,
        "config_digest": digest(generation["compaction_policy"]),
        "turns": len(placed),
        "segments": placed[-1].segment_index + 1,
        "state_digest": lineage_deltas(placed)[-1]["state_digest"],
        "lineage": [one.call.model_call_id for one in placed],
    }


_NOT_IN_COMPLETIONS = (
    "generation_evidence_digest",
    "prompt_digest",
    "response_digest",
    "prompt_token_count",
    "sampled_token_count",
    "history",
)
"""Members that version 2 replaces by the arrays, or has in its calls."""


def full_envelope(loaded: AttemptEvidence) -> dict[str, Any] | None:
    """The envelope of version 2; None unless every call is complete."""
    if not loaded.evidence_complete:
        return None
    placed = assign_segments(loaded.trajectory_id, loaded.generations)
    completions = [
        {name: value for name, value in one.items() if name not in _NOT_IN_COMPLETIONS} | call.tokens.to_json()
        for one, call in zip(model_call_metadata(loaded, placed), loaded.generations, strict=True)
    ]
    calls = {"completion_evidence": completions, "trajectory_model_calls": trajectory_model_calls(loaded)}
    return sealed(loaded, placed, 2, calls)


def trajectory_model_calls(loaded: AttemptEvidence) -> list[dict[str, Any]]:
    """Every call that got a reply, whole. Images are references: their bytes are artifacts."""
    outcome, made = loaded.attempt.outcome or {}, []
    eligible = bool(loaded.attempt.decision("runtime")["admitted"])
    last_step = max((call.record.step for call in loaded.calls), default=0)
    for call in loaded.generations:
        record = call.record
        ends = record.step == last_step and call is loaded.generations[-1]
        made.append(
            {
                "model_call_id": call.model_call_id,
                "turn_id": call.turn_id,
                "environment_step": record.step,
                "step_position": record.step - 1,
                "parse_attempt": record.parse_attempt,
                "prompt_messages": (call.prompt or {}).get("messages"),
                "projected_prompt_messages": _projected(call),
                "media_ids": call.media_ids,
                "response": _response(call),
                "accepted": record.accepted,
                "parse_error": record.parse_error,
                "parsed_actions": record.actions,
                "failure_stage": "response_parse" if record.failure_kind in REJECTED else None,
                "failure_kind": record.failure_kind,
                "history": call.telemetry.get("history"),
                "exact_generation_arrays": call.tokens.to_json() if not call.reasons else None,
                "partial_generation_evidence": call.tokens.to_json() if call.reasons else None,
                "exact_evidence": {"complete": not call.reasons, "incomplete_reasons": call.reasons},
                "reward": outcome.get("reward") if ends else 0.0,
                "done": ends,
                "eligible": eligible,
                "runtime_eligible": eligible,
            }
        )
    return made


def _response(call: CallEvidence) -> dict[str, Any]:
    return {
        "content": call.said.get("content"),
        "reasoning_content": call.said.get("reasoning"),
        "tool_calls": call.said.get("tool_calls"),
        "raw_content": call.said.get("content"),
        "prompt_token_ids": call.tokens.prompt_token_ids,
        "generation_token_ids": call.tokens.sampled_token_ids,
        "generation_log_probs": call.tokens.sampled_logprobs,
        "routed_experts": call.tokens.routed_experts,
        "finish_reason": call.record.finish_reason,
        "normalization_error": call.telemetry.get("normalization_error"),
    }


def _projected(call: CallEvidence) -> list[dict[str, Any]] | None:
    """The messages with media ids in place of images."""
    messages = (call.prompt or {}).get("messages")
    if messages is None:
        return None
    known = {one["sha256"]: one["media_id"] for one in call.media}
    return [{**message, "content": _content(message.get("content"), known)} for message in messages]


def _content(content: Any, known: dict[str, str]) -> Any:
    return [_part(part, known) for part in content] if isinstance(content, list) else content


def _part(part: Any, known: dict[str, str]) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    sha256 = str(part["image_url"]["url"]).removeprefix(MEDIA_SCHEME)
    return {"type": "image_url", "media_id": known.get(sha256)}
