-- Statements of rollbook.ledger.completion.

-- name: record
SELECT line FROM batch_record WHERE batch_id = :batch_id ORDER BY position;

-- name: complete
INSERT INTO completion (batch_id, completion_index, digest, rollouts, row_digest)
SELECT :batch_id, coalesce(max(completion_index), 0) + 1, :digest,
    (SELECT count(*) FROM rollout WHERE batch_id = :batch_id), ''
FROM completion WHERE batch_id = :batch_id;

-- name: completions
SELECT completion_index, digest, recorded_at FROM completion WHERE batch_id = :batch_id ORDER BY completion_index;
