-- Statements of rollbook.ledger.audit besides its checks (audit_checks.sql).

-- name: references
WITH reference (sha256) AS (
    SELECT unnest(ARRAY[screenshot_sha256, accessibility_tree_sha256, terminal_sha256])
    FROM rollout JOIN turn USING (rollout_key) WHERE batch_id = :batch_id
    UNION SELECT unnest(ARRAY[prompt_sha256, response_sha256, image_sha256, tokens_sha256])
    FROM rollout JOIN model_call USING (rollout_key) WHERE batch_id = :batch_id
    UNION SELECT log_sha256 FROM rollout JOIN evaluation USING (rollout_key) WHERE batch_id = :batch_id
)
SELECT reference.sha256, artifact.row_digest IS NOT NULL AND artifact.row_digest = seal(artifact) AS recorded
FROM reference LEFT JOIN artifact ON artifact.sha256 = reference.sha256
WHERE reference.sha256 IS NOT NULL ORDER BY 1;

-- name: planned
SELECT task_id, domain, task_digest, count(*) AS number, min(sample) AS first, max(sample) AS last
FROM rollout WHERE batch_id = :batch_id GROUP BY task_id, domain, task_digest;

-- name: counts
SELECT count(*) AS planned, count(*) FILTER (WHERE state = 'final') AS final,
       (SELECT count(*) FROM excluded_task WHERE batch_id = :batch_id) AS excluded
FROM rollout WHERE batch_id = :batch_id;
