"""Attempts, their ends, evaluations, admission decisions, and the leases of desktops."""

from sqlalchemy import Boolean, Column, Computed, ForeignKey, Index, Table, UniqueConstraint, Uuid
from sqlalchemy import text as text_

from models.admission import LEGACY_POLICY, RECONCILED_POLICY, RUNTIME_POLICY, Scope
from models.outcome import POLICY_STOPS, RETRYABLE, Infra
from rollbook.ledger.tables.base import (
    Jsonb,
    Time,
    check,
    double,
    integer,
    metadata,
    not_blank,
    now,
    one_of,
    row_digest,
    text,
    to_attempt,
    to_outcome,
    unit_interval,
)

TERMINATION = """CASE
    WHEN infrastructure_failure_reason IS NOT NULL THEN infrastructure_failure_reason
    WHEN NOT evaluation_completed THEN 'evaluation_incomplete'
    WHEN policy_stop_reason IS NOT NULL THEN policy_stop_reason
    WHEN terminal_action = 'DONE' THEN 'agent_done'
    WHEN terminal_action = 'FAIL' THEN 'agent_fail'
    WHEN environment_done THEN 'environment_done'
    WHEN horizon_reached THEN 'max_steps'
    ELSE 'rollout_state_incomplete' END"""
"""The classification in SQL; `models.outcome.classify` is the same table in Python."""

ELIGIBLE = """(infrastructure_failure_reason IS NULL AND evaluation_completed AND
    (policy_stop_reason IS NOT NULL OR terminal_action IS NOT NULL OR environment_done OR horizon_reached))"""

REWARD = "CASE WHEN reward_mode = 'raw' THEN score WHEN score >= 1 THEN 1 WHEN score IS NOT NULL THEN 0 END"

LEGACY = f"runtime_admission_policy_id = '{LEGACY_POLICY}'"

OUTSIDE = {"claim": Infra.SUPERSEDED, "cancel": Infra.CANCELLED, "reconcile": Infra.RECONCILED}
"""Writers that end an attempt from outside, each with its only reason."""

_OUTSIDE_REASON = " ".join(f"WHEN '{closer}' THEN '{reason}'" for closer, reason in OUTSIDE.items())

EARNS_MORE = (
    *(reason for reason in Infra if reason in RETRYABLE),
    Infra.EVALUATOR_ERROR,
    Infra.SETUP_FAILED,
    Infra.SUPERSEDED,
)
"""Reasons after which another attempt may be due (`models.outcome.earns_new_attempt`, and a claim)."""

EVALUATED_AND_MASKED = "NOT runtime_eligible AND evaluations > 0"
"""A score may be known, and yet the attempt does not count: among those are what audit and scoreboard count."""

attempt = Table(
    "attempt",
    metadata,
    Column("rollout_key", ForeignKey("rollout.rollout_key"), primary_key=True, comment="the rollout"),
    integer("attempt_index", "1, 2, … per rollout: the fence", primary_key=True, autoincrement=False),
    text("workflow_id", "id of the Episode workflow"),
    text("run_id", "Temporal run id; closed-… for a row that was closed without ever running"),
    integer("claim", "1, 2, … per run: the claim that made this attempt"),
    Column("execution_id", Uuid, nullable=False, unique=True, comment="fresh per attempt, outside semantic digests"),
    text("trajectory_rollout_id", "upstream's id of the rollout of this attempt"),
    now("claimed_at", "when it was claimed"),
    row_digest(),
    UniqueConstraint("run_id", "claim", "rollout_key"),
    check("attempt_numbers", "attempt_index >= 1 AND claim >= 1"),
    check("attempt_run", f"{not_blank('run_id')} AND {not_blank('workflow_id')}"),
    comment="one try of a rollout, on one desktop; open until it has an outcome",
)

evaluation = Table(
    "evaluation",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    Column("completed", Boolean, nullable=False, comment="the evaluator returned a score"),
    double("score", "the evaluator's score, 0..1; NULL, never 0, when it did not complete"),
    text("score_type", "type that the evaluator returned, for instance float", null=True),
    text("reason", "why it did not complete", null=True),
    Column("guest_failed", Boolean, nullable=False, comment="an exchange with the guest failed"),
    text("detail", "error text, for people", server_default=""),
    text("evaluator_revision", "revision of the evaluator", null=True),
    text("numpy_version", "version of numpy that the evaluator used", null=True),
    text("task_digest", "the task version that was evaluated"),
    text("isolation", "how the evaluator was confined", server_default=""),
    Column("exchanges", Jsonb, comment="what the forwarder saw between evaluator and guest, summed up"),
    Column("log_sha256", ForeignKey("artifact.sha256"), comment="the evaluator's log"),
    double("duration_s", "seconds the evaluation took"),
    now("recorded_at", "when it was committed"),
    row_digest(),
    to_attempt(),
    check("evaluation_score_range", unit_interval("score")),
    check("evaluation_score_iff_completed", "completed = (score IS NOT NULL)"),
    check("evaluation_reason_iff_not_completed", "completed = (reason IS NULL)"),
    check("evaluation_reason", one_of("reason", Infra)),
    check("evaluation_guest_failed", "NOT (completed AND guest_failed)"),
    check("evaluation_duration", "duration_s IS NULL OR (duration_s >= 0 AND duration_s < 'Infinity')"),
    comment="the evaluator's answer for one attempt",
)

