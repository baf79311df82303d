-- Audit: what must hold for a batch, from the ledger alone. Each query finds what does not: (subject, detail).
--
-- rollbook.ledger.audit runs them one after the other in one snapshot. The guards refuse all of this at the door; here nothing is taken on trust.

-- name: contract_digest
SELECT batch_id AS subject, 'the contract does not have its digest' AS detail FROM batch
WHERE batch_id = :batch_id
    AND contract_digest IS DISTINCT FROM encode(sha256(convert_to(contract::text, 'UTF8')), 'hex');

-- name: registration
SELECT batch.batch_id AS subject, 'the newest registration does not fit the batch' AS detail
FROM batch LEFT JOIN LATERAL (
    SELECT * FROM registration WHERE registration.batch_id = batch.batch_id ORDER BY launch_index DESC LIMIT 1
) AS newest ON true
WHERE batch.batch_id = :batch_id AND (batch.launch_id, batch.deployment_id, batch.namespace)
    IS DISTINCT FROM (newest.launch_id, newest.deployment_id, newest.namespace)
UNION ALL
SELECT :batch_id, 'launches ' || count(*) || ' of ' || max(launch_index) || ' are there, adding ' || sum(added)
    || ' of ' || max(planned) || ' rollouts'
FROM registration WHERE batch_id = :batch_id
HAVING count(*) <> max(launch_index) OR sum(added) <> max(planned);

-- name: completion
SELECT :batch_id AS subject, count(*) || ' of ' || coalesce(max(completion_index), 0) || ' completions are there'
    AS detail
FROM completion WHERE batch_id = :batch_id HAVING count(*) <> coalesce(max(completion_index), 0)
UNION ALL
SELECT batch_id, 'it is marked as closed, and no completion of that time has a digest; submit its spec again to record one'
FROM batch WHERE batch_id = :batch_id AND closed_at IS NOT NULL AND NOT EXISTS (
    SELECT FROM completion WHERE completion.batch_id = batch.batch_id AND recorded_at = closed_at);

-- name: plan_count
SELECT :batch_id AS subject, 'registered ' || newest.planned || ' rollouts, the ledger holds ' || held.number AS detail
FROM (SELECT planned FROM registration WHERE batch_id = :batch_id ORDER BY launch_index DESC LIMIT 1) AS newest,
     (SELECT count(*) AS number FROM rollout WHERE batch_id = :batch_id) AS held
WHERE newest.planned <> held.number;

-- name: task_digest
SELECT domain || '/' || planned.task_id AS subject,
    CASE WHEN task.task_digest IS NULL THEN 'the task document is missing'
         ELSE 'the task document does not have its digest' END AS detail
FROM (SELECT DISTINCT domain, task_id, task_digest FROM rollout WHERE batch_id = :batch_id) AS planned
LEFT JOIN task USING (task_digest)
WHERE task.task_digest IS NULL OR document ->> 'id' <> planned.task_id
    OR task_digest <> encode(sha256(convert_to(document::text, 'UTF8')), 'hex');

-- name: script_digest
SELECT coalesce(contract -> 'policy' ->> 'script_digest', '') AS subject,
    'the policy script is missing or does not have its digest' AS detail
FROM batch LEFT JOIN policy_script ON script_digest = contract -> 'policy' ->> 'script_digest'
WHERE batch_id = :batch_id AND contract -> 'policy' -> 'script_digest' IS NOT NULL
    AND (script_digest IS NULL OR script_digest <> encode(sha256(convert_to(body::text, 'UTF8')), 'hex'));

-- name: attempts
SELECT rollout_key AS subject, 'attempts ' || coalesce(made.number, 0) || ' of ' || coalesce(made.newest, 0)
    || ' are there, the current one is ' || coalesce(current_attempt::text, 'none') AS detail
FROM rollout LEFT JOIN (
    SELECT rollout_key, count(*) AS number, max(attempt_index) AS newest, min(attempt_index) AS oldest
    FROM attempt JOIN rollout USING (rollout_key) WHERE batch_id = :batch_id GROUP BY rollout_key
) AS made USING (rollout_key)
WHERE batch_id = :batch_id AND (made.newest IS DISTINCT FROM current_attempt OR made.number <> made.newest
    OR made.oldest <> 1);

