-- Guards: what no client may do, whatever its role; the owner of the tables included.
--
-- Loaded by every migration run (rollbook.ledger.migrate), after row_digests.sql, and replaced as a whole. SQLSTATE RB001.
-- A guard first locks the rollout row and then looks, in separate statements: a single statement would decide on a
-- snapshot from before the lock. Its names mean the ledger's own tables, whatever the session's search_path says (the
-- end of this file): a temporary table of the same name would otherwise answer in their place.

-- Insert-only tables ------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %: its rows are never changed or deleted', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'RB001', HINT = 'append a new row instead';
END $$;

-- Isolation -----------------------------------------------------------------------------------------------------

-- Under a stricter level a guard would look at the snapshot from before the lock that it has just been granted.
CREATE OR REPLACE FUNCTION guard_isolation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION '% on % under %: the ledger is written under READ COMMITTED', TG_OP, TG_TABLE_NAME,
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'RB001',
            HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED: a guard must see what was committed while it waited';
    END IF;
    RETURN NULL;
END $$;

-- Task sets ---------------------------------------------------------------------------------------------------

-- A set is whole when it gets its first name. Every batch of it is audited against its members, and a member is never
-- taken out: one more would make all those batches wrong permanently.
CREATE OR REPLACE FUNCTION guard_task_set() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    members integer;
BEGIN
    -- transactions that add a member or a name wait for each other: neither sees what the other has not committed
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.set_digest, 7461203353));
    SELECT count(*) INTO members FROM task_set_member WHERE set_digest = NEW.set_digest;
    IF members <> NEW.task_count THEN
        RAISE EXCEPTION 'task set %: task_count is %, but % members are recorded', NEW.name, NEW.task_count, members
            USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

-- After the insert: registration repeats the members that a set has already, and those rows are skipped.
CREATE OR REPLACE FUNCTION guard_task_set_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.set_digest, 7461203353));
    IF EXISTS (SELECT FROM task_set WHERE set_digest = NEW.set_digest) THEN
        RAISE EXCEPTION 'task set %: it is registered, no member is added', NEW.set_digest
            USING ERRCODE = 'RB001', HINT = 'register the tasks again: other tasks are another set';
    END IF;
    RETURN NULL;
END $$;

-- Plan --------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION guard_batch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    newest record;
BEGIN
    IF (NEW.batch_id, NEW.deployment_id, NEW.namespace, NEW.contract_digest, NEW.purpose, NEW.created_at)
        IS DISTINCT FROM
        (OLD.batch_id, OLD.deployment_id, OLD.namespace, OLD.contract_digest, OLD.purpose, OLD.created_at)
    THEN
        RAISE EXCEPTION 'batch %: identity and contract never change', OLD.batch_id
            USING ERRCODE = 'RB001', HINT = 'submit a batch with another id';
    END IF;
    IF (NEW.launch_id, NEW.max_attempts) IS DISTINCT FROM (OLD.launch_id, OLD.max_attempts) THEN
        SELECT launch_id, (spec ->> 'max_attempts')::integer AS max_attempts INTO newest
        FROM registration WHERE batch_id = NEW.batch_id ORDER BY launch_index DESC LIMIT 1;
        -- an imported batch has launches of its own, whose specs say nothing about attempts
        IF NEW.launch_id IS DISTINCT FROM newest.launch_id
            OR NEW.max_attempts <> coalesce(newest.max_attempts, OLD.max_attempts) THEN
            RAISE EXCEPTION 'batch %: launch_id and max_attempts are those of its newest registration', OLD.batch_id
                USING ERRCODE = 'RB001', HINT = 'launch the batch again with another spec';
        END IF;
    END IF;
    IF NEW.closed_at IS NOT NULL AND NEW.closed_at IS DISTINCT FROM OLD.closed_at AND (
        -- two questions, one per partial index
        EXISTS (SELECT FROM rollout WHERE batch_id = NEW.batch_id AND state = 'waiting')
        OR EXISTS (SELECT FROM rollout WHERE batch_id = NEW.batch_id AND state IN ('queued', 'running'))) THEN
        RAISE EXCEPTION 'batch %: it is closed when every row is final', OLD.batch_id USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION guard_new_rollout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> 'waiting' OR NEW.current_attempt IS NOT NULL OR NEW.selected_attempt IS NOT NULL
        OR NEW.decisions <> 0 THEN
        RAISE EXCEPTION 'rollout %: a row is planned as waiting, before any attempt', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.sampling_event_id IS NOT NULL THEN
        -- two batches that plan one event at once see nothing of each other: the second waits for the first
        PERFORM pg_advisory_xact_lock(hashtextextended(NEW.sampling_event_id, 7461203352));
    END IF;
    IF NEW.sampling_event_id IS NOT NULL AND EXISTS (
        SELECT FROM rollout WHERE sampling_event_id = NEW.sampling_event_id AND source_group_id = NEW.source_group_id
            AND (batch_id, task_id) <> (NEW.batch_id, NEW.task_id)) THEN
        RAISE EXCEPTION 'rollout %: group % of sampling event % belongs to another batch or task', NEW.rollout_key,
            NEW.source_group_id, NEW.sampling_event_id USING ERRCODE = 'RB001',
            HINT = 'a new decision needs a sampling event of its own';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION guard_rollout() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    newest integer;
    ended_as text;
    is_open boolean;
