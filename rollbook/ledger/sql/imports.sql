-- Statements of rollbook.ledger.imports.

-- name: plan
INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, group_id, rollout_index,
                     plan_order)
SELECT rollout_key, :batch_id, domain, task_id, sample, task_digest, group_id, sample, plan_order
FROM unnest(CAST(:keys AS text[]), CAST(:domains AS text[]), CAST(:ids AS text[]), CAST(:samples AS integer[]), CAST(:digests AS text[]), CAST(:groups AS text[]), CAST(:orders AS integer[]))
    AS new (rollout_key, domain, task_id, sample, task_digest, group_id, plan_order);

-- name: insert_attempts
INSERT INTO attempt (rollout_key, attempt_index, workflow_id, run_id, claim, execution_id, trajectory_rollout_id,
                     row_digest)
SELECT rollout_key, 1, rollout_key, 'import-' || execution_id, 1, execution_id, trajectory, ''
FROM unnest(CAST(:keys AS text[]), CAST(:executions AS uuid[]), CAST(:trajectories AS text[])) AS new (rollout_key, execution_id, trajectory);

-- name: insert_decisions
INSERT INTO admission (rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by,
                       evidence, row_digest)
SELECT rollout_key, 1, 'runtime', 1, admitted, policy_id, reason, 'import', evidence::jsonb, ''
FROM unnest(CAST(:keys AS text[]), CAST(:admitted AS boolean[]), CAST(:policies AS text[]), CAST(:reasons AS text[]), CAST(:evidence AS text[]))
    AS new (rollout_key, admitted, policy_id, reason, evidence);

-- name: finish
UPDATE rollout SET state = 'final', current_attempt = 1, selected_attempt = 1 WHERE rollout_key = ANY(CAST(:keys AS text[]));