-- name: identity
WITH member AS MATERIALIZED (
    SELECT task_id, group_id, coalesce(sampling_event_id, '') AS event, coalesce(source_group_id, '') AS source
    FROM rollout WHERE batch_id = :batch_id GROUP BY 1, 2, 3, 4
), worked AS MATERIALIZED (
    SELECT *, CASE WHEN event = ''
        THEN 'trajectory-group-' || left(encode(sha256(convert_to('[' || to_json(task_id) || ']', 'UTF8')), 'hex'), 24)
        ELSE 'group-' || left(encode(sha256(convert_to('[{"sampling_event_id":' || to_json(event)
            || ',"source_group_id":' || to_json(source) || '}]', 'UTF8')), 'hex'), 24) END AS expected,
        '[' || to_json(task_id) || ',' || to_json(group_id) || ',' AS derived_head,
        ',' || to_json(coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind')) || ']'
            AS derived_tail,
        ',"sampling_event_id":' || to_json(event) || ',"source_group_id":' || to_json(source)
            || ',"task_id":' || to_json(task_id) || '}]' AS caller_tail
    FROM member CROSS JOIN (SELECT contract FROM batch WHERE batch_id = :batch_id) AS batch
)
SELECT rollout_key AS subject, 'the group id does not follow from the identity' AS detail
FROM rollout JOIN worked ON worked.task_id = rollout.task_id AND worked.group_id = rollout.group_id
    AND event = coalesce(sampling_event_id, '') AND source = coalesce(source_group_id, '')
WHERE batch_id = :batch_id AND worked.group_id <> expected
UNION ALL
SELECT rollout_key, 'attempt ' || attempt_index || ': the trajectory id does not follow from the identity'
FROM rollout JOIN attempt USING (rollout_key)
JOIN worked ON worked.task_id = rollout.task_id AND worked.group_id = rollout.group_id
    AND event = coalesce(sampling_event_id, '') AND source = coalesce(source_group_id, '')
WHERE batch_id = :batch_id AND trajectory_rollout_id <> 'rollout-' || left(encode(sha256(convert_to(
    CASE WHEN event = '' THEN derived_head || rollout_index || ',' || attempt_index - 1 || derived_tail
    ELSE '[{"attempt_index":' || attempt_index - 1 || ',"rollout_index":' || rollout_index || caller_tail END,
    'UTF8')), 'hex'), 24);

-- name: shared_group
SELECT DISTINCT ours.rollout_key AS subject, 'group ' || ours.source_group_id || ' of sampling event '
    || ours.sampling_event_id || ' is also in batch ' || other.batch_id || ', task ' || other.task_id AS detail
FROM rollout AS ours JOIN rollout AS other ON other.sampling_event_id = ours.sampling_event_id
    AND other.source_group_id = ours.source_group_id
    AND (other.batch_id, other.task_id) <> (ours.batch_id, ours.task_id)
WHERE ours.batch_id = :batch_id;

-- name: state
WITH fact AS (
    SELECT rollout.rollout_key, rollout.state, rollout.current_attempt, made.attempt_index, ended.next_state,
           ended.attempt_index IS NULL AS is_open, again.request IS NOT NULL AS runs_again
    FROM rollout
    LEFT JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
    LEFT JOIN outcome AS ended ON ended.rollout_key = rollout.rollout_key AND ended.attempt_index = current_attempt
    LEFT JOIN rerun_request AS again ON again.rollout_key = rollout.rollout_key AND after_attempt = current_attempt
    WHERE batch_id = :batch_id
), allowed AS (
    SELECT rollout_key, state, CASE
        WHEN attempt_index IS NULL THEN ARRAY['waiting', 'queued']
        WHEN is_open THEN ARRAY['running']
        WHEN next_state = 'final' AND NOT runs_again THEN ARRAY['final']
        WHEN next_state = 'running' THEN ARRAY['running', 'waiting', 'queued']
        ELSE ARRAY['waiting', 'queued'] END AS states
    FROM fact
)
SELECT rollout_key AS subject, 'the state is ' || state || ', its attempts say ' || array_to_string(states, ' or ')
    AS detail
FROM allowed WHERE state <> ALL (states);

-- name: open_attempts
SELECT made.rollout_key AS subject, 'attempt ' || made.attempt_index || ' never ended' AS detail
FROM rollout JOIN attempt AS made USING (rollout_key)
LEFT JOIN outcome AS ended ON ended.rollout_key = made.rollout_key AND ended.attempt_index = made.attempt_index
WHERE batch_id = :batch_id AND ended.attempt_index IS NULL AND made.attempt_index IS DISTINCT FROM current_attempt;

-- name: outcome_without_attempt
SELECT ended.rollout_key AS subject, 'the end of attempt ' || ended.attempt_index || ' has no attempt' AS detail
FROM rollout JOIN outcome AS ended USING (rollout_key)
LEFT JOIN attempt AS made ON made.rollout_key = ended.rollout_key AND made.attempt_index = ended.attempt_index
WHERE batch_id = :batch_id AND made.attempt_index IS NULL;