BEGIN
    IF (NEW.rollout_key, NEW.batch_id, NEW.domain, NEW.task_id, NEW.sample, NEW.task_digest, NEW.identity_source,
        NEW.sampling_event_id, NEW.source_group_id, NEW.group_id, NEW.rollout_index, NEW.plan_order, NEW.planned_at)
        IS DISTINCT FROM
        (OLD.rollout_key, OLD.batch_id, OLD.domain, OLD.task_id, OLD.sample, OLD.task_digest, OLD.identity_source,
        OLD.sampling_event_id, OLD.source_group_id, OLD.group_id, OLD.rollout_index, OLD.plan_order, OLD.planned_at)
    THEN
        RAISE EXCEPTION 'rollout %: a planned row never changes its identity', OLD.rollout_key USING ERRCODE = 'RB001';
    END IF;

    IF NEW.current_attempt IS DISTINCT FROM OLD.current_attempt OR (NEW.state <> OLD.state AND NEW.state <> 'queued')
    THEN
        SELECT made.attempt_index, ended.next_state INTO newest, ended_as
        FROM attempt AS made LEFT JOIN outcome AS ended
            ON ended.rollout_key = made.rollout_key AND ended.attempt_index = made.attempt_index
        WHERE made.rollout_key = OLD.rollout_key ORDER BY made.attempt_index DESC LIMIT 1;
        IF NEW.current_attempt IS DISTINCT FROM newest THEN
            RAISE EXCEPTION 'rollout %: current_attempt must be the newest attempt (%)', OLD.rollout_key, newest
                USING ERRCODE = 'RB001';
        END IF;
        is_open := newest IS NOT NULL AND ended_as IS NULL;
        IF is_open AND NEW.state <> 'running' THEN
            RAISE EXCEPTION 'rollout %: attempt % is open, so the state is running', OLD.rollout_key, newest
                USING ERRCODE = 'RB001';
        END IF;
        IF NEW.state = 'running' AND OLD.state <> 'running' AND newest IS NOT NULL AND NOT is_open THEN
            RAISE EXCEPTION 'rollout %: attempt % has ended, so nothing is running', OLD.rollout_key, newest
                USING ERRCODE = 'RB001';
        END IF;
        IF NEW.state = 'final' AND OLD.state <> 'final' AND newest IS NOT NULL AND (ended_as <> 'final' OR EXISTS (
            SELECT FROM rerun_request WHERE rollout_key = OLD.rollout_key AND after_attempt = newest)) THEN
            RAISE EXCEPTION 'rollout %: another attempt is due after attempt %, it is not final', OLD.rollout_key,
                newest USING ERRCODE = 'RB001';
        END IF;
    END IF;

    IF OLD.state = 'final' AND NEW.state <> 'final' AND NOT EXISTS (
        SELECT FROM rerun_request WHERE rollout_key = OLD.rollout_key AND after_attempt = OLD.current_attempt)
    THEN
        RAISE EXCEPTION 'rollout %: a final row runs again only after a rerun request', OLD.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.state = 'queued' AND OLD.state NOT IN ('waiting', 'queued') THEN
        RAISE EXCEPTION 'rollout %: only a waiting row is queued, this one is %', OLD.rollout_key, OLD.state
            USING ERRCODE = 'RB001';
    END IF;

    IF NEW.decisions <> OLD.decisions AND (NEW.decisions <> OLD.decisions + 1 OR pg_trigger_depth() < 2) THEN
        RAISE EXCEPTION 'rollout %: decisions are counted one by one, by the trigger of admission', OLD.rollout_key USING ERRCODE = 'RB001';
    END IF;
    IF NEW.selected_attempt IS DISTINCT FROM OLD.selected_attempt THEN
        IF NEW.selected_attempt IS NULL OR NEW.selected_attempt < OLD.selected_attempt THEN
            RAISE EXCEPTION 'rollout %: an older attempt is never selected again', OLD.rollout_key
                USING ERRCODE = 'RB001';
        END IF;
        IF NOT EXISTS (SELECT FROM outcome WHERE rollout_key = OLD.rollout_key
                AND attempt_index = NEW.selected_attempt AND selected) THEN
            RAISE EXCEPTION 'rollout %: attempt % did not end as the selected one', OLD.rollout_key,
                NEW.selected_attempt USING ERRCODE = 'RB001';
        END IF;
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION guard_rerun_request() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_ rollout%ROWTYPE;
BEGIN
    SELECT * INTO row_ FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    IF row_.state <> 'final' OR row_.current_attempt <> NEW.after_attempt THEN
        RAISE EXCEPTION 'rollout %: only a final row is run again (it is %)', NEW.rollout_key, row_.state
            USING ERRCODE = 'RB001';
    END IF;
    IF NOT NEW.supersede AND (
        (SELECT runtime_eligible FROM outcome WHERE rollout_key = NEW.rollout_key
            AND attempt_index = row_.selected_attempt)
        OR (SELECT admitted FROM admission WHERE rollout_key = NEW.rollout_key
            AND attempt_index = row_.selected_attempt AND scope = 'runtime'
            ORDER BY decision_index DESC LIMIT 1)) THEN
        RAISE EXCEPTION 'rollout %: it counts, or did before it was masked; running it again needs supersede', NEW.rollout_key
            USING ERRCODE = 'RB001', HINT = 'set supersede and give a reason; otherwise re-running selects the best of several attempts';
    END IF;
    RETURN NEW;