outcome = Table(
    "outcome",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    Column("evaluation_completed", Boolean, nullable=False, comment="fact: the evaluator returned a score"),
    text("infrastructure_failure_reason", "fact: what failed outside the policy, first by precedence", null=True),
    text("terminal_action", "fact: DONE or FAIL, when the policy said so", null=True),
    Column("environment_done", Boolean, nullable=False, comment="fact: the environment ended the episode"),
    Column("horizon_reached", Boolean, nullable=False, comment="fact: the step limit was reached"),
    text("policy_stop_reason", "fact: why the policy's output ended the episode", null=True),
    Column("guest_failed", Boolean, nullable=False, comment="fact: an exchange with the guest failed in evaluation"),
    integer("steps", "steps taken"),
    text("detail", "error text, for people", server_default=""),
    text("termination_reason", "reason of the end, from the closed vocabulary"),
    Column("runtime_eligible", Boolean, nullable=False, comment="classification of the facts: may it be counted"),
    text("runtime_admission_reason", "reason of the classification"),
    text("runtime_admission_policy_id", "policy of the classification"),
    Column(
        "mask_sample",
        Boolean,
        Computed("NOT runtime_eligible", persisted=True),
        comment="NOT runtime_eligible, generated",
    ),
    double("score", "the evaluator's score, 0..1; NULL, never 0, where nothing was evaluated"),
    double("reward", "score through reward_mode; NULL where nothing was evaluated"),
    text("reward_mode", "binary or raw, as in the contract"),
    text("closed_by", "who ended it: episode, claim (superseded), cancel, reconcile or import"),
    Column("selected", Boolean, nullable=False, comment="it became the selected attempt when it ended"),
    text("next_state", "state of the rollout after it: final, running (earned a new attempt) or waiting"),
    integer("turns", "turn rows of the attempt when it ended"),
    integer("model_calls", "model_call rows of the attempt when it ended"),
    integer("evaluations", "evaluation rows of the attempt when it ended, 0 or 1"),
    now("ended_at", "when it ended"),
    row_digest(),
    to_attempt(),
    check("outcome_score_range", unit_interval("score")),
    check("outcome_reward_range", unit_interval("reward")),
    check("outcome_score_iff_evaluated", "evaluation_completed = (score IS NOT NULL)"),
    check("outcome_reward_of_score", f"reward IS NOT DISTINCT FROM {REWARD}"),
    check("outcome_reward_mode", one_of("reward_mode", ("binary", "raw"))),
    check("outcome_eligible_is_evaluated", "NOT runtime_eligible OR (evaluation_completed AND score IS NOT NULL)"),
    check("outcome_failure_is_ineligible", "infrastructure_failure_reason IS NULL OR NOT runtime_eligible"),
    check("outcome_failure_vocabulary", one_of("infrastructure_failure_reason", Infra)),
    check("outcome_terminal_vocabulary", one_of("terminal_action", ("DONE", "FAIL"))),
    check("outcome_policy_stop_vocabulary", one_of("policy_stop_reason", POLICY_STOPS)),
    check(
        "outcome_horizon_excludes",
        "NOT (horizon_reached AND (terminal_action IS NOT NULL OR environment_done OR policy_stop_reason IS NOT NULL))",
    ),
    check(
        "outcome_policy_stop_excludes",
        "NOT (policy_stop_reason IS NOT NULL AND (terminal_action IS NOT NULL OR environment_done))",
    ),
    check("outcome_max_steps_is_horizon", "termination_reason <> 'max_steps' OR horizon_reached"),
    check(
        "outcome_reasons_not_blank",
        " AND ".join(
            not_blank(column)
            for column in ("termination_reason", "runtime_admission_reason", "runtime_admission_policy_id")
        ),
    ),
    check("outcome_termination", f"{LEGACY} OR termination_reason = {TERMINATION}"),
    check("outcome_eligibility", f"{LEGACY} OR runtime_eligible = {ELIGIBLE}"),
    check(
        "outcome_admission_reason",
        f"{LEGACY} OR runtime_admission_reason ="
        " CASE WHEN runtime_eligible THEN 'valid_evaluated_outcome' ELSE termination_reason END",
    ),
    check("outcome_counts", "steps >= 0 AND turns >= 0 AND model_calls >= 0 AND evaluations IN (0, 1)"),
    check("outcome_closed_by", one_of("closed_by", ("episode", "claim", "cancel", "reconcile", "import"))),
    check("outcome_next_state", one_of("next_state", ("final", "running", "waiting"))),
    check(
        "outcome_closed_from_outside",
        f"closed_by IN ('episode', 'import') OR infrastructure_failure_reason IS NOT DISTINCT FROM"
        f" CASE closed_by {_OUTSIDE_REASON} END",
    ),
    check(
        "outcome_another_attempt",
        f"next_state = 'final' OR coalesce({one_of('infrastructure_failure_reason', EARNS_MORE)}, false)",
    ),
    check(
        "outcome_policy_of_closer",
        f"runtime_admission_policy_id = '{RUNTIME_POLICY}' AND closed_by IN ('episode', 'claim', 'import')"
        f" OR runtime_admission_policy_id = '{RECONCILED_POLICY}' AND closed_by IN ('cancel', 'reconcile')"
        f" OR {LEGACY} AND closed_by = 'import'",
    ),
    check("outcome_final_is_selectable", "closed_by <> 'claim' OR (next_state = 'running' AND NOT selected)"),
    comment="the end of an attempt: facts, classification, score",
)
Index(
    "outcome_evaluated_then_closed_idx",
    outcome.c.rollout_key,
    outcome.c.attempt_index,
    postgresql_where=text_(EVALUATED_AND_MASKED),
)

