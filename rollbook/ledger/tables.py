"""The ledger's tables. Rules that a database can hold are named checks here; the rest is in `sql/guards.sql`."""

from collections.abc import Iterable
from typing import Any, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    func,
)
from sqlalchemy import text as text_
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP

from models.admission import LEGACY_POLICY, RECONCILED_POLICY, RUNTIME_POLICY, Scope
from models.outcome import POLICY_STOPS, RETRYABLE, CauseKind, Infra

# Shared parts of the table definitions: naming, column kinds, and SQL lists of closed vocabularies.


metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(constraint_name)s",
    }
)

Json = JSON(none_as_null=True)
"""Text kept as it was written: for documents whose digest is recomputed from the stored text."""
Jsonb = JSONB(none_as_null=True)
"""Parsed JSON, for facts that people query."""
Time = TIMESTAMP(timezone=True)

JSON_DIGEST = "{digest} = encode(sha256(convert_to({document}::text, 'UTF8')), 'hex')"
"""The stored text is canonical JSON and the digest is its own: one cannot be exchanged without the other."""


def text(name: str, comment: str, *, null: bool = False, **options: Any) -> Column[str]:
    """A text column."""
    return Column(name, Text, nullable=null, comment=comment, **options)


def integer(name: str, comment: str, *, null: bool = False, **options: Any) -> Column[int]:
    """A 32-bit integer column."""
    return Column(name, Integer, nullable=null, comment=comment, **options)


def double(name: str, comment: str, *, null: bool = True) -> Column[float]:
    """A double precision column; ranges are named checks, which also refuse NaN and infinities."""
    return Column(name, Double, nullable=null, comment=comment)


def now(name: str, comment: str) -> Column[Any]:
    """A time set by the database when the row is written."""
    return Column(name, Time, nullable=False, server_default=func.now(), comment=comment)


def row_digest() -> Column[str]:
    """The seal of an insert-only row, set by a trigger; `rollbook audit` recomputes it."""
    return text("row_digest", "SHA-256 over the other columns, set by a trigger when the row is inserted")


def check(name: str, condition: str) -> CheckConstraint:
    """A named invariant."""
    return CheckConstraint(condition, name=name)