-- name: rerun
SELECT ended.rollout_key AS subject, 'attempt ' || ended.attempt_index + 1 || ' followed a final end without a rerun '
    || 'request' AS detail
FROM rollout JOIN outcome AS ended USING (rollout_key)
JOIN attempt AS later ON later.rollout_key = ended.rollout_key AND later.attempt_index = ended.attempt_index + 1
LEFT JOIN rerun_request AS again ON again.rollout_key = ended.rollout_key AND after_attempt = ended.attempt_index
WHERE batch_id = :batch_id AND ended.next_state = 'final' AND again.request IS NULL;

-- name: selection
WITH expected AS (
    SELECT rollout_key, max(outcome.attempt_index) FILTER (WHERE selected) AS attempt_index
    FROM outcome JOIN rollout USING (rollout_key) WHERE batch_id = :batch_id GROUP BY rollout_key
)
SELECT rollout_key AS subject, 'selected is ' || coalesce(selected_attempt::text, 'none') || ', the ends say '
    || coalesce(expected.attempt_index::text, 'none') AS detail
FROM rollout LEFT JOIN expected USING (rollout_key)
WHERE batch_id = :batch_id AND (selected_attempt IS DISTINCT FROM expected.attempt_index
    OR (state = 'final' AND selected_attempt IS NULL));

-- name: ending
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': ' || termination_reason || ' by ' || closed_by
    || ' under ' || runtime_admission_policy_id || ', then ' || next_state || ': those do not go together' AS detail
FROM rollout JOIN outcome USING (rollout_key) JOIN batch USING (batch_id)
WHERE batch_id = :batch_id AND (
    (closed_by = 'import') <> coalesce(contract -> 'policy' ->> 'kind' = 'imported', false)
    OR runtime_admission_policy_id <> ALL (CASE
        WHEN closed_by = 'import' THEN ARRAY['osworld-runtime-admission-v1', 'legacy-mask-sample-v1']
        WHEN closed_by IN ('cancel', 'reconcile') THEN ARRAY['rollbook-reconciliation-v1']
        ELSE ARRAY['osworld-runtime-admission-v1'] END)
    OR (closed_by IN ('claim', 'cancel', 'reconcile') AND infrastructure_failure_reason IS DISTINCT FROM
        CASE closed_by WHEN 'claim' THEN 'superseded' WHEN 'cancel' THEN 'cancelled' ELSE 'reconciled' END)
    OR (next_state <> 'final' AND coalesce(infrastructure_failure_reason, '') NOT IN ('sandbox_start_failed',
        'sandbox_lost', 'setup_interrupted', 'setup_failed', 'evaluation_interrupted', 'evaluator_error',
        'model_call_failed', 'task_timeout', 'reconciled', 'superseded', 'desktop_broken'))
    OR (closed_by <> 'import' AND infrastructure_failure_reason = 'desktop_broken' AND next_state <> 'final'
        AND contract ->> 'on_desktop_broken' IS DISTINCT FROM 'retry'));

-- name: facts
-- One look per end, by index: joins of whole tables would depend on statistics that a young batch does not have yet.
SELECT rollout_key AS subject, 'attempt ' || ended.attempt_index || ': ' || termination_reason || ' after ' || steps
    || ' steps; its last decision is ' || coalesce('step ' || last.step || ': '
        || coalesce(last.terminal_action, last.policy_stop_reason, 'go on'), 'missing')
    || ', its last turn ' || coalesce('step ' || seen.step, 'missing') || ', turns ' || turns AS detail
FROM rollout JOIN outcome AS ended USING (rollout_key)
LEFT JOIN LATERAL (
    SELECT step, terminal_action, policy_stop_reason,
           jsonb_array_length(actions) = 0 AND num_nonnulls(terminal_action, policy_stop_reason) > 0 AS unseen
    FROM model_call AS call WHERE call.rollout_key = ended.rollout_key AND call.attempt_index = ended.attempt_index
        AND decides
    ORDER BY step DESC LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT step FROM turn WHERE turn.rollout_key = ended.rollout_key AND turn.attempt_index = ended.attempt_index
    ORDER BY step DESC LIMIT 1
) AS seen ON true
WHERE batch_id = :batch_id AND closed_by = 'episode' AND (
    ((num_nonnulls(ended.terminal_action, ended.policy_stop_reason) > 0 OR environment_done OR horizon_reached)
        AND (last.step, last.terminal_action, last.policy_stop_reason)
            IS DISTINCT FROM (steps, ended.terminal_action, ended.policy_stop_reason))
    OR (horizon_reached AND steps IS DISTINCT FROM
        (SELECT (contract -> 'limits' ->> 'max_steps')::integer FROM batch WHERE batch_id = :batch_id))
    -- an answer may have been committed and never have reached the run
    OR coalesce(last.step, 0) NOT BETWEEN steps AND steps + 1
    OR seen.step > steps
    -- the first observation and one per step, but for an end that acts no more
    OR (runtime_eligible AND (turns <> steps + 1 - last.unseen::integer
        OR seen.step > steps - last.unseen::integer)));