admission = Table(
    "admission",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    text("scope", "runtime (may it be counted) or training (may it be trained on)", primary_key=True),
    integer(
        "decision_index",
        "1, 2, … per attempt and scope; the highest is in force",
        primary_key=True,
        autoincrement=False,
    ),
    Column("admitted", Boolean, nullable=False, comment="the decision"),
    text("policy_id", "the policy that decided"),
    text("reason", "why"),
    text("decided_by", "who or what decided"),
    Column("evidence", Jsonb, comment="what the decision rests on"),
    now("decided_at", "when"),
    row_digest(),
    to_outcome(),
    check("admission_scope", one_of("scope", Scope)),
    check("admission_decision_index", "decision_index >= 1"),
    check(
        "admission_texts_not_blank",
        f"{not_blank('policy_id')} AND {not_blank('reason')} AND {not_blank('decided_by')}",
    ),
    comment="decisions on ended attempts, append-only: facts, score and reward never change",
)

sandbox = Table(
    "sandbox",
    metadata,
    text("sandbox_key", "label by which the desktop is found again", primary_key=True),
    text("deployment_id", "the deployment that owns it"),
    text("provider", "docker, e2b or null"),
    text("sandbox_id", "the provider's id; NULL until it is created", null=True),
    text("rollout_key", "the rollout"),
    integer("attempt_index", "the attempt"),
    text("state", "intended, running or stopped"),
    text("nonce", "identity of the guest's boot; another one means another desktop", null=True),
    text("isolation", "full or partial: how far the guest is confined", null=True),
    text("view_url", "loopback live view, without a password", server_default=""),
    now("created_at", "when its creation was intended"),
    Column("started_at", Time, comment="when it was ready"),
    Column("lease_until", Time, nullable=False, comment="without renewal it may be reaped after this"),
    Column("stopped_at", Time, comment="when it was stopped"),
    text("stop_reason", "why it was stopped", null=True),
    to_attempt(),
    UniqueConstraint("rollout_key", "attempt_index"),
    check("sandbox_state", one_of("state", ("intended", "running", "stopped"))),
    check("sandbox_running", "state <> 'running' OR (sandbox_id IS NOT NULL AND nonce IS NOT NULL)"),
    check("sandbox_stopped", "(state = 'stopped') = (stopped_at IS NOT NULL)"),
    comment="leases of desktops, one per attempt",
)
Index("sandbox_live_idx", sandbox.c.deployment_id, sandbox.c.lease_until, postgresql_where=sandbox.c.state != "stopped")

sighting = Table(
    "sighting",
    metadata,
    Column("rollout_key", ForeignKey("rollout.rollout_key"), primary_key=True, comment="the rollout"),
    text("run_id", "the run that was not found; empty for a queued row", primary_key=True),
    integer("seen", "times in a row that its workflow was not found"),
    now("first_at", "first of them"),
    now("last_at", "last of them"),
    check("sighting_seen", "seen >= 0"),
    comment="working notes of reconciliation: one missing workflow alone proves nothing",
)