def one_of(column: str, values: Iterable[str]) -> str:
    """SQL: the column is NULL or one of a closed vocabulary."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def unit_interval(column: str) -> str:
    """SQL: NULL or finite within 0..1 (NaN sorts above every number in Postgres, so it is refused too)."""
    return f"{column} IS NULL OR ({column} >= 0 AND {column} <= 1)"


def sha256_text(column: str) -> str:
    """SQL: NULL or 64 lowercase hexadecimal digits."""
    return f"{column} ~ '^[0-9a-f]{{64}}$'"


def not_blank(column: str) -> str:
    """SQL: NULL or more than white space."""
    return f"{column} ~ '\\S'"


def to_attempt() -> ForeignKeyConstraint:
    """The row belongs to an attempt."""
    return ForeignKeyConstraint(["rollout_key", "attempt_index"], ["attempt.rollout_key", "attempt.attempt_index"])


def to_outcome() -> ForeignKeyConstraint:
    """The row belongs to the end of an attempt."""
    return ForeignKeyConstraint(["rollout_key", "attempt_index"], ["outcome.rollout_key", "outcome.attempt_index"])


# Inputs of batches: tasks, task sets, policy scripts, artifacts. All insert-only and content-addressed.


image = Table(
    "image",
    metadata,
    text("digest", "the provider's immutable identity of the image", primary_key=True),
    text("provider", "the provider that has it"),
    text("name", "the name under which it was first found"),
    Column("manifest", Jsonb, comment="the programs that the image declares to have; NULL when it declares nothing"),
    now("recorded_at", "when it was first inspected"),
    check("image_manifest", "manifest IS NULL OR jsonb_typeof(manifest) = 'object'"),
    comment="images of desktops that batches were registered with",
)

artifact = Table(
    "artifact",
    metadata,
    text("sha256", "digest of the bytes; their name in the artifact store", primary_key=True),
    Column("size_bytes", BigInteger, nullable=False, comment="size of the bytes"),
    text("media_type", "media type, for instance image/png"),
    now("recorded_at", "when the ledger first referred to it"),
    row_digest(),
    check("artifact_sha256", sha256_text("sha256")),
    check("artifact_size", "size_bytes >= 0"),
    check("artifact_media_type", not_blank("media_type")),
    comment="bytes in the artifact store that the ledger refers to",
)

task = Table(
    "task",
    metadata,
    text("task_digest", "SHA-256 of the canonical JSON of the document", primary_key=True),
    text("task_id", "OSWorld's id of the task"),
    Column("document", Json, nullable=False, comment="the task in OSWorld's format, as canonical JSON"),
    now("recorded_at", "when the document was first registered"),
    text("unscorable", "why the evaluator cannot set it up or score it; NULL where it can", null=True),
    check("task_unscorable", not_blank("unscorable")),
    check("task_digest_of_document", JSON_DIGEST.format(digest="task_digest", document="document")),
    check("task_id_of_document", "document ->> 'id' = task_id"),
    comment="one version of one task",
)

task_set = Table(
    "task_set",
    metadata,
    Column("registration", Integer, Identity(always=True), primary_key=True, comment="order of registration"),
    text("name", "name of the set; the newest registration under a name wins"),
    text("set_digest", "content address of the set, independent of file order and layout"),
    integer("task_count", "tasks in the set"),
    now("registered_at", "when it was registered under this name"),
    check("task_set_digest", sha256_text("set_digest")),
    check("task_set_count", "task_count > 0"),
    comment="names of registered task sets",
)
Index("task_set_name_idx", task_set.c.name, task_set.c.registration)

task_set_member = Table(
    "task_set_member",
    metadata,
    text("set_digest", "the set", primary_key=True),
    text("task_id", "the task; once per set", primary_key=True),
    text("domain", "the task's folder, for instance os or multi_apps"),
    Column(
        "task_digest",
        ForeignKey("task.task_digest"),
        nullable=False,
        comment="the version of the task that the set holds",
    ),
    comment="which tasks a set holds",
)

policy_script = Table(
    "policy_script",
    metadata,
    text("script_digest", "SHA-256 of the canonical JSON of the body", primary_key=True),
    Column("body", Json, nullable=False, comment="steps per task, as canonical JSON"),
    now("recorded_at", "when the body was first registered"),
    check("policy_script_digest_of_body", JSON_DIGEST.format(digest="script_digest", document="body")),
    comment="recorded steps that a scripted policy plays",
)

policy_script_name = Table(
    "policy_script_name",
    metadata,
    Column("registration", Integer, Identity(always=True), primary_key=True, comment="order of registration"),
    text("name", "name of the script; the newest registration under a name wins"),
    Column("script_digest", ForeignKey("policy_script.script_digest"), nullable=False, comment="what the name means"),
    now("registered_at", "when it was registered under this name"),
    comment="names of registered scripts",
)
Index("policy_script_name_name_idx", policy_script_name.c.name, policy_script_name.c.registration)


# The plan: batches, their registrations, the planned rollouts, and requests to run some again.


STATES = ("waiting", "queued", "running", "final")


def _flag(name: str, comment: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=false(), comment=comment)


batch = Table(
    "batch",
    metadata,
    text("batch_id", "workflow id of the BenchmarkBatch", primary_key=True),
    text("deployment_id", "the deployment that runs it"),
    text("namespace", "Temporal namespace"),
    Column("contract", Json, nullable=False, comment="everything that gives one rollout its meaning, canonical JSON"),
    text("contract_digest", "SHA-256 of the contract"),
    text("purpose", "eval or train, as in the contract"),
    _flag("paused", "control: nothing new is started"),
    _flag("frozen", "control: running episodes are suspended and their deadlines do not advance"),
    _flag("stopping", "control: nothing new is started or claimed; planned rows stay planned"),
    _flag("cancelling", "control: open rows are being closed as cancelled"),
    text("control_reason", "why the control was last changed", server_default=""),
    integer("concurrency", "control: episodes that may run at once"),
    integer("max_attempts", "attempts per rollout since its last rerun request"),
    text("launch_id", "the launch that the control belongs to"),
    now("created_at", "first registration"),
    Column("closed_at", Time, comment="when every row was found final; NULL while open"),
    check("batch_id_form", "batch_id ~ '^[A-Za-z0-9][A-Za-z0-9_.-]*$'"),
    check("batch_contract_digest", JSON_DIGEST.format(digest="contract_digest", document="contract")),
    check("batch_purpose", f"{one_of('purpose', ('eval', 'train'))} AND purpose = contract ->> 'purpose'"),
    check("batch_frozen_is_paused", "paused OR NOT frozen"),
    check("batch_concurrency", "concurrency >= 1"),
    check("batch_max_attempts", "max_attempts >= 1"),
    comment="one batch of rollouts under one contract",
)

registration = Table(
    "registration",
    metadata,
    Column("batch_id", ForeignKey("batch.batch_id"), primary_key=True, comment="the batch"),
    text("launch_id", "first run id of the launch", primary_key=True),
    integer("launch_index", "1, 2, … per batch"),
    Column("spec", Jsonb, nullable=False, comment="the spec as it was submitted"),
    text("deployment_id", "the deployment that runs the batch"),
    text("namespace", "Temporal namespace of the batch"),
    text("set_digest", "the task set that the spec's name meant"),
    integer("planned", "rollouts of the batch after this registration, all of them"),
    integer("added", "rollouts that this registration added"),
    text("plan_digest", "SHA-256 over every planned rollout of the batch after this registration"),
    now("registered_at", "when it was registered"),
    row_digest(),
    text("notice", "something to know about the batch besides errors", server_default=""),
    UniqueConstraint("batch_id", "launch_index"),
    check("registration_counts", "planned >= added AND added >= 0 AND planned > 0 AND launch_index >= 1"),
    check("registration_plan_digest", sha256_text("plan_digest")),
    comment="each launch of a batch and what it planned",
)

excluded_task = Table(
    "excluded_task",
    metadata,
    text("batch_id", "the batch", primary_key=True),
    text("task_id", "the task that its spec selects and no rollout is planned for", primary_key=True),
    text("domain", "the task's folder"),
    Column("task_digest", ForeignKey("task.task_digest"), nullable=False, comment="version of the task"),
    text("launch_id", "the launch that first left it out"),
    text("reason", "what the image lacks, or why the evaluator cannot score it"),
    now("recorded_at", "when it was left out"),
    row_digest(),
    ForeignKeyConstraint(["batch_id", "launch_id"], ["registration.batch_id", "registration.launch_id"]),
    check("excluded_task_reason", not_blank("reason")),
    comment="tasks that a batch leaves out because they cannot be run or scored here",
)

rollout = Table(
    "rollout",
    metadata,
    text("rollout_key", "batch/domain/task/sample; also the id of the Episode workflow", primary_key=True),
    Column("batch_id", ForeignKey("batch.batch_id"), nullable=False, comment="the batch"),
    text("domain", "the task's folder"),
    text("task_id", "OSWorld's id of the task"),
    integer("sample", "sample index within the task, from 0"),
    Column(
        "task_digest",
        ForeignKey("task.task_digest"),
        nullable=False,
        comment="version of the task, pinned when the row was planned",
    ),
    text("identity_source", "derived, or caller when a trainer gave the identity", server_default="derived"),
    text("sampling_event_id", "the trainer's sampling event; only with source_group_id", null=True),
    text("source_group_id", "the trainer's group before scoping; only with sampling_event_id", null=True),
    text("group_id", "comparison group: rollouts of one task that are compared with each other"),
    integer("rollout_index", "position within the group, from 0"),
    integer("plan_order", "the order in which rows are started, from 0"),
    text("state", "waiting, queued, running or final", server_default="waiting"),
    Column("queued_at", Time, comment="when the Episode workflow was last started for this row"),
    integer("current_attempt", "newest attempt; NULL before the first claim", null=True),
    integer("selected_attempt", "the attempt that counts; NULL before the first end", null=True),
    integer("decisions", "admission decisions on its attempts, counted by a trigger", server_default="0"),
    now("planned_at", "when the row was planned"),
    UniqueConstraint("batch_id", "task_id", "sample"),
    UniqueConstraint("batch_id", "plan_order"),
    UniqueConstraint("sampling_event_id", "source_group_id", "task_id", "rollout_index", name="rollout_caller_key"),
    ForeignKeyConstraint(
        ["rollout_key", "current_attempt"],
        ["attempt.rollout_key", "attempt.attempt_index"],
        name="rollout_current_attempt_fkey",
        use_alter=True,
    ),
    ForeignKeyConstraint(
        ["rollout_key", "selected_attempt"],
        ["outcome.rollout_key", "outcome.attempt_index"],
        name="rollout_selected_attempt_fkey",
        use_alter=True,
    ),
    check("rollout_key_form", "rollout_key = batch_id || '/' || domain || '/' || task_id || '/' || sample"),
    check("rollout_numbers", "sample >= 0 AND rollout_index >= 0 AND plan_order >= 0"),
    check("rollout_state", one_of("state", STATES)),
    check("rollout_identity_source", one_of("identity_source", ("derived", "caller"))),
    check(
        "rollout_identity_complete",
        "(sampling_event_id IS NULL) = (source_group_id IS NULL)"
        " AND (sampling_event_id IS NULL) = (identity_source = 'derived')",
    ),
    check("rollout_caller_ids", r"sampling_event_id ~ '\S' AND source_group_id ~ '\S'"),
    check("rollout_group", not_blank("group_id")),
    check("rollout_queued", "state <> 'queued' OR queued_at IS NOT NULL"),
    check("rollout_running", "state <> 'running' OR current_attempt IS NOT NULL"),
    check("rollout_final", "state <> 'final' OR selected_attempt IS NOT NULL"),
    check("rollout_selected", "selected_attempt IS NULL OR selected_attempt <= current_attempt"),
    comment="one logical rollout: who must be present",
)
Index("rollout_waiting_idx", rollout.c.batch_id, rollout.c.plan_order, postgresql_where=rollout.c.state == "waiting")
Index(
    "rollout_in_flight_idx",
    rollout.c.batch_id,
    rollout.c.rollout_key,
    postgresql_where=rollout.c.state.in_(("queued", "running")),
)

completion = Table(
    "completion",
    metadata,
    Column("batch_id", ForeignKey("batch.batch_id"), primary_key=True, comment="the batch"),
    integer("completion_index", "1, 2, … per batch", primary_key=True),
    text("digest", "SHA-256 of the batch's record at that time; the record's name in the artifact store"),
    integer("rollouts", "rollouts of the batch at that time, all of them final"),
    now("recorded_at", "when the batch was found whole"),
    row_digest(),
    check("completion_digest", sha256_text("digest")),
    check("completion_numbers", "completion_index >= 1 AND rollouts >= 1"),
    comment="each time at which every row of a batch was final, and the digest of its rows",
)

rerun_request = Table(
    "rerun_request",
    metadata,
    Column("request", BigInteger, Identity(always=True), primary_key=True, comment="order of the requests"),
    Column("rollout_key", ForeignKey("rollout.rollout_key"), nullable=False, comment="the rollout"),
    integer("after_attempt", "the newest attempt when it was requested: the budget counts from here"),
    Column("supersede", Boolean, nullable=False, comment="the selected attempt was admitted and may be superseded"),
    text("reason", "why"),
    text("requested_by", "who"),
    now("requested_at", "when"),
    row_digest(),
    UniqueConstraint("rollout_key", "after_attempt"),
    ForeignKeyConstraint(
        ["rollout_key", "after_attempt"], ["outcome.rollout_key", "outcome.attempt_index"], use_alter=True
    ),
    check("rerun_request_reason", not_blank("reason")),
    check("rerun_request_by", not_blank("requested_by")),
    comment="requests to run a final rollout again; nothing is ever deleted",
)


# Attempts, their ends, evaluations, admission decisions, and the leases of desktops.


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
    Infra.DESKTOP_BROKEN,
)
"""Reasons after which another attempt may be due (`models.outcome.earns_new_attempt`, and a claim)."""

BROKEN = str(Infra.DESKTOP_BROKEN)
"""An ending without a score, whatever the guest made the evaluator return."""

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
    text("detail", "error text; of a score, the checks behind it; for people", server_default=""),
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
    check("evaluation_origin", "NOT completed OR evaluator_revision IS NOT NULL"),
    check("evaluation_duration", "duration_s IS NULL OR (duration_s >= 0 AND duration_s < 'Infinity')"),
    comment="the evaluator's answer for one attempt",
)

phase = Table(
    "phase",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    text("phase", "setup, postconfig or evaluation", primary_key=True),
    text("token", "the try of the phase", primary_key=True),
    Column("ok", Boolean, nullable=False, comment="OSWorld's code came to its end"),
    Column("guest_failed", Boolean, nullable=False, comment="an exchange with the guest failed"),
    text("detail", "error text, for people", server_default=""),
    Column("exchanges", Jsonb, nullable=False, comment="exchanges with the guest by port, and the failed ones"),
    Column("pressure", Jsonb, comment="pressure on the host at the end of the phase; NULL where it cannot be read"),
    Column("log_sha256", ForeignKey("artifact.sha256"), comment="the log of OSWorld's code"),
    Column("screenshot_sha256", ForeignKey("artifact.sha256"), comment="the screen after postconfig"),
    Column("started_at", Time, nullable=False, comment="when it began"),
    double("duration_s", "seconds that it took"),
    now("recorded_at", "when it was committed"),
    row_digest(),
    to_attempt(),
    check("phase_phase", one_of("phase", ("setup", "postconfig", "evaluation"))),
    check("phase_duration", "duration_s IS NULL OR (duration_s >= 0 AND duration_s < 'Infinity')"),
    comment="runs of OSWorld's code against a desktop, failed ones too",
)

examination = Table(
    "examination",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    text("cause", "whose doing a failure was: host, guest or unknown; NULL when nothing had failed", null=True),
    text("cause_detail", "the provider's evidence for it, for people", server_default=""),
    Column("tampered", Boolean, nullable=False, comment="the guest server is not the image's"),
    text("detail", "evidence of that, for people", server_default=""),
    Column("evidence", Jsonb, comment="changed system files and the guest server's process, as the provider sees them"),
    now("recorded_at", "when it was committed"),
    row_digest(),
    to_attempt(),
    check("examination_cause", one_of("cause", get_args(CauseKind))),
    check("examination_detail", "NOT tampered OR detail <> ''"),
    comment="what the provider of an attempt's desktop saw from outside when the attempt ended",
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
    check("outcome_broken_has_no_score", f"coalesce(infrastructure_failure_reason, '') <> '{BROKEN}' OR score IS NULL"),
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
    text("image_digest", "digest of the image that it was made from", null=True),
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

temporal_server = Table(
    "temporal_server",
    metadata,
    text("deployment_id", "the deployment", primary_key=True),
    text("namespace", "Temporal namespace", primary_key=True),
    integer(
        "adoption_index",
        "1, 2, … per deployment and namespace; 1 is the first worker's, later ones follow a loss",
        primary_key=True,
    ),
    text("namespace_id", "id of the namespace: another one has other workflows"),
    text("cluster_id", "id of the Temporal cluster"),
    text("reason", "why it was adopted"),
    text("adopted_by", "who adopted it: a worker, or a person"),
    now("adopted_at", "when"),
    check("temporal_server_ids", f"{not_blank('namespace_id')} AND {not_blank('cluster_id')}"),
    check("temporal_server_said", f"{not_blank('reason')} AND {not_blank('adopted_by')}"),
    check("temporal_server_index", "adoption_index >= 1"),
    comment="the Temporal servers that a deployment's workflows have lived on; the newest counts",
)


# Observations, model calls and actions, step by step. The bytes are artifacts.


FAILURE_KINDS = (
    "context_overflow",
    "transport_error",
    "output_truncated",
    "empty_response",
    "unparseable",
    "model_timeout",
)
"""Kinds of failed model calls (docs/reference/upstream-contract.md), and the deadline of one call."""


def _artifact(name: str, comment: str, *, null: bool = True) -> Column[str]:
    return Column(name, ForeignKey("artifact.sha256"), nullable=null, comment=comment)


turn = Table(
    "turn",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    integer("step", "0 is the observation before the first step", primary_key=True, autoincrement=False),
    _artifact("screenshot_sha256", "the screen after the step", null=False),
    _artifact("accessibility_tree_sha256", "the accessibility tree after the step"),
    _artifact("terminal_sha256", "the terminal's text after the step"),
    Column("actions", Jsonb, nullable=False, comment="one entry per action: op id, status, error, seconds, …"),
    integer("in_doubt", "actions whose effect is unknown: claimed in the guest, never run again"),
    integer("raised", "actions whose code raised in the guest"),
    Column("started_at", Time, nullable=False, comment="when the step's first action began"),
    now("ended_at", "when the observation was recorded"),
    row_digest(),
    Column("pressure", Jsonb, comment="pressure on the host after the observation; NULL where it cannot be read"),
    double("answer_s", "seconds in which the desktop answered the observation"),
    to_attempt(),
    check("turn_answer", "answer_s >= 0 AND answer_s < 'Infinity'"),
    check("turn_actions", "jsonb_typeof(actions) = 'array'"),
    check("turn_counts", "step >= 0 AND in_doubt >= 0 AND raised >= 0"),
    check("turn_times", "started_at <= ended_at"),
    comment="one step: what its actions did and what was seen after them",
)

model_call = Table(
    "model_call",
    metadata,
    text("rollout_key", "the rollout", primary_key=True),
    integer("attempt_index", "the attempt", primary_key=True, autoincrement=False),
    integer("step", "the step that was decided, from 1", primary_key=True, autoincrement=False),
    integer("parse_attempt", "1, 2, …: parser retries are calls of their own", primary_key=True, autoincrement=False),
    text("policy_kind", "scripted, noop or the model protocol"),
    Column("actions", Jsonb, nullable=False, comment="the parsed actions, a list of strings"),
    text("terminal_action", "DONE or FAIL, when the policy said so", null=True),
    text("policy_stop_reason", "why the policy's output ends the episode", null=True),
    Column("completed", Boolean, nullable=False, comment="the call returned a reply"),
    Column("accepted", Boolean, nullable=False, comment="the reply parsed and is acted upon"),
    text("parse_error", "why it did not parse", null=True),
    text("failure_kind", "kind of a model failure, from the closed set", null=True),
    text("finish_reason", "as the server reported it", null=True),
    text("summary", "one short line for people", server_default=""),
    _artifact("prompt_sha256", "the prompt as sent, images as media ids"),
    _artifact("response_sha256", "the reply as received, with tokens where the server gives them"),
    text("model_name", "model as requested", null=True),
    text("model_version", "model as the server reported it", null=True),
    integer("prompt_tokens", "tokens of the prompt, as the server counted them", null=True),
    integer("completion_tokens", "tokens of the reply, as the server counted them", null=True),
    double("latency_s", "seconds from request to reply"),
    Column("telemetry", Jsonb, comment="history decision, retries, server timings, …"),
    now("recorded_at", "when it was committed, before it was acted upon"),
    row_digest(),
    _artifact("image_sha256", "the current screen as sent, after scaling"),
    _artifact("tokens_sha256", "token ids and logprobs as the server gave them"),
    Column("said", Jsonb, comment="content, reasoning and tool calls of the reply; the thought and action text kept"),
    Column(
        "decides",
        Boolean,
        Computed("accepted OR policy_stop_reason IS NOT NULL", persisted=True),
        comment="the call decides its step: it is acted upon or ends the episode; at most one per step, generated",
    ),
    to_attempt(),
    check("model_call_numbers", "step >= 1 AND parse_attempt >= 1"),
    check("model_call_actions", "jsonb_typeof(actions) = 'array'"),
    check(
        "model_call_actions_are_text",
        """NOT jsonb_path_exists(actions, 'strict $[*] ? (@.type() != "string")', '{}', true)""",
    ),
    check("model_call_terminal", one_of("terminal_action", ("DONE", "FAIL"))),
    check("model_call_terminal_is_accepted", "terminal_action IS NULL OR accepted"),
    check("model_call_stop_vocabulary", one_of("policy_stop_reason", POLICY_STOPS)),
    check("model_call_failure_vocabulary", one_of("failure_kind", FAILURE_KINDS)),
    check("model_call_tokens", "prompt_tokens >= 0 AND completion_tokens >= 0"),
    check("model_call_policy_kind", not_blank("policy_kind")),
    check(
        "model_call_stop_alone",
        "policy_stop_reason IS NULL OR (terminal_action IS NULL AND jsonb_array_length(actions) = 0)",
    ),
    check("model_call_accepted", "NOT accepted OR (completed AND parse_error IS NULL)"),
    check("model_call_latency", "latency_s IS NULL OR (latency_s >= 0 AND latency_s < 'Infinity')"),
    comment="one call of the policy, committed before it is acted upon",
)
Index(
    "model_call_decides_idx",
    model_call.c.rollout_key,
    model_call.c.attempt_index,
    model_call.c.step,
    unique=True,
    postgresql_where=model_call.c.decides,
)


INSERT_ONLY = (
    artifact,
    image,
    task,
    task_set,
    task_set_member,
    policy_script,
    policy_script_name,
    temporal_server,
    registration,
    excluded_task,
    completion,
    rerun_request,
    attempt,
    evaluation,
    phase,
    examination,
    outcome,
    admission,
    turn,
    model_call,
)
"""Rows of these are never changed or deleted, by any role."""
