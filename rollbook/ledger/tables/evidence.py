"""Observations, model calls and actions, step by step. The bytes are artifacts."""

from sqlalchemy import Boolean, Column, Computed, ForeignKey, Index, Table

from models.outcome import POLICY_STOPS
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
)

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
    to_attempt(),
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
