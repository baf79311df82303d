-- Statements of rollbook.ledger.reader: reads only.

-- name: one_batch
SELECT batch.*, launch.launch_index, launch.spec, launch.set_digest, launch.registered_at, launch.notice,
       coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy
FROM batch LEFT JOIN LATERAL (
    SELECT * FROM registration WHERE registration.batch_id = batch.batch_id ORDER BY launch_index DESC LIMIT 1
) AS launch ON true
WHERE batch.batch_id = :batch_id;

-- name: newest_batches
SELECT batch.*, launch.launch_index, launch.spec, launch.set_digest, launch.registered_at, launch.notice,
       coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') AS policy
FROM batch LEFT JOIN LATERAL (
    SELECT * FROM registration WHERE registration.batch_id = batch.batch_id ORDER BY launch_index DESC LIMIT 1
) AS launch ON true
ORDER BY batch.created_at DESC
LIMIT :limit;

-- name: batch_ids
SELECT batch_id FROM batch ORDER BY created_at DESC LIMIT 500;

-- name: domains
SELECT domain, planned, waiting, running, admitted, masked, excluded FROM rollcall
WHERE batch_id = :batch_id AND domain <> '(all)';

-- name: excluded
SELECT domain, task_id, reason FROM excluded_task WHERE batch_id = :batch_id
ORDER BY domain_rank(domain), domain, task_id;

-- name: masked
SELECT admission_reason AS reason, count(*) AS rollouts FROM rollout_result WHERE batch_id = :batch_id AND masked
GROUP BY admission_reason ORDER BY rollouts DESC, admission_reason;

-- name: under_pressure
SELECT rollout_key, attempt_index, phase, resource, percent FROM under_pressure WHERE batch_id = :batch_id
ORDER BY percent DESC, rollout_key;

-- name: pace
SELECT count(*) AS ended, extract(epoch FROM now() - :since) AS seconds
FROM rollout_result WHERE batch_id = :batch_id AND state = 'final' AND ended_at >= :since;

-- name: running
SELECT rollout.rollout_key, rollout.state, current_attempt AS attempt, attempt.claimed_at, sandbox.view_url,
       (SELECT max(step) FROM turn WHERE turn.rollout_key = rollout.rollout_key
            AND turn.attempt_index = current_attempt) AS step
FROM rollout
LEFT JOIN attempt ON attempt.rollout_key = rollout.rollout_key AND attempt.attempt_index = current_attempt
LEFT JOIN sandbox ON sandbox.rollout_key = rollout.rollout_key AND sandbox.attempt_index = current_attempt
    AND sandbox.state = 'running'
WHERE batch_id = :batch_id AND rollout.state IN ('queued', 'running')
ORDER BY attempt.claimed_at NULLS LAST, plan_order LIMIT :limit;

-- name: rollouts
SELECT rollout_key, domain, task_id, sample, state, attempts, selected_attempt, admitted, masked,
       admission_reason, termination_reason, score, reward, steps, detail
FROM rollout_result WHERE batch_id = :batch_id ORDER BY plan_order;

-- name: find
SELECT rollout_key FROM rollout
WHERE rollout_key = :part
   OR left(rollout_key, length(:part)) = :part OR right(rollout_key, length(:part)) = :part
ORDER BY rollout_key = :part DESC, planned_at DESC, rollout_key LIMIT :limit;

-- name: last_screens
SELECT DISTINCT ON (rollout_key) rollout_key, screenshot_sha256
FROM turn JOIN rollout USING (rollout_key)
WHERE batch_id = :batch_id AND turn.attempt_index = coalesce(selected_attempt, current_attempt)
    AND screenshot_sha256 IS NOT NULL
ORDER BY rollout_key, step DESC;

-- name: rollout
SELECT result.*, task.document ->> 'instruction' AS instruction,
       batch.contract -> 'limits' -> 'max_steps' AS max_steps
FROM rollout_result AS result JOIN task USING (task_digest) JOIN batch USING (batch_id)
WHERE rollout_key = :key;

-- name: attempts
SELECT attempt.attempt_index, run_id, execution_id, trajectory_rollout_id, claimed_at, ended_at, termination_reason,
       closed_by, outcome.steps, outcome.detail, outcome.score, outcome.reward, outcome.guest_failed,
       evaluation.completed AS evaluated, evaluation.score AS evaluator_score, evaluation.score_type,
       evaluation.reason AS evaluation_reason, evaluation.detail AS evaluation_detail,
       evaluator_revision, numpy_version, log_sha256, evaluation.duration_s AS evaluation_s,
       provider, sandbox_id, sandbox.state AS sandbox_state, sandbox.isolation, view_url,
       cause, cause_detail, tampered, examination.detail AS examination_detail, evidence
FROM attempt
LEFT JOIN outcome USING (rollout_key, attempt_index)
LEFT JOIN evaluation USING (rollout_key, attempt_index)
LEFT JOIN sandbox USING (rollout_key, attempt_index)
LEFT JOIN examination USING (rollout_key, attempt_index)
WHERE rollout_key = :key ORDER BY attempt_index;

