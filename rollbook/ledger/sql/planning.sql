-- Statements of rollbook.ledger.planning.

-- name: plan_digest
SELECT encode(sha256(convert_to(string_agg(concat_ws(' ', rollout_key, task_digest, identity_source,
    sampling_event_id, source_group_id, group_id, rollout_index, plan_order, extract(epoch FROM planned_at)),
    E'\n' ORDER BY rollout_key COLLATE "C"), 'UTF8')), 'hex')
FROM rollout WHERE batch_id = :batch_id;

-- name: plan
INSERT INTO rollout (rollout_key, batch_id, domain, task_id, sample, task_digest, identity_source,
                     sampling_event_id, source_group_id, group_id, rollout_index, plan_order)
SELECT concat_ws('/', CAST(:batch_id AS text), domain, task_id, sample), :batch_id, domain, task_id, sample,
       task_digest, CASE WHEN event IS NULL THEN 'derived' ELSE 'caller' END, event, source, group_id, sample,
       CAST(:first AS integer) + row_number() OVER (ORDER BY sample, place) - 1
FROM unnest(CAST(:domains AS text[]), CAST(:ids AS text[]), CAST(:digests AS text[]), CAST(:events AS text[]),
            CAST(:sources AS text[]), CAST(:groups AS text[]))
     WITH ORDINALITY AS task (domain, task_id, task_digest, event, source, group_id, place)
CROSS JOIN generate_series(0, CAST(:samples AS integer) - 1) AS sample
WHERE NOT EXISTS (
    SELECT FROM rollout AS old
    WHERE old.batch_id = :batch_id AND old.task_id = task.task_id AND old.sample = sample.sample)
ON CONFLICT (rollout_key) DO NOTHING;

-- name: taken_group
-- A group of the sampling event that another batch has planned.
SELECT batch_id, task_id, source_group_id FROM rollout
WHERE sampling_event_id = :event AND source_group_id = ANY(CAST(:groups AS text[])) AND batch_id <> :batch_id
ORDER BY batch_id, task_id LIMIT 1;
