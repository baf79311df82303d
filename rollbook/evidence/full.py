"""The envelope for people who debug: upstream contract §3.3, version 2, with every array and every call in it."""

from typing import Any

from rollbook.evidence.exact import model_call_metadata, sealed
from rollbook.evidence.failures import REJECTED
from rollbook.evidence.load import CallEvidence, Loaded
from rollbook.evidence.segments import place
from rollbook.policies.client.request import MEDIA_SCHEME

_NOT_IN_COMPLETIONS = (
    "generation_evidence_digest",
    "prompt_digest",
    "response_digest",
    "prompt_token_count",
    "sampled_token_count",
    "history",
)
"""What stands for the arrays, or in the calls, there."""


def full_envelope(loaded: Loaded) -> dict[str, Any] | None:
    """The envelope of version 2; None unless every call is complete."""
    if not loaded.evidence_complete:
        return None
    placed = place(loaded.trajectory_id, loaded.generations)
    completions = [
        {name: value for name, value in one.items() if name not in _NOT_IN_COMPLETIONS} | call.tokens.to_json()
        for one, call in zip(model_call_metadata(loaded, placed), loaded.generations, strict=True)
    ]
    calls = {"completion_evidence": completions, "trajectory_model_calls": trajectory_model_calls(loaded)}
    return sealed(loaded, placed, 2, calls)


def trajectory_model_calls(loaded: Loaded) -> list[dict[str, Any]]:
    """Every call that got a reply, whole (upstream contract §3.1). Images are references: their bytes are artifacts."""
    outcome, made = loaded.attempt.outcome or {}, []
    eligible = bool(loaded.attempt.decision("runtime")["admitted"])
    last_step = max((call.row["step"] for call in loaded.calls), default=0)
    for call in loaded.generations:
        row = call.row
        ends = row["step"] == last_step and call is loaded.generations[-1]
        made.append(
            {
                "model_call_id": call.model_call_id,
                "turn_id": call.turn_id,
                "environment_step": row["step"],
                "step_position": row["step"] - 1,
                "parse_attempt": row["parse_attempt"],
                "prompt_messages": (call.prompt or {}).get("messages"),
                "projected_prompt_messages": _projected(call),
                "media_ids": call.media_ids,
                "response": _response(call),
                "accepted": row["accepted"],
                "parse_error": row["parse_error"],
                "parsed_actions": row["actions"],
                "failure_stage": "response_parse" if row["failure_kind"] in REJECTED else None,
                "failure_kind": row["failure_kind"],
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
        "finish_reason": call.row["finish_reason"],
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