END $$;

-- Attempts ----------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION guard_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    state_ text;
    newest integer;
BEGIN
    SELECT state INTO state_ FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    IF state_ = 'final' THEN
        RAISE EXCEPTION 'rollout % is final: no further attempt', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    SELECT coalesce(max(attempt_index), 0) INTO newest FROM attempt WHERE rollout_key = NEW.rollout_key;
    IF NEW.attempt_index <> newest + 1 THEN
        RAISE EXCEPTION 'rollout %: the next attempt is %, not %', NEW.rollout_key, newest + 1, NEW.attempt_index
            USING ERRCODE = 'RB001';
    END IF;
    IF newest > 0 AND NOT EXISTS (
        SELECT FROM outcome WHERE rollout_key = NEW.rollout_key AND attempt_index = newest) THEN
        RAISE EXCEPTION 'rollout %: attempt % is still open', NEW.rollout_key, newest USING ERRCODE = 'RB001';
    END IF;
    IF EXISTS (SELECT FROM outcome WHERE rollout_key = NEW.rollout_key AND attempt_index = newest
            AND next_state = 'final')
        AND NOT EXISTS (SELECT FROM rerun_request WHERE rollout_key = NEW.rollout_key AND after_attempt = newest) THEN
        RAISE EXCEPTION 'rollout %: attempt % was the last one, no other was requested', NEW.rollout_key, newest
            USING ERRCODE = 'RB001', HINT = 'ask for a rerun';
    END IF;
    RETURN NEW;
END $$;

-- Turns, model calls and evaluations belong to an open attempt: nothing is added once it has ended.
CREATE OR REPLACE FUNCTION guard_evidence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM outcome WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index) THEN
        RAISE EXCEPTION 'rollout %: attempt % has ended, no % is added', NEW.rollout_key, NEW.attempt_index,
            TG_TABLE_NAME USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

-- A step is decided before it is acted upon, and its counts are those of its actions.
CREATE OR REPLACE FUNCTION guard_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.step > 0 AND NOT EXISTS (
        SELECT FROM model_call WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
            AND step = NEW.step AND decides) THEN
        RAISE EXCEPTION 'rollout %: no model call decided step % of attempt %', NEW.rollout_key, NEW.step,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF (NEW.in_doubt, NEW.raised) IS DISTINCT FROM (
        jsonb_array_length(jsonb_path_query_array(NEW.actions, 'lax $[*] ? (@.status == "in_doubt")')),
        jsonb_array_length(jsonb_path_query_array(NEW.actions, 'lax $[*] ? (@.status == "raised")'))) THEN
        RAISE EXCEPTION 'rollout %: in_doubt and raised of step % are counted from its actions', NEW.rollout_key,
            NEW.step USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION guard_evaluation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    batch_ record;
BEGIN
    IF NEW.task_digest IS DISTINCT FROM (SELECT task_digest FROM rollout WHERE rollout_key = NEW.rollout_key) THEN
        RAISE EXCEPTION 'rollout %: another version of the task was evaluated', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    SELECT contract -> 'resolved' ->> 'evaluator_revision' AS revision,
        coalesce((contract -> 'resolved' ->> 'null_desktop')::boolean, false) AS simulated INTO batch_
    FROM batch JOIN rollout USING (batch_id) WHERE rollout_key = NEW.rollout_key;
    -- NULL in the contracts of batches from before revisions were resolved where the evaluator is
    IF NEW.completed AND NEW.evaluator_revision <> batch_.revision THEN
        RAISE EXCEPTION 'rollout %: evaluator revision % is not the contract''s, %', NEW.rollout_key,
            NEW.evaluator_revision, batch_.revision USING ERRCODE = 'RB001';
    END IF;
    IF NEW.completed AND NOT batch_.simulated
        AND num_nulls(NEW.numpy_version, NEW.log_sha256, NEW.exchanges) > 0 THEN
        RAISE EXCEPTION 'rollout %: a score comes with its numpy version, log and exchange record', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