-- name: turn_counts
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ', step ' || step || ': ' || in_doubt || ' in doubt and '
    || raised || ' raised are not what its actions say' AS detail
FROM rollout JOIN turn USING (rollout_key)
WHERE batch_id = :batch_id AND (in_doubt, raised) IS DISTINCT FROM (
    jsonb_array_length(jsonb_path_query_array(actions, 'lax $[*] ? (@.status == "in_doubt")')),
    jsonb_array_length(jsonb_path_query_array(actions, 'lax $[*] ? (@.status == "raised")')));

-- name: max_attempts
WITH allowed AS (
    -- the registered specs alone: the batch's own column can be changed. Specs of imports have no such key.
    SELECT coalesce((SELECT max((spec ->> 'max_attempts')::integer) FROM registration
        WHERE batch_id = :batch_id), max_attempts) AS budget FROM batch WHERE batch_id = :batch_id
)
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': another one was due, ' || budget || ' are allowed'
    AS detail
FROM rollout JOIN outcome USING (rollout_key) CROSS JOIN allowed
WHERE batch_id = :batch_id AND next_state <> 'final' AND closed_by <> 'claim' AND budget <= (
    SELECT count(*) FROM outcome AS earlier
    WHERE earlier.rollout_key = outcome.rollout_key AND earlier.attempt_index <= outcome.attempt_index
        AND earlier.infrastructure_failure_reason IS DISTINCT FROM 'superseded'
        AND earlier.attempt_index > coalesce((SELECT max(after_attempt) FROM rerun_request AS again
            WHERE again.rollout_key = outcome.rollout_key AND after_attempt < outcome.attempt_index), 0));

-- name: selection_rule
SELECT newer.rollout_key AS subject, 'attempt ' || newer.attempt_index || ' should have been selected' AS detail
FROM rollout JOIN outcome AS newer USING (rollout_key)
WHERE batch_id = :batch_id AND NOT newer.selected AND newer.closed_by <> 'claim'
    AND (newer.runtime_eligible OR NOT EXISTS (
        SELECT FROM outcome AS older JOIN admission USING (rollout_key, attempt_index)
        WHERE older.rollout_key = newer.rollout_key AND older.attempt_index < newer.attempt_index
            AND older.selected AND scope = 'runtime' AND admitted));

-- name: classification
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': the facts say '
    || concat_ws(', ', rule.termination, CASE WHEN rule.eligible THEN 'eligible' ELSE 'ineligible' END)
    || '; recorded is ' || concat_ws(', ', termination_reason,
        CASE WHEN runtime_eligible THEN 'eligible' ELSE 'ineligible' END) AS detail
FROM rollout JOIN outcome USING (rollout_key)
CROSS JOIN LATERAL (
    SELECT infrastructure_failure_reason IS NULL AND evaluation_completed AND (policy_stop_reason IS NOT NULL
               OR terminal_action IS NOT NULL OR environment_done OR horizon_reached) AS eligible,
           CASE WHEN infrastructure_failure_reason IS NOT NULL THEN infrastructure_failure_reason
                WHEN NOT evaluation_completed THEN 'evaluation_incomplete'
                WHEN policy_stop_reason IS NOT NULL THEN policy_stop_reason
                WHEN terminal_action = 'DONE' THEN 'agent_done'
                WHEN terminal_action = 'FAIL' THEN 'agent_fail'
                WHEN environment_done THEN 'environment_done'
                WHEN horizon_reached THEN 'max_steps'
                ELSE 'rollout_state_incomplete' END AS termination
) AS rule
WHERE batch_id = :batch_id AND (closed_by, runtime_admission_policy_id) <> ('import', 'legacy-mask-sample-v1')
    AND (rule.termination <> termination_reason OR rule.eligible <> runtime_eligible
        OR mask_sample = runtime_eligible
        OR runtime_admission_reason <>
            CASE WHEN rule.eligible THEN 'valid_evaluated_outcome' ELSE rule.termination END);

