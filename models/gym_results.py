"""Results of NeMo Gym's OSWorld environment, read for import: doubtful rows are refused, no fact is made up.

A row carries its eligibility in `runtime_eligible`, or, in older results, only in `mask_sample`; a row with neither is
refused. Older rows are decided under the policy `legacy-mask-sample-v1`; newer ones must follow from their own facts.
A masked row that does not state a completed evaluation has no score, even if it has a number there.
See docs/reference/upstream-contract.md.
"""

import re
from typing import Any, Literal

from models.admission import LEGACY_POLICY, RUNTIME_POLICY
from models.base import Wire
from models.identity import digest
from models.outcome import (
    ELIGIBLE,
    INCOMPLETE,
    POLICY_STOPS,
    Infra,
    OutcomeFacts,
    RewardMode,
    TerminalAction,
    classify,
    reward_of,
)
from models.sanitize import SURROGATE, find_unstorable

_TERMINAL: dict[str | None, TerminalAction] = {"agent_done": "DONE", "agent_fail": "FAIL"}
_KNOWN = frozenset((*Infra, *INCOMPLETE, *ELIGIBLE))
_MAX_STEPS, _MAX_SAMPLE = 1_000_000, 999_999
"""Far above any real run; a larger number means a broken row."""

_SAMPLE = ("_ng_rollout_index", "rollout_index", "sample")


class ImportedRow(Wire):
    """One result: the rollout, its end, and the decision that came with it."""

    task_id: str
    sample: int
    facts: OutcomeFacts
    termination_reason: str
    admitted: bool
    reason: str
    policy_id: Literal["legacy-mask-sample-v1", "osworld-runtime-admission-v1"]
    score: float | None = None
    reward: float | None = None
    steps: int = 0
    detail: str = ""
    said: dict[str, Any] = {}
    """The row's own values of admission, score, reward and identity, and the digest of the whole row."""


def read_row(raw: Any, reward_mode: RewardMode) -> ImportedRow:
    """Read one result; raises ValueError that names the field."""
    if not isinstance(raw, dict):
        raise ValueError("a row must be a JSON object")
    if (field := find_unstorable(raw, chars=SURROGATE)) is not None:  # no digest of such a row exists
        raise ValueError(f"{field or 'a key'}: must not contain an unpaired surrogate")
    eligible, modern = _eligible(raw)
    termination = _termination(raw, eligible)
    facts = _facts(raw, termination)
    score = _score(raw, facts, eligible, reward_mode)
    facts = facts.model_copy(update={"evaluation_completed": score is not None})
    reason = _modern_reason(raw, facts, eligible) if modern else _legacy_reason(termination, eligible)
    return ImportedRow(
        task_id=_task_id(raw),
        sample=_sample(raw),
        facts=facts,
        termination_reason=termination or reason,
        admitted=eligible,
        reason=reason,
        policy_id=RUNTIME_POLICY if modern else LEGACY_POLICY,
        score=score,
        reward=reward_of(score, reward_mode),
        steps=_steps(raw),
        detail=(_text(raw, "error") or "")[:2000],
        said=_said(raw),
    )


def _find(raw: dict[str, Any], name: str) -> Any:
    """A field at the top, or as `osworld_<name>` in `verifier_metadata`; both must agree."""
    metadata = raw.get("verifier_metadata")
    inner = metadata.get(f"osworld_{name}") if isinstance(metadata, dict) else None
    outer = raw.get(name)
    if outer is None or inner is None:
        return inner if outer is None else outer
    if outer != inner or isinstance(outer, bool) != isinstance(inner, bool):
        raise ValueError(f"{name}: {outer!r} and verifier_metadata.osworld_{name} {inner!r} contradict each other")
    return outer


def _boolean(raw: dict[str, Any], name: str) -> bool | None:
    value = _find(raw, name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name}: must be true or false, not {value!r:.40}")
    return value


def _text(raw: dict[str, Any], name: str) -> str | None:
    value = _find(raw, name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}: must be a text, not {value!r:.40}")
    return value.strip() or None if value is not None else None