-- An outcome repeats the evaluator's score and the contract's reward mode, and ends as the last answer says; a masked
-- attempt is never selected over an admitted one, and nothing else keeps the newest from being selected.
CREATE OR REPLACE FUNCTION guard_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_ rollout%ROWTYPE;
    batch_ record;
    keeps_selection boolean;
BEGIN
    SELECT * INTO row_ FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    IF NEW.attempt_index IS DISTINCT FROM (SELECT max(attempt_index) FROM attempt WHERE rollout_key = NEW.rollout_key)
    THEN
        RAISE EXCEPTION 'rollout %: attempt % is not the newest one', NEW.rollout_key, NEW.attempt_index
            USING ERRCODE = 'RB001';
    END IF;
    SELECT contract -> 'policy' ->> 'kind' AS kind, contract ->> 'reward_mode' AS reward_mode,
        contract ->> 'on_desktop_broken' AS on_desktop_broken,
        contract -> 'resolved' ->> 'desktop_digest' AS desktop_digest INTO batch_
    FROM batch WHERE batch_id = row_.batch_id;
    IF (NEW.closed_by = 'import') <> coalesce(batch_.kind = 'imported', false) THEN
        RAISE EXCEPTION 'rollout %: ends are imported exactly into batches that ran elsewhere', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by <> 'import' AND NEW.reward_mode IS DISTINCT FROM batch_.reward_mode THEN
        RAISE EXCEPTION 'rollout %: reward_mode is the contract''s', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by <> 'import' AND NEW.infrastructure_failure_reason = 'desktop_broken' AND NEW.next_state <> 'final'
        AND batch_.on_desktop_broken IS DISTINCT FROM 'retry' THEN
        RAISE EXCEPTION 'rollout %: a broken desktop earns no other attempt under this contract', NEW.rollout_key
            USING ERRCODE = 'RB001', HINT = 'a policy could throw the dice again by wrecking its desktop';
    END IF;
    IF NEW.runtime_eligible AND EXISTS (
        SELECT FROM examination WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index AND tampered)
    THEN
        RAISE EXCEPTION 'rollout %: the guest server of attempt % was not the image''s', NEW.rollout_key,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF NEW.runtime_eligible AND batch_.desktop_digest IS NOT NULL AND batch_.desktop_digest IS DISTINCT FROM (
        SELECT image_digest FROM sandbox WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index)
    THEN
        RAISE EXCEPTION 'rollout %: attempt % did not run on the contract''s image', NEW.rollout_key, NEW.attempt_index
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by <> 'import' AND NEW.infrastructure_failure_reason IS DISTINCT FROM 'desktop_broken'
        AND NEW.score IS DISTINCT FROM (
        SELECT score FROM evaluation WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index) THEN
        -- also when it is kept silent: an attempt whose score is known is not tried again as if it were not
        RAISE EXCEPTION 'rollout %: the score is the evaluator''s or none', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    keeps_selection := NOT NEW.runtime_eligible AND row_.selected_attempt IS NOT NULL AND coalesce((
        SELECT admitted FROM admission WHERE rollout_key = NEW.rollout_key
            AND attempt_index = row_.selected_attempt AND scope = 'runtime'
        ORDER BY decision_index DESC LIMIT 1), false);
    IF NEW.selected AND keeps_selection THEN
        RAISE EXCEPTION 'rollout %: a masked attempt is not selected over an admitted one', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    IF NOT NEW.selected AND NOT keeps_selection AND NEW.closed_by <> 'claim' THEN
        RAISE EXCEPTION 'rollout %: attempt % is the newest to end, it is selected', NEW.rollout_key, NEW.attempt_index
            USING ERRCODE = 'RB001', HINT = 'an older score is not kept because it is the better one';
    END IF;
    RETURN NEW;
END $$;

-- How the policy or the step limit ended an attempt is what the call that decided its last step says, the steps are
-- those that were decided and seen, and the evidence is counted. rollbook.ledger.outcomes masks an episode's end that
-- does not follow; who ends an attempt from outside knows nothing of its steps.
CREATE OR REPLACE FUNCTION guard_outcome_said() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    said_end boolean := num_nonnulls(NEW.terminal_action, NEW.policy_stop_reason) > 0 OR NEW.environment_done
        OR NEW.horizon_reached;
    last_ record;
    seen record;
    counted record;
