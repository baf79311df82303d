-- Statements of rollbook.ledger.janitor.

-- name: suspects
SELECT rollout_key, workflow_id, batch_id, state, attempt_index, run_id, since, coalesce(sighting.seen, 0) AS seen
FROM (
    SELECT rollout.rollout_key, batch_id, state,
           CASE WHEN ended.attempt_index IS NULL THEN made.attempt_index END AS attempt_index,
           CASE WHEN made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL THEN made.run_id ELSE '' END
               AS run_id,
           CASE WHEN made.attempt_index IS NOT NULL AND ended.attempt_index IS NULL THEN made.workflow_id
                ELSE rollout.rollout_key END AS workflow_id,
           greatest(queued_at, made.claimed_at, ended.ended_at) AS since
    FROM rollout JOIN batch USING (batch_id)
    LEFT JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
    LEFT JOIN outcome AS ended ON ended.rollout_key = rollout.rollout_key
        AND ended.attempt_index = current_attempt
    WHERE deployment_id = :deployment_id AND namespace = :namespace AND state IN ('queued', 'running')
) AS quiet
LEFT JOIN sighting USING (rollout_key, run_id)
WHERE since < now() - make_interval(secs => :min_age_s)
ORDER BY since
LIMIT :limit;

-- name: count_missing
-- An observation from before the row was last queued, claimed, ended or requested again no longer counts (`anew`); one
-- within gap_s seconds of the last that counted adds nothing (`too_soon`).
INSERT INTO sighting (rollout_key, run_id, seen) VALUES (:rollout_key, :run_id, 1)
ON CONFLICT (rollout_key, run_id) DO UPDATE SET (seen, first_at, last_at) = (
    SELECT CASE WHEN anew THEN 1 WHEN too_soon THEN sighting.seen ELSE sighting.seen + 1 END,
           CASE WHEN anew THEN now() ELSE sighting.first_at END,
           CASE WHEN too_soon AND NOT anew THEN sighting.last_at ELSE now() END
    FROM (SELECT sighting.last_at > now() - make_interval(secs => CAST(:gap_s AS float8)) AS too_soon,
                 sighting.seen = 0 OR sighting.last_at < (
                     SELECT greatest(planned_at, queued_at, made.claimed_at, ended.ended_at,
                                     (SELECT max(requested_at) FROM rerun_request AS again
                                      WHERE again.rollout_key = planned.rollout_key))
                     FROM rollout AS planned
                     LEFT JOIN attempt AS made
                         ON made.rollout_key = planned.rollout_key AND made.attempt_index = current_attempt
                     LEFT JOIN outcome AS ended
                         ON ended.rollout_key = planned.rollout_key AND ended.attempt_index = current_attempt
                     WHERE planned.rollout_key = sighting.rollout_key) AS anew) AS observation)
RETURNING seen;

-- name: clear_missing
UPDATE sighting SET seen = 0, last_at = now() WHERE rollout_key = :rollout_key AND run_id = :run_id;

-- name: open_batches
-- Two questions, one per partial index: asked as state <> 'final' it would read every final row of the batch.
SELECT batch_id, launch_id, paused, stopping, cancelling, control_reason, flying.in_flight,
       launched.at < now() - make_interval(secs => :min_age_s) AS is_quiet,
       coalesce(launched.at < (
           SELECT max(adopted_at) FROM temporal_server AS server WHERE adoption_index > 1
           AND server.deployment_id = batch.deployment_id AND server.namespace = batch.namespace), false) AS is_lost,
       (SELECT rollout_key FROM rollout WHERE rollout.batch_id = batch.batch_id ORDER BY plan_order LIMIT 1)
           AS first_key
FROM batch CROSS JOIN LATERAL (
    SELECT count(*) AS in_flight FROM rollout
    WHERE rollout.batch_id = batch.batch_id AND state IN ('queued', 'running')) AS flying
CROSS JOIN LATERAL (
    SELECT coalesce((SELECT registered_at FROM registration
                     WHERE registration.batch_id = batch.batch_id AND registration.launch_id = batch.launch_id),
                    created_at) AS at) AS launched
WHERE deployment_id = :deployment_id AND namespace = :namespace
    AND (flying.in_flight > 0
         OR EXISTS (SELECT FROM rollout WHERE rollout.batch_id = batch.batch_id AND state = 'waiting'))
ORDER BY batch_id;

-- name: open_runs
SELECT made.rollout_key, made.run_id
FROM rollout
JOIN attempt AS made ON made.rollout_key = rollout.rollout_key AND made.attempt_index = current_attempt
WHERE batch_id = :batch_id AND state = 'running'
    AND NOT EXISTS (SELECT FROM outcome WHERE outcome.rollout_key = made.rollout_key
                    AND outcome.attempt_index = made.attempt_index)
ORDER BY made.rollout_key;

-- name: long_final
SELECT rollout.rollout_key
FROM rollout JOIN batch USING (batch_id)
JOIN outcome ON outcome.rollout_key = rollout.rollout_key AND outcome.attempt_index = current_attempt
WHERE deployment_id = :deployment_id AND namespace = :namespace AND state = 'final'
    AND rollout.rollout_key = ANY(CAST(:keys AS text[])) AND ended_at < now() - make_interval(secs => :min_age_s)
ORDER BY rollout.rollout_key;

-- name: temporal_server
SELECT namespace_id, cluster_id FROM temporal_server WHERE deployment_id = :deployment_id AND namespace = :namespace
ORDER BY adoption_index DESC LIMIT 1;

-- name: adopt_temporal_server
-- Two workers that adopt at once record one adoption: the second meets the key of the first.
INSERT INTO temporal_server (deployment_id, namespace, adoption_index, namespace_id, cluster_id, reason, adopted_by)
SELECT :deployment_id, :namespace, coalesce(max(adoption_index), 0) + 1, :namespace_id, :cluster_id, :reason,
    :adopted_by
FROM temporal_server WHERE deployment_id = :deployment_id AND namespace = :namespace
ON CONFLICT DO NOTHING;