def _number(raw: dict[str, Any], name: str) -> float | None:
    value = _find(raw, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # nor NaN
        raise ValueError(f"{name}: must be a number from 0 to 1, not {value!r:.40}")
    return float(value)


def _eligible(raw: dict[str, Any]) -> tuple[bool, bool]:
    """Return (eligible, whether `runtime_eligible` gave it)."""
    eligible, masked = _boolean(raw, "runtime_eligible"), _boolean(raw, "mask_sample")
    if eligible is None and masked is None:
        raise ValueError("neither runtime_eligible nor mask_sample: one of them is required")
    if eligible is None:
        return not masked, False
    if masked is not None and masked == eligible:
        raise ValueError(f"mask_sample {masked} and runtime_eligible {eligible} contradict each other")
    return eligible, True


def _word(raw: dict[str, Any], name: str) -> str | None:
    """Read a reason; `Timeout` and `sandbox lost` are read as the words of the vocabulary."""
    written = _text(raw, name)
    word = re.sub(r"[\s-]+", "_", written.casefold()) if written else None
    return word if word in _KNOWN else written


def _termination(raw: dict[str, Any], eligible: bool) -> str | None:
    """Read the termination reason; raises ValueError where it contradicts the rest of the row."""
    termination, failure = _word(raw, "termination_reason"), _word(raw, "infrastructure_failure_reason")
    if eligible and failure:
        raise ValueError(f"infrastructure_failure_reason: a row that failed with {failure} is not eligible")
    if eligible and termination and _text(raw, "termination_reason") not in ELIGIBLE:
        raise ValueError(
            f"termination_reason: a row that ended with {termination} is not eligible; "
            f"an eligible row has no reason, or exactly one of {', '.join(ELIGIBLE)}"
        )
    if failure and termination and failure != termination:
        raise ValueError(f"infrastructure_failure_reason: {failure} and termination_reason {termination} contradict")
    return termination or failure


def _facts(raw: dict[str, Any], termination: str | None) -> OutcomeFacts:
    horizon = _boolean(raw, "horizon_reached")
    if termination == "max_steps" and horizon is False:
        raise ValueError("horizon_reached: max_steps implies it")
    ended = termination in ELIGIBLE and termination != "max_steps"
    if ended and horizon:
        raise ValueError(f"horizon_reached: {termination} excludes it")
    return OutcomeFacts(
        infrastructure_failure_reason=Infra(termination) if termination in set(Infra) else None,
        terminal_action=_TERMINAL.get(termination),
        environment_done=termination == "environment_done",
        horizon_reached=termination == "max_steps" or bool(horizon),
        policy_stop_reason=termination if termination in POLICY_STOPS else None,
    )


def _score(raw: dict[str, Any], facts: OutcomeFacts, eligible: bool, mode: RewardMode) -> float | None:
    completed, score, reward = _boolean(raw, "evaluation_completed"), _number(raw, "score"), _number(raw, "reward")
    if eligible and completed is False:
        raise ValueError("evaluation_completed: a row that was not evaluated is not eligible")
    if not (eligible or completed):
        return None  # a number there is a placeholder, not a score
    if score is None and mode == "raw":
        score = reward
    if score is None:
        raise ValueError(
            "score: missing, and a binary reward does not give it (raw scores as rewards: reward mode raw)"
        )
    if reward is not None and reward != reward_of(score, mode):
        raise ValueError(f"reward: {reward:g} is not the {mode} reward of score {score:g}; another reward mode?")
    return score


def _legacy_reason(termination: str | None, eligible: bool) -> str:
    return "legacy_runtime_valid" if eligible else termination or "legacy_runtime_masked"


def _modern_reason(raw: dict[str, Any], facts: OutcomeFacts, eligible: bool) -> str:
    policy = _text(raw, "runtime_admission_policy_id")
    if policy != RUNTIME_POLICY:
        raise ValueError(
            f"runtime_admission_policy_id: {policy!r:.60} with runtime_eligible; expected {RUNTIME_POLICY}"
        )
    if _boolean(raw, "evaluation_completed") is None:
        raise ValueError("evaluation_completed: missing; runtime_eligible comes with its facts")
    claimed = (_text(raw, "termination_reason"), eligible, _text(raw, "runtime_admission_reason"))
    classification = classify(facts)
    derived = (
        classification.termination_reason,
        classification.runtime_eligible,
        classification.runtime_admission_reason,
    )
    if claimed != derived:
        raise ValueError(f"runtime_eligible: the row says {claimed}, its facts say {derived}")
    return classification.runtime_admission_reason


def _agreed(values: list[Any], name: str) -> Any:
    present = [value for value in values if value is not None]
    if any(value != present[0] or isinstance(value, bool) for value in present):
        raise ValueError(f"{name}: its fields contradict each other: {present!r:.200}")
    return present[0] if present else None


def _member(raw: dict[str, Any], name: str, key: str) -> Any:
    inner = raw.get(name)
    return inner.get(key) if isinstance(inner, dict) else None


def _task_id(raw: dict[str, Any]) -> str:
    inner = [_member(raw, name, "task_id") for name in ("verifier_metadata", "trajectory_identity")]
    task_id = _agreed([raw.get("task_id"), *inner], "task_id")
    if not isinstance(task_id, str) or not task_id:
        raise ValueError("task_id: required, at the top or in verifier_metadata")
    return task_id


def _sample(raw: dict[str, Any]) -> int:
    carriers = [*(raw.get(name) for name in _SAMPLE), _member(raw, "trajectory_identity", "rollout_index")]
    index = _agreed(carriers, "rollout_index")
    if index is None:
        return 0
    if not isinstance(index, int) or not 0 <= index <= _MAX_SAMPLE:
        raise ValueError(f"rollout_index: must be a whole number from 0 to {_MAX_SAMPLE}, not {index!r:.40}")
    return index


def _steps(raw: dict[str, Any]) -> int:
    steps = _find(raw, "steps")
    if steps is None:
        return 0
    if isinstance(steps, list):
        return len(steps)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= _MAX_STEPS:
        raise ValueError(f"steps: must be a list or a number from 0 to {_MAX_STEPS}, not {steps!r:.40}")
    return steps


def is_not_terminal(raw: Any) -> bool:
    """Return True for a sidecar row of an attempt that is not its rollout's result; raises ValueError."""
    value = raw.get("_ng_failure_terminal") if isinstance(raw, dict) else None
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"_ng_failure_terminal: must be true or false, not {value!r:.40}")
    return value is False


_KEPT = (
    "mask_sample",
    "runtime_eligible",
    "evaluation_completed",
    "termination_reason",
    "score",
    "reward",
    "infrastructure_failure_reason",
)
_IDENTITY = (
    "schema_version",
    "rollout_id",
    "group_id",
    "task_id",
    "rollout_index",
    "attempt_index",
    "sampling_event_id",
    "source_group_id",
)


def _said(raw: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name in _KEPT if (value := _find(raw, name)) is not None}
    identity = {name: value for name in _IDENTITY if (value := _member(raw, "trajectory_identity", name)) is not None}
    return said | ({"trajectory_identity": identity} if identity else {}) | {"row_sha256": digest(raw)}