BEGIN
    SELECT count(*) AS turns, coalesce(max(step), 0) AS newest INTO seen FROM turn
    WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index;
    SELECT step, terminal_action, policy_stop_reason,
        (jsonb_array_length(actions) = 0 AND num_nonnulls(terminal_action, policy_stop_reason) > 0)::integer AS unseen
    INTO last_ FROM model_call
    WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
        AND decides
    ORDER BY step DESC LIMIT 1;
    IF NEW.closed_by IN ('claim', 'cancel', 'reconcile') AND (said_end OR NEW.steps <> 0) THEN
        RAISE EXCEPTION 'rollout %: % ends attempt % from outside and knows nothing of its steps', NEW.rollout_key,
            NEW.closed_by, NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by = 'episode' AND said_end AND (last_.step, last_.terminal_action, last_.policy_stop_reason)
        IS DISTINCT FROM (NEW.steps, NEW.terminal_action, NEW.policy_stop_reason) THEN
        RAISE EXCEPTION 'rollout %: attempt % did not end so: its last model call decided step %: %',
            NEW.rollout_key, NEW.attempt_index, coalesce(last_.step, 0),
            coalesce(last_.terminal_action, last_.policy_stop_reason, 'go on') USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by = 'episode' AND NEW.horizon_reached AND NEW.steps IS DISTINCT FROM (
        SELECT (contract -> 'limits' ->> 'max_steps')::integer FROM batch JOIN rollout USING (batch_id)
        WHERE rollout_key = NEW.rollout_key) THEN
        RAISE EXCEPTION 'rollout %: % steps are not the contract''s step limit', NEW.rollout_key, NEW.steps
            USING ERRCODE = 'RB001';
    END IF;
    -- an answer may have been committed and never have reached the run
    IF NEW.closed_by = 'episode' AND (coalesce(last_.step, 0) NOT BETWEEN NEW.steps AND NEW.steps + 1
            OR seen.newest > NEW.steps) THEN
        RAISE EXCEPTION 'rollout %: attempt % did not take % steps: % was decided last, % seen', NEW.rollout_key,
            NEW.attempt_index, NEW.steps, coalesce(last_.step, 0), seen.newest USING ERRCODE = 'RB001';
    END IF;
    -- the first observation and one per step, but for an end that acts no more
    IF NEW.closed_by = 'episode' AND NEW.runtime_eligible AND (seen.turns <> NEW.steps + 1 - last_.unseen
            OR seen.newest > NEW.steps - last_.unseen) THEN
        RAISE EXCEPTION 'rollout %: % of % observations of attempt % are there', NEW.rollout_key, seen.turns,
            NEW.steps + 1 - last_.unseen, NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    SELECT seen.turns AS turns, (SELECT count(*) FROM model_call
            WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index) AS model_calls,
        (SELECT count(*) FROM evaluation
            WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index) AS evaluations INTO counted;
    IF (NEW.turns, NEW.model_calls, NEW.evaluations) <> (counted.turns, counted.model_calls, counted.evaluations) THEN
        RAISE EXCEPTION 'rollout %: attempt % has % turns, % model calls and % evaluations', NEW.rollout_key,
            NEW.attempt_index, counted.turns, counted.model_calls, counted.evaluations USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

-- SECURITY DEFINER: only this trigger may count decisions.
CREATE OR REPLACE FUNCTION guard_admission() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    newest integer;
BEGIN
    PERFORM FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    SELECT coalesce(max(decision_index), 0) INTO newest FROM admission
        WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index AND scope = NEW.scope;
    IF NEW.decision_index <> newest + 1 THEN
        RAISE EXCEPTION 'rollout %: the next decision is %, not %', NEW.rollout_key, newest + 1, NEW.decision_index
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.admitted AND NOT EXISTS (
        SELECT FROM outcome WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
            AND evaluation_completed) THEN
        RAISE EXCEPTION 'rollout %: attempt % was not evaluated, so it cannot be admitted', NEW.rollout_key,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF NEW.admitted AND NEW.scope = 'training' AND NOT EXISTS (
        SELECT FROM rollout WHERE rollout_key = NEW.rollout_key AND identity_source = 'caller') THEN
        RAISE EXCEPTION 'rollout %: a derived identity is never trainable', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    -- the count is kept so that a decision that was deleted behind the guards' back is missed
    UPDATE rollout SET decisions = decisions + 1 WHERE rollout_key = NEW.rollout_key;
    RETURN NEW;
END $$;

-- A decision bears the name of who decided: one of the ledger's own policies is exactly what that policy says
-- (models.admission), and the first one on an end is its classification.
CREATE OR REPLACE FUNCTION guard_admission_policy() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ended record;
    rule record;
