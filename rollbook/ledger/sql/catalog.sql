-- Statements of rollbook.ledger.catalog.

-- name: insert_tasks
INSERT INTO task (task_digest, task_id, document, unscorable)
SELECT task_digest, task_id, document::json, unscorable
FROM unnest(CAST(:digests AS text[]), CAST(:ids AS text[]), CAST(:documents AS text[]), CAST(:unscorable AS text[]))
    AS new (task_digest, task_id, document, unscorable)
ON CONFLICT DO NOTHING;

-- name: insert_members
INSERT INTO task_set_member (set_digest, task_id, domain, task_digest)
SELECT :set_digest, * FROM unnest(CAST(:ids AS text[]), CAST(:domains AS text[]), CAST(:digests AS text[]))
ON CONFLICT DO NOTHING;