-- name: origin
SELECT rollout_key AS subject, 'attempt ' || outcome.attempt_index || ' ran on image '
    || coalesce(image_digest, 'unknown') || ', evaluator ' || coalesce(evaluator_revision, 'unknown')
    || '; the contract has ' || coalesce(wanted_image, 'any') || ', ' || coalesce(wanted_revision, 'any') AS detail
FROM (SELECT contract -> 'resolved' ->> 'desktop_digest' AS wanted_image,
             contract -> 'resolved' ->> 'evaluator_revision' AS wanted_revision
      FROM batch WHERE batch_id = :batch_id) AS wanted
CROSS JOIN rollout JOIN outcome USING (rollout_key)
LEFT JOIN sandbox USING (rollout_key, attempt_index)
LEFT JOIN evaluation USING (rollout_key, attempt_index)
WHERE rollout.batch_id = :batch_id AND runtime_eligible AND closed_by <> 'import'
    AND (image_digest IS DISTINCT FROM wanted_image AND wanted_image IS NOT NULL
         OR evaluator_revision IS DISTINCT FROM wanted_revision AND wanted_revision IS NOT NULL);

-- name: score
SELECT outcome.rollout_key AS subject, 'attempt ' || outcome.attempt_index || ': score '
    || coalesce(outcome.score::text, 'none') || ', the evaluation says ' || coalesce(evaluation.score::text, 'none')
    AS detail
FROM rollout JOIN outcome USING (rollout_key)
LEFT JOIN evaluation ON evaluation.rollout_key = outcome.rollout_key
    AND evaluation.attempt_index = outcome.attempt_index
WHERE batch_id = :batch_id AND closed_by <> 'import'
    AND (outcome.evaluation_completed <> (outcome.score IS NOT NULL)
        -- masked ends did not carry it before revision 0007: see the notice evaluated_then_closed
        OR ((outcome.score IS NOT NULL OR (closed_by = 'episode' AND infrastructure_failure_reason IS NULL))
            AND outcome.score IS DISTINCT FROM evaluation.score)
        OR (evaluation.completed <> (evaluation.score IS NOT NULL))
        OR (evaluation.task_digest <> rollout.task_digest));

-- name: examined
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ' is eligible, and its guest server was not the image''s: '
    || examination.detail AS detail
FROM rollout JOIN outcome USING (rollout_key) JOIN examination USING (rollout_key, attempt_index)
WHERE batch_id = :batch_id AND tampered AND runtime_eligible;

-- name: reward
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': reward ' || coalesce(reward::text, 'none')
    || ' does not follow from score ' || coalesce(score::text, 'none') AS detail
FROM rollout JOIN outcome USING (rollout_key)
WHERE batch_id = :batch_id AND (reward_mode <>
    (SELECT contract ->> 'reward_mode' FROM batch WHERE batch_id = :batch_id) OR reward IS DISTINCT FROM
    CASE WHEN reward_mode = 'raw' THEN score WHEN score >= 1 THEN 1 WHEN score IS NOT NULL THEN 0 END);

-- name: evidence
WITH said AS (
    SELECT rollout_key, attempt_index, turns, model_calls, evaluations FROM rollout JOIN outcome USING (rollout_key)
    WHERE batch_id = :batch_id
), turn_count AS (
    SELECT rollout_key, attempt_index, count(*) AS number FROM turn JOIN rollout USING (rollout_key)
    WHERE batch_id = :batch_id GROUP BY rollout_key, attempt_index
), call_count AS (
    SELECT rollout_key, attempt_index, count(*) AS number FROM model_call JOIN rollout USING (rollout_key)
    WHERE batch_id = :batch_id GROUP BY rollout_key, attempt_index
), evaluation_count AS (
    SELECT rollout_key, attempt_index, count(*) AS number FROM evaluation JOIN rollout USING (rollout_key)
    WHERE batch_id = :batch_id GROUP BY rollout_key, attempt_index
)
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': '
    || coalesce(turn_count.number, 0) || ' of ' || turns || ' turns, '
    || coalesce(call_count.number, 0) || ' of ' || model_calls || ' model calls, '
    || coalesce(evaluation_count.number, 0) || ' of ' || evaluations || ' evaluations are there' AS detail
FROM said LEFT JOIN turn_count USING (rollout_key, attempt_index)
LEFT JOIN call_count USING (rollout_key, attempt_index)
LEFT JOIN evaluation_count USING (rollout_key, attempt_index)
WHERE (coalesce(turn_count.number, 0), coalesce(call_count.number, 0), coalesce(evaluation_count.number, 0))
    <> (turns, model_calls, evaluations);