BEGIN
    SELECT runtime_eligible AS eligible, runtime_admission_reason AS reason, runtime_admission_policy_id AS policy_id,
        closed_by INTO ended
    FROM outcome WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index;
    IF NOT FOUND THEN
        RETURN NEW;  -- the foreign key refuses it: an open attempt has nothing to decide upon
    END IF;
    IF NEW.scope = 'runtime' AND NEW.decision_index = 1 THEN
        IF (NEW.admitted, NEW.reason, NEW.policy_id, NEW.decided_by)
            IS DISTINCT FROM (ended.eligible, ended.reason, ended.policy_id, ended.closed_by) THEN
            RAISE EXCEPTION 'rollout %: the first runtime decision is the classification of the end', NEW.rollout_key
                USING ERRCODE = 'RB001', HINT = 'another opinion is a second decision, with a reason';
        END IF;
        RETURN NEW;
    END IF;
    IF NEW.decided_by IN ('episode', 'claim', 'cancel', 'reconcile', 'import')
        AND (NEW.decision_index > 1 OR NEW.decided_by <> ended.closed_by) THEN
        RAISE EXCEPTION 'rollout %: % decides when an attempt ends and never again', NEW.rollout_key, NEW.decided_by
            USING ERRCODE = 'RB001', HINT = 'decided_by: say who decides now';
    END IF;
    IF NEW.policy_id IN ('osworld-runtime-admission-v1', 'exclude-in-doubt-v1') THEN
        SELECT 'runtime' AS scope, CASE WHEN doubted THEN 'action_in_doubt' ELSE ended.reason END AS reason,
            ended.eligible AND NOT doubted AS admitted INTO rule
        FROM (SELECT NEW.policy_id = 'exclude-in-doubt-v1' AND ended.eligible AND EXISTS (
            SELECT FROM turn WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
                AND in_doubt > 0) AS doubted) AS facts;
    ELSIF NEW.policy_id IN ('rollbook-training-admission-v1', 'rollbook-exact-training-admission-v1') THEN
        SELECT 'training' AS scope, CASE
            WHEN identity_source <> 'caller' THEN 'caller_owned_rollout_identity_unavailable'
            WHEN NOT counts THEN 'rollout_sample_masked'
            WHEN NEW.policy_id = 'rollbook-training-admission-v1' THEN 'valid_training_sample'
            WHEN replies = 0 THEN 'model_call_evidence_unavailable'
            WHEN replies > with_tokens THEN 'exact_sampled_token_ids_unavailable'
            ELSE 'valid_training_sample' END AS reason, NULL::boolean AS admitted INTO rule
        FROM rollout
        CROSS JOIN (SELECT count(*) AS replies,
                count(*) FILTER (WHERE tokens_sha256 IS NOT NULL AND telemetry -> 'token_problems' = '[]') AS with_tokens
            FROM model_call
            WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index AND completed) AS calls
        CROSS JOIN (SELECT coalesce((SELECT admitted FROM admission
            WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index AND scope = 'runtime'
            ORDER BY decision_index DESC LIMIT 1), false) AS counts) AS counted
        WHERE rollout_key = NEW.rollout_key;
        rule.admitted := rule.reason = 'valid_training_sample';
    ELSIF NEW.policy_id IN ('legacy-mask-sample-v1', 'rollbook-reconciliation-v1') THEN
        SELECT 'runtime' AS scope, NULL AS reason, NULL::boolean AS admitted INTO rule;  -- they decide first or never
    ELSE
        RETURN NEW;
    END IF;
    IF (NEW.scope, NEW.admitted, NEW.reason) IS DISTINCT FROM (rule.scope, rule.admitted, rule.reason) THEN
        RAISE EXCEPTION 'rollout %: that is not what policy % says', NEW.rollout_key, NEW.policy_id
            USING ERRCODE = 'RB001', HINT = 'policy_id: a decision by hand has one of its own';
    END IF;
    RETURN NEW;
END $$;

-- Leases ------------------------------------------------------------------------------------------------------

