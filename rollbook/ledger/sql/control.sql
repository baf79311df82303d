-- Statements of rollbook.ledger.control.

-- name: has_open_rows
-- Two questions, one per partial index: asked as state <> 'final' it would read every final row of the batch.
SELECT EXISTS (SELECT FROM rollout WHERE batch_id = :batch_id AND state = 'waiting')
    OR EXISTS (SELECT FROM rollout WHERE batch_id = :batch_id AND state IN ('queued', 'running'));

-- name: startable
SELECT rollout_key, batch_id, domain, task_id, sample,
       coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy
FROM batch JOIN rollout USING (batch_id)
WHERE batch_id = :batch_id AND state = 'waiting'
    AND NOT (paused OR stopping OR cancelling)
ORDER BY plan_order
LIMIT least(:limit, greatest(0, (SELECT concurrency FROM batch WHERE batch_id = :batch_id)
    - (SELECT count(*) FROM rollout WHERE batch_id = :batch_id AND state IN ('queued', 'running'))));

-- name: stale_queued
SELECT rollout_key, batch_id, domain, task_id, sample,
       coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy
FROM batch JOIN rollout USING (batch_id)
WHERE batch_id = :batch_id AND state = 'queued' AND NOT cancelling
    AND queued_at < now() - make_interval(secs => :older_than_s)
ORDER BY queued_at
LIMIT :limit;

-- name: mark_queued
UPDATE rollout SET state = 'queued', queued_at = now()
WHERE rollout_key IN (
    SELECT rollout_key FROM rollout JOIN batch USING (batch_id)
    WHERE rollout_key = ANY(CAST(:keys AS text[])) AND state = ANY(CAST(:states AS text[]))
        AND (state = 'queued' OR NOT (stopping OR cancelling))
    ORDER BY rollout_key FOR NO KEY UPDATE OF rollout)
    AND state = ANY(CAST(:states AS text[]))
RETURNING rollout_key;

-- name: open_rows
SELECT rollout_key FROM rollout
WHERE batch_id = :batch_id AND state <> 'final'
ORDER BY rollout_key LIMIT 100000;

-- name: lock_open_rows
SELECT rollout_key FROM rollout
WHERE rollout_key = ANY(CAST(:keys AS text[])) AND state <> 'final'
ORDER BY rollout_key
FOR NO KEY UPDATE;

-- name: rows_to_close
SELECT rollout.*, made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL AS is_open,
       coalesce((SELECT admitted FROM admission AS decision
                 WHERE decision.rollout_key = rollout.rollout_key AND scope = 'runtime'
                   AND decision.attempt_index = rollout.selected_attempt
                 ORDER BY decision_index DESC LIMIT 1), false) AS keeps_selection
FROM rollout
LEFT JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
LEFT JOIN outcome AS ended ON ended.rollout_key = rollout.rollout_key AND ended.attempt_index = current_attempt
WHERE rollout.rollout_key = ANY(CAST(:keys AS text[])) AND state <> 'final';

-- name: insert_closed_attempts
-- Attempts of rows that never ran, or that have no open attempt.
INSERT INTO attempt (rollout_key, attempt_index, workflow_id, run_id, claim, execution_id, trajectory_rollout_id,
                     row_digest)
SELECT rollout_key, attempt_index, rollout_key, 'closed-' || execution_id, 1, execution_id, trajectory, ''
FROM unnest(CAST(:keys AS text[]), CAST(:indexes AS integer[]), CAST(:executions AS uuid[]),
            CAST(:trajectories AS text[])) AS new (rollout_key, attempt_index, execution_id, trajectory);

-- name: end_attempts
INSERT INTO outcome (rollout_key, attempt_index, evaluation_completed, infrastructure_failure_reason,
                     environment_done, horizon_reached, guest_failed, steps, detail, termination_reason,
                     runtime_eligible, runtime_admission_reason, runtime_admission_policy_id, score, reward,
                     reward_mode, closed_by, selected, next_state, turns, model_calls, evaluations, row_digest)
SELECT rollout_key, attempt_index, score IS NOT NULL, :reason, false, false, false, 0, :detail, :reason,
       false, :reason, :policy_id, score,
       CASE WHEN reward_mode = 'raw' THEN score WHEN score >= 1 THEN 1 WHEN score IS NOT NULL THEN 0 END,
       reward_mode, 'cancel', NOT keeps_selection, 'final',
       (SELECT count(*) FROM turn
        WHERE turn.rollout_key = new.rollout_key AND turn.attempt_index = new.attempt_index),
       (SELECT count(*) FROM model_call AS call
        WHERE call.rollout_key = new.rollout_key AND call.attempt_index = new.attempt_index),
       (evaluation.row_digest IS NOT NULL)::integer, ''
