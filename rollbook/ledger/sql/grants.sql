-- Least privilege: `rollbook_worker` runs episodes, `rollbook_operator` is for people's commands, `rollbook_reader` reads
-- the views and nothing else. None of them may change a recorded fact, or owns anything.
--
-- Group roles without login: grant them to the users of a deployment (the local stack lets them log in). Where the migrating user may not create roles,
-- they are left out; create them once by hand and migrate again.

DO $$
DECLARE
    role_ text;
    view_ text;
    table_ text;
    inserts_ jsonb := '{}';
BEGIN
    -- A temporary table can have a ledger table's name; triggers are not affected, and no role needs one.
    IF (SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()) THEN
        EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    END IF;

    FOREACH role_ IN ARRAY ARRAY['rollbook_worker', 'rollbook_operator', 'rollbook_reader'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server was faster
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % is missing and may not be created by %', role_, current_user;
            END;
        END IF;
    END LOOP;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'rollbook_worker') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO rollbook_worker', current_schema());
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO rollbook_worker', current_schema());
        inserts_ := inserts_ || jsonb_build_object('rollbook_worker', ARRAY['artifact', 'task', 'task_set',
            'task_set_member', 'policy_script', 'policy_script_name', 'batch', 'registration', 'excluded_task',
            'completion', 'rollout', 'rerun_request', 'attempt', 'evaluation', 'examination', 'outcome', 'admission',
            'turn', 'model_call', 'sandbox', 'sighting', 'image', 'phase', 'temporal_server']);
        GRANT UPDATE (paused, frozen, stopping, cancelling, control_reason, concurrency, max_attempts, launch_id,
            closed_at) ON batch TO rollbook_worker;
        GRANT UPDATE (state, queued_at, current_attempt, selected_attempt) ON rollout TO rollbook_worker;
        REVOKE UPDATE (decisions) ON rollout FROM rollbook_worker;  -- counted by a trigger; granted in older versions
        GRANT UPDATE (sandbox_id, state, nonce, isolation, image_digest, view_url, started_at, lease_until, stopped_at, stop_reason)
            ON sandbox TO rollbook_worker;
        GRANT UPDATE (seen, first_at, last_at) ON sighting TO rollbook_worker;
    END IF;

    -- Registers task sets and scripts, decides, requests reruns, imports finished results, ends leases. It runs nothing:
    -- no model call, no turn and no evaluation can come from it.
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'rollbook_operator') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO rollbook_operator', current_schema());
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO rollbook_operator', current_schema());
        inserts_ := inserts_ || jsonb_build_object('rollbook_operator', ARRAY['artifact', 'task', 'task_set',
            'task_set_member', 'policy_script', 'policy_script_name', 'batch', 'registration', 'excluded_task',
            'completion', 'rollout', 'rerun_request', 'attempt', 'outcome', 'admission', 'temporal_server']);
        GRANT UPDATE (paused, frozen, stopping, cancelling, control_reason, launch_id, closed_at)
            ON batch TO rollbook_operator;
        GRANT UPDATE (state, current_attempt, selected_attempt) ON rollout TO rollbook_operator;
        GRANT UPDATE (state, stopped_at, stop_reason) ON sandbox TO rollbook_operator;
    END IF;

    -- A row is as old as the database says: no role may insert a column whose default is the time.
    FOR role_, table_ IN SELECT key, jsonb_array_elements_text(value) FROM jsonb_each(inserts_) LOOP
        EXECUTE format('REVOKE INSERT ON %I FROM %I', table_, role_);
        EXECUTE format('GRANT INSERT (%s) ON %I TO %I', (
            SELECT string_agg(quote_ident(attname), ', ')
            FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
            WHERE attrelid = table_::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
                AND pg_get_expr(adbin, adrelid) IS DISTINCT FROM 'now()'), table_, role_);
    END LOOP;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'rollbook_reader') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO rollbook_reader', current_schema());
        FOR view_ IN SELECT viewname FROM pg_views WHERE schemaname = current_schema() AND viewowner = current_user
        LOOP
            EXECUTE format('GRANT SELECT ON %I TO rollbook_reader', view_);
        END LOOP;
    END IF;
END $$;
