"""The plan: batches, their registrations, the planned rollouts, and requests to run some again."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Table,
    UniqueConstraint,
    false,
)

from rollbook.ledger.tables.base import (
    JSON_DIGEST,
    Json,
    Jsonb,
    Time,
    check,
    integer,
    metadata,
    not_blank,
    now,
    one_of,
    row_digest,
    sha256_text,
    text,
)

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
    UniqueConstraint("batch_id", "launch_index"),
    check("registration_counts", "planned >= added AND added >= 0 AND planned > 0 AND launch_index >= 1"),
    check("registration_plan_digest", sha256_text("plan_digest")),
    comment="each launch of a batch and what it planned",
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