FROM unnest(CAST(:keys AS text[]), CAST(:indexes AS integer[]), CAST(:keeps AS boolean[]))
    AS new (rollout_key, attempt_index, keeps_selection)
LEFT JOIN evaluation USING (rollout_key, attempt_index)
CROSS JOIN (SELECT CAST(:reward_mode AS text) AS reward_mode) AS contract;

-- name: mask_rows
INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                       row_digest)
SELECT rollout_key, attempt_index, 'runtime', 1, false, :policy_id, :reason, 'cancel', ''
FROM unnest(CAST(:keys AS text[]), CAST(:indexes AS integer[])) AS new (rollout_key, attempt_index);

-- name: mask_for_training
INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                       row_digest)
SELECT rollout_key, attempt_index, 'training', 1, false, :training_policy_id, :training_reason, 'cancel', ''
FROM unnest(CAST(:keys AS text[]), CAST(:indexes AS integer[])) AS new (rollout_key, attempt_index)
JOIN rollout USING (rollout_key)
WHERE identity_source = 'caller';

-- name: close_rows
UPDATE rollout
SET state = 'final', current_attempt = new.attempt_index,
    selected_attempt = CASE WHEN new.keeps_selection THEN selected_attempt ELSE new.attempt_index END
FROM unnest(CAST(:keys AS text[]), CAST(:indexes AS integer[]), CAST(:keeps AS boolean[]))
    AS new (rollout_key, attempt_index, keeps_selection)
WHERE rollout.rollout_key = new.rollout_key;

-- name: refusals
-- Rollouts of the current launch whose model server refused what another attempt would send again.
SELECT count(DISTINCT ended.rollout_key)
FROM batch JOIN registration USING (batch_id, launch_id)
JOIN rollout USING (batch_id)
JOIN outcome AS ended USING (rollout_key)
WHERE batch_id = :batch_id AND ended.infrastructure_failure_reason = 'model_call_failed'
    AND ended.ended_at >= registration.registered_at
    AND EXISTS (SELECT FROM model_call AS call WHERE call.rollout_key = ended.rollout_key
        AND call.attempt_index = ended.attempt_index AND call.failure_kind = 'transport_error'
        AND call.telemetry ->> 'repeatable' = 'false');

-- name: endpoint_trouble
-- Calls of running attempts that found no working model server since the last answer of the same endpoint, in any batch
-- of the deployment.
WITH own AS (
    SELECT batch.deployment_id, registration.spec -> 'policy' ->> 'endpoint' AS endpoint
    FROM batch JOIN registration USING (batch_id, launch_id) WHERE batch_id = :batch_id
), call AS (
    SELECT model_call.rollout_key, model_call.completed, model_call.recorded_at, model_call.summary, model_call.parse_error,
           model_call.failure_kind = 'transport_error' AND model_call.telemetry ->> 'repeatable' = 'true' AS failed
    FROM own
    JOIN batch ON batch.deployment_id = own.deployment_id
    JOIN registration USING (batch_id, launch_id)
    JOIN rollout USING (batch_id)
    JOIN model_call ON model_call.rollout_key = rollout.rollout_key AND attempt_index = current_attempt
    WHERE batch.closed_at IS NULL AND spec -> 'policy' ->> 'endpoint' = own.endpoint AND rollout.state = 'running'
)
SELECT count(*) AS failures, count(DISTINCT rollout_key) AS rollouts, min(recorded_at) AS since,
       (array_agg(coalesce(parse_error, summary) ORDER BY recorded_at DESC))[1] AS detail
FROM call
WHERE failed AND recorded_at > coalesce((SELECT max(recorded_at) FROM call WHERE completed), '-infinity');

-- name: hold
-- The reason for which the pump starts nothing; an operator's reason of a pause or stop is left alone.
UPDATE batch SET control_reason = :reason
WHERE batch_id = :batch_id AND control_reason <> CAST(:reason AS text)
    AND (CAST(:reason AS text) = '' OR NOT (paused OR frozen OR stopping OR cancelling))
    AND (control_reason = '' OR starts_with(control_reason, :mark));