-- What a desktop is, is known once; a stopped one is never used again.
CREATE OR REPLACE FUNCTION guard_sandbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'stopped' THEN
        RAISE EXCEPTION 'sandbox %: it was stopped, that is its end', OLD.sandbox_key USING ERRCODE = 'RB001';
    END IF;
    IF NEW.state = 'intended' AND OLD.state <> 'intended' THEN
        RAISE EXCEPTION 'sandbox %: it was started already', OLD.sandbox_key USING ERRCODE = 'RB001';
    END IF;
    IF (NEW.sandbox_key, NEW.deployment_id, NEW.provider, NEW.rollout_key, NEW.attempt_index, NEW.created_at)
        IS DISTINCT FROM
        (OLD.sandbox_key, OLD.deployment_id, OLD.provider, OLD.rollout_key, OLD.attempt_index, OLD.created_at)
        OR NEW.sandbox_id IS DISTINCT FROM coalesce(OLD.sandbox_id, NEW.sandbox_id)
        OR NEW.nonce IS DISTINCT FROM coalesce(OLD.nonce, NEW.nonce)
        OR NEW.image_digest IS DISTINCT FROM coalesce(OLD.image_digest, NEW.image_digest)
        OR NEW.isolation IS DISTINCT FROM coalesce(OLD.isolation, NEW.isolation)
        OR NEW.started_at IS DISTINCT FROM coalesce(OLD.started_at, NEW.started_at) THEN
        RAISE EXCEPTION 'sandbox %: a lease never becomes that of another desktop', OLD.sandbox_key
            USING ERRCODE = 'RB001';
    END IF;
    -- the database's time, as for inserted rows
    IF NEW.state = 'stopped' THEN
        NEW.stopped_at := now();
    END IF;
    IF NEW.started_at IS DISTINCT FROM OLD.started_at THEN
        NEW.started_at := now();
    END IF;
    RETURN NEW;
END $$;

-- Checked at commit -------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION attempt_is_current() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM rollout WHERE rollout_key = NEW.rollout_key AND current_attempt >= NEW.attempt_index)
    THEN
        RAISE EXCEPTION 'rollout %: attempt % was inserted without becoming the current one', NEW.rollout_key,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION outcome_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_ rollout%ROWTYPE;
BEGIN
    SELECT * INTO row_ FROM rollout WHERE rollout_key = NEW.rollout_key;
    IF row_.state IS DISTINCT FROM NEW.next_state
        AND (NEW.next_state <> 'final' OR row_.current_attempt = NEW.attempt_index) AND NOT EXISTS (
        SELECT FROM attempt WHERE rollout_key = NEW.rollout_key AND attempt_index > NEW.attempt_index) THEN
        RAISE EXCEPTION 'rollout %: attempt % ended without the rollout becoming %', NEW.rollout_key,
            NEW.attempt_index, NEW.next_state USING ERRCODE = 'RB001';
    END IF;
    IF NEW.selected AND row_.selected_attempt IS DISTINCT FROM NEW.attempt_index THEN
        RAISE EXCEPTION 'rollout %: attempt % ended as selected without being selected', NEW.rollout_key,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF NOT EXISTS (SELECT FROM admission WHERE rollout_key = NEW.rollout_key
            AND attempt_index = NEW.attempt_index AND scope = 'runtime') THEN
        RAISE EXCEPTION 'rollout %: attempt % ended without a runtime admission decision', NEW.rollout_key,
            NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by <> 'import' AND row_.identity_source = 'caller' AND NOT EXISTS (
        SELECT FROM admission WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
            AND scope = 'training' AND decision_index = 1
            AND (admitted, policy_id, decided_by, reason) = (NEW.runtime_eligible, 'rollbook-training-admission-v1',
                NEW.closed_by,
                CASE WHEN NEW.runtime_eligible THEN 'valid_training_sample' ELSE 'rollout_sample_masked' END)) THEN
        RAISE EXCEPTION 'rollout %: attempt % of a trainer''s rollout ended without the training decision of the rule',
            NEW.rollout_key, NEW.attempt_index USING ERRCODE = 'RB001';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION rerun_is_taken_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM rollout WHERE rollout_key = NEW.rollout_key AND state = 'final'
            AND current_attempt = NEW.after_attempt) THEN
        RAISE EXCEPTION 'rollout %: a rerun was requested but the row is still final', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    RETURN NULL;
END $$;

-- Triggers ----------------------------------------------------------------------------------------------------

CREATE OR REPLACE TRIGGER task_set_guard BEFORE INSERT ON task_set FOR EACH ROW EXECUTE FUNCTION guard_task_set();
CREATE OR REPLACE TRIGGER task_set_member_guard AFTER INSERT ON task_set_member
    FOR EACH ROW EXECUTE FUNCTION guard_task_set_member();
CREATE OR REPLACE TRIGGER batch_guard BEFORE UPDATE ON batch FOR EACH ROW EXECUTE FUNCTION guard_batch();
CREATE OR REPLACE TRIGGER batch_kept BEFORE DELETE OR TRUNCATE ON batch EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER rollout_new BEFORE INSERT ON rollout FOR EACH ROW EXECUTE FUNCTION guard_new_rollout();
CREATE OR REPLACE TRIGGER rollout_guard BEFORE UPDATE ON rollout FOR EACH ROW EXECUTE FUNCTION guard_rollout();
CREATE OR REPLACE TRIGGER rollout_kept BEFORE DELETE OR TRUNCATE ON rollout EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER sandbox_guard BEFORE UPDATE ON sandbox FOR EACH ROW EXECUTE FUNCTION guard_sandbox();
CREATE OR REPLACE TRIGGER sandbox_kept BEFORE DELETE OR TRUNCATE ON sandbox EXECUTE FUNCTION refuse_change();