-- name: first_decision
SELECT outcome.rollout_key AS subject, 'attempt ' || outcome.attempt_index || ': '
    || CASE WHEN admission.admitted IS NULL THEN 'it has no runtime decision'
            ELSE 'the first runtime decision is not the classification' END AS detail
FROM rollout JOIN outcome USING (rollout_key)
LEFT JOIN admission ON admission.rollout_key = outcome.rollout_key
    AND admission.attempt_index = outcome.attempt_index AND scope = 'runtime' AND decision_index = 1
WHERE batch_id = :batch_id AND (admission.admitted, admission.reason, admission.policy_id, admission.decided_by)
    IS DISTINCT FROM (runtime_eligible, runtime_admission_reason, runtime_admission_policy_id, closed_by)
UNION ALL
SELECT outcome.rollout_key, 'attempt ' || outcome.attempt_index || ': the first training decision is not the rule''s'
FROM rollout JOIN outcome USING (rollout_key)
LEFT JOIN admission ON admission.rollout_key = outcome.rollout_key
    AND admission.attempt_index = outcome.attempt_index AND scope = 'training' AND decision_index = 1
-- a cancel before revision 0007 left a masked end without one: what is masked is not trained on anyway
WHERE batch_id = :batch_id AND closed_by <> 'import' AND identity_source = 'caller'
    AND (runtime_eligible OR closed_by <> 'cancel' OR decided_by = closed_by)
    AND (admission.admitted, admission.policy_id, admission.decided_by, admission.reason)
    IS DISTINCT FROM (runtime_eligible, 'rollbook-training-admission-v1', closed_by,
        CASE WHEN runtime_eligible THEN 'valid_training_sample' ELSE 'rollout_sample_masked' END);

-- name: named_policy
SELECT said.rollout_key AS subject, 'attempt ' || said.attempt_index || ': decision ' || decision_index || ' on '
    || scope || ' by ' || decided_by || ' is not what policy ' || policy_id || ' says' AS detail
FROM rollout JOIN admission AS said USING (rollout_key)
JOIN outcome AS ended ON ended.rollout_key = said.rollout_key AND ended.attempt_index = said.attempt_index
CROSS JOIN LATERAL (
    SELECT count(*) AS replies,
        count(*) FILTER (WHERE tokens_sha256 IS NOT NULL AND telemetry -> 'token_problems' = '[]') AS with_tokens
    FROM model_call AS call
    WHERE call.rollout_key = said.rollout_key AND call.attempt_index = said.attempt_index AND completed
        AND policy_id = 'rollbook-exact-training-admission-v1'
) AS calls
CROSS JOIN LATERAL (
    SELECT runtime_eligible AND EXISTS (
        SELECT FROM turn WHERE turn.rollout_key = said.rollout_key AND turn.attempt_index = said.attempt_index
            AND in_doubt > 0) AS doubted,
        CASE WHEN identity_source <> 'caller' THEN 'caller_owned_rollout_identity_unavailable'
            -- which runtime decision was in force then is not on record, only which there were
            WHEN NOT EXISTS (
                SELECT FROM admission AS runtime WHERE runtime.rollout_key = said.rollout_key
                    AND runtime.attempt_index = said.attempt_index AND runtime.scope = 'runtime'
                    AND runtime.admitted = (said.reason <> 'rollout_sample_masked')) THEN 'of no runtime decision'
            WHEN said.reason = 'rollout_sample_masked' THEN said.reason
            WHEN policy_id = 'rollbook-training-admission-v1' THEN 'valid_training_sample'
            WHEN replies = 0 THEN 'model_call_evidence_unavailable'
            WHEN replies > with_tokens THEN 'exact_sampled_token_ids_unavailable'
            ELSE 'valid_training_sample' END AS trained
) AS rule
WHERE batch_id = :batch_id AND (scope <> 'runtime' OR decision_index > 1) AND (
    (decided_by IN ('episode', 'claim', 'cancel', 'reconcile', 'import')
        AND (decision_index > 1 OR decided_by <> closed_by))
    OR CASE policy_id
        WHEN 'osworld-runtime-admission-v1' THEN (scope, admitted, reason)
            IS DISTINCT FROM ('runtime', runtime_eligible, runtime_admission_reason)
        WHEN 'exclude-in-doubt-v1' THEN (scope, admitted, reason) IS DISTINCT FROM ('runtime',
            runtime_eligible AND NOT doubted, CASE WHEN doubted THEN 'action_in_doubt' ELSE runtime_admission_reason END)
        WHEN 'rollbook-training-admission-v1' THEN (scope, admitted, reason)
            IS DISTINCT FROM ('training', trained = 'valid_training_sample', trained)
        WHEN 'rollbook-exact-training-admission-v1' THEN (scope, admitted, reason)
            IS DISTINCT FROM ('training', trained = 'valid_training_sample', trained)
        ELSE policy_id IN ('legacy-mask-sample-v1', 'rollbook-reconciliation-v1') END);

