-- Views: the ledger's public interface in SQL. Names and columns are stable; columns are only ever added at the end.
--
-- Loaded by every migration run (rollbook.ledger.migrate): dropped and created as a whole, they hold no data.

CREATE VIEW current_admission AS
SELECT rollout_key, attempt_index, scope, decision_index, admitted, policy_id, reason, decided_by, decided_at
FROM admission AS decision
WHERE NOT EXISTS (
    SELECT FROM admission AS newer
    WHERE newer.rollout_key = decision.rollout_key AND newer.attempt_index = decision.attempt_index
      AND newer.scope = decision.scope AND newer.decision_index > decision.decision_index);
COMMENT ON VIEW current_admission IS 'the decision in force per attempt and scope';
