-- Statements of rollbook.ledger.outcomes.

-- name: earlier_attempts
SELECT count(*) FILTER (WHERE reason IS DISTINCT FROM 'superseded') AS attempts,
       count(*) FILTER (WHERE reason = :reason) AS same
FROM (SELECT outcome.infrastructure_failure_reason AS reason
      FROM outcome
      WHERE rollout_key = :rollout_key AND attempt_index < :attempt_index AND attempt_index > coalesce(
          (SELECT max(after_attempt) FROM rerun_request WHERE rollout_key = :rollout_key), 0)) AS earlier;

-- name: is_admitted
SELECT admitted FROM admission
WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index AND scope = 'runtime'
ORDER BY decision_index DESC LIMIT 1;

-- name: evidence
-- The last call that decided a step, and the turns; `unseen`: it ends the episode without an action to observe.
SELECT coalesce(last.step, 0) AS decided, last.terminal_action, last.policy_stop_reason,
       coalesce(last.unseen, false) AS unseen, seen.turns, seen.newest
FROM (SELECT count(*) AS turns, coalesce(max(step), 0) AS newest FROM turn
      WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index) AS seen
LEFT JOIN LATERAL (
    SELECT step, terminal_action, policy_stop_reason,
           jsonb_array_length(actions) = 0 AND num_nonnulls(terminal_action, policy_stop_reason) > 0 AS unseen
    FROM model_call
    WHERE rollout_key = :rollout_key AND attempt_index = :attempt_index AND decides
    ORDER BY step DESC LIMIT 1
) AS last ON true;