CREATE OR REPLACE TRIGGER rerun_request_guard BEFORE INSERT ON rerun_request
    FOR EACH ROW EXECUTE FUNCTION guard_rerun_request();
CREATE OR REPLACE TRIGGER attempt_guard BEFORE INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION guard_attempt();
CREATE OR REPLACE TRIGGER turn_guard BEFORE INSERT ON turn FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER turn_guard_step BEFORE INSERT ON turn FOR EACH ROW EXECUTE FUNCTION guard_turn();
CREATE OR REPLACE TRIGGER model_call_guard BEFORE INSERT ON model_call FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER evaluation_guard BEFORE INSERT ON evaluation FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER phase_guard BEFORE INSERT ON phase FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER examination_guard BEFORE INSERT ON examination
    FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER evaluation_guard_task BEFORE INSERT ON evaluation
    FOR EACH ROW EXECUTE FUNCTION guard_evaluation();
CREATE OR REPLACE TRIGGER outcome_guard BEFORE INSERT ON outcome FOR EACH ROW EXECUTE FUNCTION guard_outcome();
CREATE OR REPLACE TRIGGER outcome_guard_said BEFORE INSERT ON outcome
    FOR EACH ROW EXECUTE FUNCTION guard_outcome_said();
CREATE OR REPLACE TRIGGER admission_guard BEFORE INSERT ON admission FOR EACH ROW EXECUTE FUNCTION guard_admission();
CREATE OR REPLACE TRIGGER admission_guard_policy BEFORE INSERT ON admission
    FOR EACH ROW EXECUTE FUNCTION guard_admission_policy();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['task_set', 'task_set_member', 'batch', 'excluded_task', 'completion', 'rollout',
        'rerun_request', 'attempt', 'evaluation', 'phase', 'examination', 'outcome',
        'admission', 'turn', 'model_call', 'sandbox']
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT OR UPDATE ON %I
            EXECUTE FUNCTION guard_isolation()', name || '_isolation', name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['artifact', 'image', 'task', 'task_set', 'task_set_member', 'policy_script',
        'policy_script_name', 'temporal_server', 'registration', 'excluded_task', 'completion', 'rerun_request', 'attempt', 'evaluation', 'phase', 'examination', 'outcome',
        'admission', 'turn', 'model_call']
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
            EXECUTE FUNCTION refuse_change()', name || '_insert_only', name);
    END LOOP;
    -- the seal comes last: triggers of one kind fire in the order of their names
    FOREACH name IN ARRAY ARRAY['artifact', 'registration', 'excluded_task', 'completion', 'rerun_request', 'attempt', 'evaluation', 'phase', 'examination',
        'outcome', 'admission', 'turn', 'model_call']
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE INSERT ON %I
            FOR EACH ROW EXECUTE FUNCTION seal_row()', 'zz_' || name || '_seal', name);
    END LOOP;
END $$;

-- Constraint triggers cannot be replaced in place.
DROP TRIGGER IF EXISTS attempt_current ON attempt;
CREATE CONSTRAINT TRIGGER attempt_current AFTER INSERT ON attempt
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION attempt_is_current();
DROP TRIGGER IF EXISTS outcome_whole ON outcome;
CREATE CONSTRAINT TRIGGER outcome_whole AFTER INSERT ON outcome
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION outcome_is_whole();
DROP TRIGGER IF EXISTS rerun_taken_up ON rerun_request;
CREATE CONSTRAINT TRIGGER rerun_taken_up AFTER INSERT ON rerun_request
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rerun_is_taken_up();

-- Names ---------------------------------------------------------------------------------------------------------

-- A trigger runs with the search_path of the role that fires it, and there temporary tables come first.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['refuse_change', 'guard_isolation', 'guard_task_set',
        'guard_task_set_member', 'guard_batch', 'guard_new_rollout', 'guard_rollout',
        'guard_rerun_request', 'guard_attempt', 'guard_evidence', 'guard_turn', 'guard_evaluation', 'guard_outcome',
        'guard_outcome_said', 'guard_admission', 'guard_admission_policy', 'guard_sandbox', 'attempt_is_current',
        'outcome_is_whole', 'rerun_is_taken_up', 'seal_row']
    LOOP
        EXECUTE format('ALTER FUNCTION %I() SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END $$;

-- It has its owner's rights, and a trigger needs no right to call it.
REVOKE ALL ON FUNCTION guard_admission() FROM PUBLIC;