-- name: decisions
SELECT attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by, decided_at
FROM admission WHERE rollout_key = :key ORDER BY decided_at, attempt_index, scope, decision_index;

-- name: reruns
SELECT after_attempt, supersede, reason, requested_by, requested_at
FROM rerun_request WHERE rollout_key = :key ORDER BY request;

-- name: steps
SELECT step, call.summary, call.actions, call.terminal_action, call.policy_stop_reason, call.parse_error,
       call.model_name, call.latency_s, call.prompt_sha256, call.response_sha256, turn.actions AS done,
       turn.in_doubt, turn.raised, turn.screenshot_sha256, turn.accessibility_tree_sha256, turn.ended_at,
       turn.pressure, turn.answer_s
FROM (SELECT * FROM turn WHERE rollout_key = :key AND attempt_index = :attempt) AS turn
FULL JOIN (SELECT DISTINCT ON (step) * FROM model_call WHERE rollout_key = :key AND attempt_index = :attempt
           ORDER BY step, parse_attempt DESC) AS call USING (step)
ORDER BY step;

-- name: timeline
SELECT at, attempt_index, event, step, detail FROM episode_timeline WHERE rollout_key = :key ORDER BY at, step;

-- name: task_sets
SELECT DISTINCT ON (name) name, set_digest, task_count, registered_at,
       (SELECT string_agg(DISTINCT domain, ', ') FROM task_set_member AS member
        WHERE member.set_digest = task_set.set_digest) AS domains
FROM task_set ORDER BY name, registration DESC;

-- name: scripts
SELECT DISTINCT ON (name) name, script_digest, registered_at,
       (SELECT count(*) FROM policy_script AS script, json_object_keys(script.body -> 'tasks')
        WHERE script.script_digest = named.script_digest) AS tasks
FROM policy_script_name AS named ORDER BY name, registration DESC;

-- name: planned
SELECT domain, task_id, task_digest, count(*) AS samples FROM rollout WHERE batch_id = :batch_id
GROUP BY domain, task_id, task_digest;

-- name: scoreboard
SELECT * FROM scoreboard WHERE batch_id = :batch_id ORDER BY domain_rank(domain), domain;

-- name: pass_k
SELECT * FROM pass_k WHERE batch_id = :batch_id ORDER BY k;

-- name: spread
SELECT * FROM sample_spread WHERE batch_id = :batch_id;

-- name: members
SELECT domain, task_id, task_digest FROM task_set_member WHERE set_digest = :set_digest;

-- name: counts
SELECT count(*) AS planned,
       count(*) FILTER (WHERE state = 'waiting') AS waiting,
       count(*) FILTER (WHERE state IN ('queued', 'running')) AS running,
       count(*) FILTER (WHERE state = 'final' AND admitted) AS admitted,
       count(*) FILTER (WHERE state = 'final' AND NOT coalesce(admitted, false)) AS masked,
       (SELECT count(*) FROM excluded_task WHERE batch_id = :batch_id) AS excluded
FROM rollout LEFT JOIN current_admission AS decision
    ON decision.rollout_key = rollout.rollout_key AND decision.attempt_index = rollout.selected_attempt
    AND decision.scope = 'runtime'
WHERE batch_id = :batch_id;

-- name: launched_spec
SELECT spec FROM registration WHERE batch_id = :batch_id ORDER BY launch_index DESC LIMIT 1;

-- name: batch
SELECT batch_id, contract, contract_digest, deployment_id, purpose, created_at FROM batch WHERE batch_id = :batch_id;

-- name: planned_rollouts
SELECT rollout_key, domain, task_id, sample, state, selected_attempt, plan_order,
       admitted, score
FROM rollout_result WHERE batch_id = :batch_id ORDER BY plan_order;

-- name: group_statistics
SELECT rollout_key, group_planned, group_members, group_valid, group_baseline, group_advantage,
       training_admitted, training_reason, trainable, reward, reward_source
FROM training_rows WHERE batch_id = :batch_id;

-- name: planned_rollout
SELECT rollout.*, batch.contract, batch.contract_digest, batch.deployment_id, task.document
FROM rollout JOIN batch USING (batch_id) JOIN task USING (task_digest) WHERE rollout_key = :key;

-- name: attempt
SELECT * FROM attempt WHERE rollout_key = :key AND attempt_index = :attempt;

-- name: outcome
SELECT * FROM outcome WHERE rollout_key = :key AND attempt_index = :attempt;

-- name: calls
SELECT * FROM model_call WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY step, parse_attempt;

-- name: turns
SELECT turn.*, artifact.size_bytes AS screenshot_bytes
FROM turn LEFT JOIN artifact ON artifact.sha256 = turn.screenshot_sha256
WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY step;

-- name: decisions_in_force
SELECT scope, admitted, reason, policy_id, decided_by, decision_index FROM current_admission
WHERE rollout_key = :key AND attempt_index = :attempt ORDER BY scope;
