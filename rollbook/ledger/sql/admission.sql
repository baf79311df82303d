-- Statements of rollbook.ledger.admission.

-- name: lock_selected
SELECT rollout_key, plan_order FROM rollout
WHERE batch_id = :batch_id AND plan_order > :after AND selected_attempt IS NOT NULL
ORDER BY plan_order LIMIT :chunk
FOR NO KEY UPDATE;

-- name: facts
SELECT rollout.rollout_key, selected_attempt AS attempt_index, identity_source, closed_by, runtime_eligible,
       runtime_admission_reason, coalesce(counted.admitted, false) AS runtime_admitted,
       now.decision_index, now.admitted, now.reason, now.policy_id,
       (SELECT coalesce(sum(in_doubt), 0) FROM turn WHERE turn.rollout_key = rollout.rollout_key
            AND turn.attempt_index = selected_attempt) AS in_doubt,
       calls.replies, calls.replies_without_tokens
FROM rollout
JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = selected_attempt
LEFT JOIN current_admission AS counted ON counted.rollout_key = rollout.rollout_key
    AND counted.attempt_index = selected_attempt AND counted.scope = 'runtime'
LEFT JOIN current_admission AS now ON now.rollout_key = rollout.rollout_key
    AND now.attempt_index = selected_attempt AND now.scope = :scope
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE completed) AS replies,
           count(*) FILTER (WHERE completed AND (tokens_sha256 IS NULL
               OR telemetry -> 'token_problems' IS DISTINCT FROM '[]'))
               AS replies_without_tokens
    FROM model_call WHERE model_call.rollout_key = rollout.rollout_key AND attempt_index = selected_attempt
) AS calls
WHERE rollout.rollout_key = ANY(CAST(:keys AS text[])) ORDER BY plan_order;

-- name: append_decisions
INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                       evidence, row_digest)
SELECT rollout_key, attempt_index, :scope, decision_index, admitted, :policy_id, reason, :decided_by,
       evidence::jsonb, ''
FROM unnest(CAST(:keys AS text[]), CAST(:attempts AS integer[]), CAST(:indexes AS integer[]),
            CAST(:admitted AS boolean[]), CAST(:reasons AS text[]), CAST(:evidence AS text[]))
    AS new (rollout_key, attempt_index, decision_index, admitted, reason, evidence);

-- name: rerun_candidates
-- Rows of the batch that `which` selects; keys NULL: all of them.
SELECT rollout.rollout_key, state, coalesce(decision.admitted, false) AS admitted,
       coalesce(outcome.runtime_eligible, false) AS was_eligible
FROM rollout
LEFT JOIN outcome ON outcome.rollout_key = rollout.rollout_key
    AND outcome.attempt_index = rollout.selected_attempt
LEFT JOIN current_admission AS decision ON decision.rollout_key = rollout.rollout_key
    AND decision.attempt_index = rollout.selected_attempt AND decision.scope = 'runtime'
WHERE batch_id = :batch_id
    AND CASE CAST(:which AS text)
        WHEN 'masked' THEN state = 'final' AND NOT coalesce(decision.admitted, false)
        WHEN 'failed' THEN state = 'final' AND NOT coalesce(decision.admitted, false)
            AND infrastructure_failure_reason IS NOT NULL AND infrastructure_failure_reason <> 'cancelled'
        WHEN 'under pressure' THEN state = 'final'
            AND EXISTS (SELECT FROM under_pressure AS pressed WHERE pressed.rollout_key = rollout.rollout_key)
        WHEN 'all' THEN state = 'final'
        WHEN 'named' THEN true END
    AND (CAST(:keys AS text[]) IS NULL OR rollout.rollout_key = ANY(CAST(:keys AS text[])))
ORDER BY rollout.rollout_key;

-- name: lock_named
SELECT FROM rollout WHERE batch_id = :batch_id AND rollout_key = ANY(CAST(:keys AS text[]))
ORDER BY rollout_key FOR NO KEY UPDATE;

-- name: insert_requests
INSERT INTO rerun_request (rollout_key, after_attempt, supersede, reason, requested_by, row_digest)
SELECT rollout_key, current_attempt, rollout_key = ANY(CAST(:superseded AS text[])), :reason, :requested_by, ''
FROM rollout WHERE rollout_key = ANY(CAST(:keys AS text[])) AND state = 'final';

-- name: set_waiting
UPDATE rollout SET state = 'waiting' WHERE rollout_key = ANY(CAST(:keys AS text[]));

-- name: reopen_batch
UPDATE batch SET closed_at = NULL WHERE batch_id = :batch_id;
