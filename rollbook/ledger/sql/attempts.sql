-- Statements of rollbook.ledger.attempts.

-- name: step
-- One look before a step: owner and end of the attempt, the call that decided the step (columns of CallRecord), and
-- if it was acted upon. The hot path of every episode.
SELECT made.run_id, ended.termination_reason, turn.step IS NOT NULL AS acted, call.*
FROM attempt AS made
LEFT JOIN outcome AS ended ON ended.rollout_key = made.rollout_key AND ended.attempt_index = made.attempt_index
LEFT JOIN turn ON turn.rollout_key = made.rollout_key AND turn.attempt_index = made.attempt_index
    AND turn.step = :step
LEFT JOIN LATERAL (
    SELECT * FROM model_call
    WHERE rollout_key = made.rollout_key AND attempt_index = made.attempt_index AND step = :step AND decides
) AS call ON true
WHERE made.rollout_key = :rollout_key AND made.attempt_index = :attempt_index;
