"""The exact envelope: what a trainer needs to reproduce every generation, or the reasons why there is none.

Upstream contract §3.3. Arrays are not repeated here: each call names the digest of its own, which is also the name of
the artifact that holds them.
"""

from itertools import pairwise
from typing import Any

from models.contract import agent_contract_id
from models.identity import digest, short_id
from rollbook.evidence.load import CallEvidence, Loaded
from rollbook.evidence.segments import Placed, place
from rollbook.evidence.trajectory import trajectory_contract

POLICY_NAME, POLICY_VERSION = "osworld_exact_prompt_trace", "1"

GAPS = ["tokenizer_identity", "chat_template_identity", "multimodal_processor_identity"]
"""What servers do not report; a trainer tolerates exactly these."""


def exact_envelope(loaded: Loaded) -> dict[str, Any] | None:
    """The envelope; None unless every call is complete. Whether it may be trained on is decided elsewhere."""
    if not loaded.evidence_complete:
        return None
    generation = generation_contract(loaded)
    placed = place(loaded.trajectory_id, loaded.generations)
    contract = {
        "schema_version": 3,
        "mode": "exact_trace_authority",
        "identity": loaded.identity,
        "trajectory_contract_id": trajectory_contract(loaded)["trajectory_contract_id"],
        "generation_contract": generation,
    }
    body = {
        "context_compaction_contract": contract,
        "model_call_metadata": [_metadata(loaded, one, generation) for one in placed],
        "boundary_events": [
            _boundary(loaded, before, after, generation)
            for before, after in pairwise(placed)
            if not after.append_compatible
        ],
        "lineage_deltas": _lineage(placed),
        "final_policy_decision": _final(loaded, placed, generation),
    }
    return body | {"evidence_digest": digest(body)}


def generation_contract(loaded: Loaded) -> dict[str, Any]:
    """How the tokens came to be, as far as it is known; never training-eligible by itself."""
    policy = loaded.attempt.contract["policy"]
    sampling = policy.get("sampling") or {}
    versions = sorted({call.row["model_version"] for call in loaded.generations if call.row["model_version"]})
    compaction = {
        "adapter": "rollbook",
        "agent_contract_id": agent_contract_id(loaded.attempt.contract),
        "model_protocol": {"protocol_id": policy.get("protocol_id"), "parser_id": policy.get("parser_id")},
        "history_policy": policy.get("history"),
        "agent_options": policy.get("options"),
    }
    drawn = {name: sampling.get(name) for name in ("temperature", "top_p", "max_output_tokens")}
    body = {
        "schema_version": 1,
        "model_identity": {"name": policy.get("model"), "versions": versions},
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
    return body | {"generation_contract_id": short_id("generation-contract", body)}


def _metadata(loaded: Loaded, placed: Placed, generation: dict[str, Any]) -> dict[str, Any]:
    call, row = placed.call, placed.call.row
    completion = short_id("completion", call.model_call_id)
    sampled = call.tokens.sampled_token_ids or []
    return {
        "rollout_id": loaded.identity["rollout_id"],
        "completion_id": completion,
        "action_id": f"policy-action-{call.turn_id:06d}",
        "model_call_id": call.model_call_id,
        "turn_id": call.turn_id,
        "environment_step": row["step"],
        "parse_attempt": row["parse_attempt"],
        "accepted": row["accepted"],
        "parse_error": row["parse_error"],
        "prepared_request_id": short_id("prepared-request", call.model_call_id, row["prompt_sha256"]),
        "request_id": short_id("request", call.model_call_id),
        "context_epoch": placed.segment_index,
        "segment_index": placed.segment_index,
        "segment_id": placed.segment_id,
        "expected_append_compatible": placed.append_compatible,
        "compaction_event_id": None if placed.append_compatible or call.turn_id == 1 else _event_id(loaded, call),
        "generation_evidence_digest": row["tokens_sha256"],
        "prompt_digest": row["prompt_sha256"],
        "response_digest": row["response_sha256"],
        "prompt_token_count": len(call.tokens.prompt_token_ids or []),
        "sampled_token_count": len(sampled),
        "finish_reason": row["finish_reason"],
        "media_ids": call.media_ids,
        "media_occurrences": [
            {"position": position, "media_id": media_id} for position, media_id in enumerate(call.media_ids)
        ],
        "policy_decision": _decision(placed),
        "generation_contract_id": generation["generation_contract_id"],
        "policy_output_spans": [
            {"span_id": short_id("policy-output-span", completion), "start": 0, "end": len(sampled)}
        ],
        "processor_fingerprint": None,
        "eligible": bool(loaded.attempt.decision("runtime")["admitted"]),
        "evidence_source": "generation_response",
        "history": call.telemetry.get("history"),
    }


def _decision(placed: Placed) -> dict[str, Any]:
    return {
        "name": POLICY_NAME,
        "version": POLICY_VERSION,
        "decision": "append" if placed.append_compatible else "rewrite",
        "view_digest": placed.view_digest,
    }


def _event_id(loaded: Loaded, call: CallEvidence) -> str:
    return short_id("rewrite-boundary", loaded.trajectory_id, call.turn_id)


def _boundary(loaded: Loaded, before: Placed, after: Placed, generation: dict[str, Any]) -> dict[str, Any]:
    old = before.call.tokens
    length = len(old.prompt_token_ids or []) + len(old.sampled_token_ids or [])
    return {
        "event_id": _event_id(loaded, after.call),
        "trigger_after_step": before.call.row["step"],
        "applies_to_step": after.call.row["step"],
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


def _lineage(placed: list[Placed]) -> list[dict[str, Any]]:
    """Each state follows from the one before: nothing can be left out unseen."""
    deltas: list[dict[str, Any]] = []
    parent: str | None = None
    for number, one in enumerate(placed, start=1):
        unit = {"model_call_id": one.call.model_call_id, "view_digest": one.view_digest}
        state = digest([parent, unit, one.call.row["tokens_sha256"]])
        deltas.append(
            {
                "turn_id": one.call.turn_id,
                "parent_state_digest": parent,
                "unit_upserts": [unit],
                "source_unit_count": number,
                "state_digest": state,
            }
        )
        parent = state
    return deltas


def _final(loaded: Loaded, placed: list[Placed], generation: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": POLICY_NAME,
        "version": POLICY_VERSION,
        "config_digest": digest(generation["compaction_policy"]),
        "turns": len(placed),
        "segments": placed[-1].segment_index + 1,
        "state_digest": _lineage(placed)[-1]["state_digest"],
        "lineage": [one.call.model_call_id for one in placed],
    }
