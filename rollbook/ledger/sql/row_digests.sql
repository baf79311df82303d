-- Seals: a digest over the columns of an insert-only row, set when it is inserted. `rollbook audit` recomputes it, so
-- that a row changed behind the guards' back is found.
--
-- Times enter as seconds and floats as bits: their text depends on session settings. A column added later gets a
-- second version of the function for the rows that have it, so that old rows keep their seal. STABLE like convert_to:
-- an IMMUTABLE wrapper of it is not inlined, which doubles the time of an audit.

CREATE OR REPLACE FUNCTION seal(r artifact) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.sha256, r.size_bytes, r.media_type, extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r registration) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.batch_id, r.launch_id, r.launch_index, r.spec, r.deployment_id, r.namespace, r.set_digest, r.planned, r.added,
    r.plan_digest, r.notice, extract(epoch FROM r.registered_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r excluded_task) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.batch_id, r.task_id, r.domain, r.task_digest, r.launch_id, r.reason, extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r completion) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.batch_id, r.completion_index, r.digest, r.rollouts, extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r rerun_request) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.request, r.rollout_key, r.after_attempt, r.supersede, r.reason, r.requested_by,
    extract(epoch FROM r.requested_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r attempt) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.workflow_id, r.run_id, r.claim, r.execution_id, r.trajectory_rollout_id,
    extract(epoch FROM r.claimed_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r evaluation) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.completed, encode(float8send(r.score), 'hex'), r.score_type, r.reason,
    r.guest_failed, r.detail, r.evaluator_revision, r.numpy_version, r.task_digest, r.isolation, r.exchanges,
    r.log_sha256, encode(float8send(r.duration_s), 'hex'), extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r phase) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.phase, r.token, r.ok, r.guest_failed, r.detail, r.exchanges, r.pressure,
    r.log_sha256, r.screenshot_sha256, extract(epoch FROM r.started_at), encode(float8send(r.duration_s), 'hex'),
    extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r examination) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.cause, r.cause_detail, r.tampered, r.detail, r.evidence,
    extract(epoch FROM r.recorded_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r outcome) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.evaluation_completed, r.infrastructure_failure_reason, r.terminal_action,
    r.environment_done, r.horizon_reached, r.policy_stop_reason, r.guest_failed, r.steps, r.detail,
    r.termination_reason, r.runtime_eligible, r.runtime_admission_reason, r.runtime_admission_policy_id,
    encode(float8send(r.score), 'hex'), encode(float8send(r.reward), 'hex'), r.reward_mode,
    r.closed_by, r.selected, r.next_state, r.turns, r.model_calls,
    r.evaluations, extract(epoch FROM r.ended_at)
)::text, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal(r admission) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.scope, r.decision_index, r.admitted, r.policy_id, r.reason, r.decided_by,
    r.evidence, extract(epoch FROM r.decided_at)
)::text, 'UTF8')), 'hex');

-- Rows from before revision 0020 have none of its columns, and keep their seal.
CREATE OR REPLACE FUNCTION seal(r turn) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.step, r.screenshot_sha256, r.accessibility_tree_sha256,
    r.terminal_sha256, r.actions, r.in_doubt, r.raised, extract(epoch FROM r.started_at),
    extract(epoch FROM r.ended_at)
)::text || CASE WHEN num_nonnulls(r.pressure, r.answer_s) = 0 THEN ''
    ELSE ROW(r.pressure, encode(float8send(r.answer_s), 'hex'))::text END, 'UTF8')), 'hex');

-- Rows from before revision 0005 have none of its columns, and keep their seal.
CREATE OR REPLACE FUNCTION seal(r model_call) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN encode(sha256(convert_to(ROW(
    r.rollout_key, r.attempt_index, r.step, r.parse_attempt, r.policy_kind, r.actions, r.terminal_action,
    r.policy_stop_reason, r.completed, r.accepted, r.parse_error, r.failure_kind, r.finish_reason, r.summary,
    r.prompt_sha256, r.response_sha256, r.model_name, r.model_version, r.prompt_tokens, r.completion_tokens,
    encode(float8send(r.latency_s), 'hex'), r.telemetry, extract(epoch FROM r.recorded_at)
)::text || CASE WHEN num_nonnulls(r.image_sha256, r.tokens_sha256, r.said) = 0 THEN ''
    ELSE ROW(r.image_sha256, r.tokens_sha256, r.said)::text END, 'UTF8')), 'hex');

CREATE OR REPLACE FUNCTION seal_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.row_digest := seal(NEW);
    RETURN NEW;
END $$;