-- name: decisions
WITH decided AS (
    SELECT admission.rollout_key, attempt_index, scope, count(*) AS number, max(decision_index) AS newest,
           bool_or(admitted) AS ever_admitted
    FROM rollout JOIN admission USING (rollout_key) WHERE batch_id = :batch_id
    GROUP BY admission.rollout_key, attempt_index, scope
), total AS (
    SELECT rollout_key, sum(number) AS number FROM decided GROUP BY rollout_key
)
SELECT rollout_key AS subject, coalesce(number, 0) || ' of ' || decisions || ' admission decisions are there' AS detail
FROM rollout LEFT JOIN total USING (rollout_key)
WHERE batch_id = :batch_id AND coalesce(number, 0) <> decisions
UNION ALL
SELECT rollout_key, 'attempt ' || attempt_index || ': ' || number || ' of ' || newest || ' ' || scope
    || ' decisions are there' FROM decided WHERE number <> newest
UNION ALL
SELECT decided.rollout_key, 'attempt ' || decided.attempt_index || ' was admitted without a score'
FROM decided LEFT JOIN outcome USING (rollout_key, attempt_index)
WHERE ever_admitted AND outcome.score IS NULL
UNION ALL
SELECT rollout_key, 'attempt ' || attempt_index || ': a derived identity was admitted to training'
FROM decided JOIN rollout USING (rollout_key)
WHERE ever_admitted AND scope = 'training' AND identity_source <> 'caller';

-- name: excluded_task
SELECT domain || '/' || task_id AS subject, 'excluded from the batch, and planned in it' AS detail
FROM excluded_task AS out WHERE batch_id = :batch_id
    AND EXISTS (SELECT FROM rollout WHERE rollout.batch_id = out.batch_id AND rollout.task_id = out.task_id);

-- name: row_digest
SELECT 'registration ' || launch_id AS subject, 'the row was changed after it was written' AS detail
FROM registration AS r WHERE batch_id = :batch_id AND row_digest <> seal(r)
UNION ALL
SELECT batch_id, 'completion ' || completion_index || ': the row was changed after it was written'
FROM completion AS r WHERE batch_id = :batch_id AND row_digest <> seal(r)
UNION ALL
SELECT 'excluded_task ' || r.task_id, 'the row was changed after it was written'
FROM excluded_task AS r WHERE batch_id = :batch_id AND row_digest <> seal(r)
UNION ALL
SELECT 'attempt ' || r.rollout_key || ' ' || r.attempt_index, 'the row was changed after it was written'
FROM rollout JOIN attempt AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'outcome ' || r.rollout_key || ' ' || r.attempt_index, 'the row was changed after it was written'
FROM rollout JOIN outcome AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'evaluation ' || r.rollout_key || ' ' || r.attempt_index, 'the row was changed after it was written'
FROM rollout JOIN evaluation AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'phase ' || r.rollout_key || ' ' || r.attempt_index || ' ' || phase, 'the row was changed after it was written'
FROM rollout JOIN phase AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'examination ' || r.rollout_key || ' ' || r.attempt_index, 'the row was changed after it was written'
FROM rollout JOIN examination AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'admission ' || r.rollout_key || ' ' || r.attempt_index || ' ' || scope || ' ' || decision_index,
    'the row was changed after it was written'
FROM rollout JOIN admission AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'rerun_request ' || r.rollout_key || ' ' || r.after_attempt, 'the row was changed after it was written'
FROM rollout JOIN rerun_request AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'turn ' || r.rollout_key || ' ' || r.attempt_index || ' ' || step, 'the row was changed after it was written'
FROM rollout JOIN turn AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r)
UNION ALL
SELECT 'model_call ' || r.rollout_key || ' ' || r.attempt_index || ' ' || step || ' ' || parse_attempt,
    'the row was changed after it was written'
FROM rollout JOIN model_call AS r USING (rollout_key) WHERE batch_id = :batch_id AND r.row_digest <> seal(r);

-- name: closed
SELECT batch_id AS subject, 'it is noted as closed, and not every row is final' AS detail FROM batch
WHERE batch_id = :batch_id AND closed_at IS NOT NULL
    AND EXISTS (SELECT FROM rollout WHERE rollout.batch_id = batch.batch_id AND state <> 'final');

-- name: not_final
SELECT rollout_key AS subject, 'the row is ' || state AS detail
FROM rollout WHERE batch_id = :batch_id AND state <> 'final' ORDER BY plan_order;

