-- Statements of rollbook.ledger.schema.

-- name: lock_migrations
SELECT pg_advisory_xact_lock(:key);

-- name: open_transactions
-- Transactions that have held a lock in the schema for more than a second.
SELECT DISTINCT activity.pid, usename, coalesce(nullif(application_name, ''), 'unnamed') AS program, state,
       extract(epoch FROM now() - xact_start)::integer AS open_s, left(query, 80) AS query
FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
WHERE relation = ANY(SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)
    AND granted AND pid <> pg_backend_pid() AND xact_start < now() - interval '1 second'
ORDER BY open_s DESC LIMIT 5;

-- name: triggers
SELECT relname, tgname, pg_get_triggerdef(pg_trigger.oid, true) || ';' || tgenabled::text AS definition
FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE NOT tgisinternal
    AND relnamespace = CASE WHEN :shadows THEN pg_my_temp_schema() ELSE current_schema()::regnamespace::oid END;