-- name: notice superseded
SELECT rollout_key AS subject, 'an admitted result was put up to be superseded: ' || reason || ' ('
    || requested_by || ')' AS detail
FROM rollout JOIN rerun_request USING (rollout_key) WHERE batch_id = :batch_id AND supersede;

-- name: notice evaluated_then_closed
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ' was evaluated (score ' || evaluation.score
    || ') and ended as ' || termination_reason || ', masked'
    || CASE WHEN next_state <> 'final' THEN '; another attempt was due' ELSE '' END
    || CASE WHEN EXISTS (
            SELECT FROM rerun_request AS again
            WHERE again.rollout_key = outcome.rollout_key AND after_attempt = outcome.attempt_index)
        THEN '; it was asked to run again' ELSE '' END AS detail
FROM rollout JOIN outcome USING (rollout_key) JOIN evaluation USING (rollout_key, attempt_index)
WHERE batch_id = :batch_id AND evaluation.completed AND NOT runtime_eligible
    AND (closed_by IN ('claim', 'cancel', 'reconcile') OR outcome.score IS NULL OR EXISTS (
        SELECT FROM attempt AS later
        WHERE later.rollout_key = outcome.rollout_key AND later.attempt_index > outcome.attempt_index)
    OR next_state <> 'final' OR EXISTS (
        SELECT FROM rerun_request AS again
        WHERE again.rollout_key = outcome.rollout_key AND after_attempt = outcome.attempt_index));

-- name: notice further_attempt
SELECT rollout.rollout_key AS subject, 'attempt ' || later.attempt_index || ' was made although the agent had acted in attempt '
    || acted.attempt_index || '; attempt ' || ended.attempt_index || ' ended as ' || termination_reason
    || coalesce(', cause ' || seen.cause || ': ' || seen.cause_detail, '') AS detail
FROM rollout
CROSS JOIN LATERAL (
    SELECT attempt_index FROM model_call WHERE model_call.rollout_key = rollout.rollout_key AND current_attempt > 1
        AND decides AND jsonb_array_length(actions) > 0
    ORDER BY attempt_index LIMIT 1) AS acted
JOIN attempt AS later USING (rollout_key)
JOIN outcome AS ended USING (rollout_key)
LEFT JOIN examination AS seen ON seen.rollout_key = ended.rollout_key AND seen.attempt_index = ended.attempt_index
WHERE batch_id = :batch_id AND later.attempt_index > acted.attempt_index
    AND ended.attempt_index = later.attempt_index - 1
ORDER BY plan_order, later.attempt_index;

-- name: notice desktop_broken
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ' of policy '
    || coalesce(contract -> 'policy' ->> 'model', contract -> 'policy' ->> 'kind') || ' broke its desktop: '
    || coalesce(nullif(examination.detail, ''), 'cause ' || cause || ': ' || cause_detail, outcome.detail)
    || CASE WHEN next_state <> 'final' THEN '; another attempt was due' ELSE '' END AS detail
FROM rollout JOIN outcome USING (rollout_key) JOIN batch USING (batch_id)
LEFT JOIN examination USING (rollout_key, attempt_index)
WHERE batch_id = :batch_id AND infrastructure_failure_reason = 'desktop_broken';

-- name: notice under_pressure
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': ' || phase || ' under pressure, ' || resource || ' '
    || percent || ' %; `rerun --under-pressure` runs such rollouts again' AS detail
FROM under_pressure WHERE batch_id = :batch_id ORDER BY rollout_key;

-- name: notice redecided
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ': ' || scope || ' '
    || CASE WHEN admitted THEN 'admitted' ELSE 'masked' END || ' by ' || decided_by || ': ' || reason AS detail
FROM rollout JOIN admission USING (rollout_key)
WHERE batch_id = :batch_id AND (decision_index > 1
    OR (scope = 'training' AND decided_by NOT IN ('episode', 'claim', 'cancel', 'reconcile', 'import')));

-- name: notice in_doubt
SELECT rollout_key AS subject, 'attempt ' || attempt_index || ', step ' || step || ': ' || in_doubt
    || ' actions whose effect is unknown' AS detail
FROM rollout JOIN turn USING (rollout_key) WHERE batch_id = :batch_id AND in_doubt > 0;

-- name: notice live_desktop
SELECT rollout_key AS subject, 'the desktop of ended attempt ' || attempt_index || ' is not stopped' AS detail
FROM rollout JOIN sandbox USING (rollout_key) JOIN outcome USING (rollout_key, attempt_index)
WHERE batch_id = :batch_id AND sandbox.state <> 'stopped';
