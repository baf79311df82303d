-- Guards: what no client may do, whatever its role; the owner of the tables included.
--
-- Loaded by every migration run (rollbook.ledger.migrate), after seals.sql, and replaced as a whole. SQLSTATE RB001.
-- A guard first locks the rollout row and then looks, in separate statements: a single statement would decide on a
-- snapshot from before the lock.

-- Insert-only tables ------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on %: its rows are never changed or deleted', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'RB001', HINT = 'append a new row instead';
END $$;

-- Plan --------------------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION guard_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.batch_id, NEW.deployment_id, NEW.namespace, NEW.contract_digest, NEW.purpose, NEW.created_at)
        IS DISTINCT FROM
        (OLD.batch_id, OLD.deployment_id, OLD.namespace, OLD.contract_digest, OLD.purpose, OLD.created_at)
    THEN
        RAISE EXCEPTION 'batch %: identity and contract never change', OLD.batch_id
            USING ERRCODE = 'RB001', HINT = 'submit a batch with another id';
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
        SELECT max(attempt_index) INTO newest FROM attempt WHERE rollout_key = OLD.rollout_key;
        IF NEW.current_attempt IS DISTINCT FROM newest THEN
            RAISE EXCEPTION 'rollout %: current_attempt must be the newest attempt (%)', OLD.rollout_key, newest
                USING ERRCODE = 'RB001';
        END IF;
        is_open := newest IS NOT NULL AND NOT EXISTS (
            SELECT FROM outcome WHERE rollout_key = OLD.rollout_key AND attempt_index = newest);
        IF is_open AND NEW.state <> 'running' THEN
            RAISE EXCEPTION 'rollout %: attempt % is open, so the state is running', OLD.rollout_key, newest
                USING ERRCODE = 'RB001';
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

    IF NEW.decisions <> OLD.decisions AND NEW.decisions <> OLD.decisions + 1 THEN
        RAISE EXCEPTION 'rollout %: decisions are counted one by one', OLD.rollout_key USING ERRCODE = 'RB001';
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
    IF NOT NEW.supersede AND (SELECT admitted FROM admission WHERE rollout_key = NEW.rollout_key
            AND attempt_index = row_.selected_attempt AND scope = 'runtime'
            ORDER BY decision_index DESC LIMIT 1) THEN
        RAISE EXCEPTION 'rollout %: it is admitted; running it again needs supersede', NEW.rollout_key
            USING ERRCODE = 'RB001', HINT = 'say supersede and give a reason; otherwise it is best-of-n in disguise';
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

CREATE OR REPLACE FUNCTION guard_evaluation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.task_digest IS DISTINCT FROM (SELECT task_digest FROM rollout WHERE rollout_key = NEW.rollout_key) THEN
        RAISE EXCEPTION 'rollout %: another version of the task was evaluated', NEW.rollout_key USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

-- An outcome repeats the evaluator's score and the contract's reward mode; a masked attempt is never selected over
-- an admitted one; the newest attempt is the one that ends.
CREATE OR REPLACE FUNCTION guard_outcome() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_ rollout%ROWTYPE;
BEGIN
    SELECT * INTO row_ FROM rollout WHERE rollout_key = NEW.rollout_key FOR NO KEY UPDATE;
    IF NEW.attempt_index <> (SELECT max(attempt_index) FROM attempt WHERE rollout_key = NEW.rollout_key) THEN
        RAISE EXCEPTION 'rollout %: attempt % is not the newest one', NEW.rollout_key, NEW.attempt_index
            USING ERRCODE = 'RB001';
    END IF;
    IF NEW.closed_by <> 'import' THEN
        IF NEW.evaluation_completed AND NOT EXISTS (
            SELECT FROM evaluation WHERE rollout_key = NEW.rollout_key AND attempt_index = NEW.attempt_index
                AND completed AND score = NEW.score) THEN
            RAISE EXCEPTION 'rollout %: the score is the evaluator''s or none', NEW.rollout_key USING ERRCODE = 'RB001';
        END IF;
        IF NEW.reward_mode <> (SELECT contract ->> 'reward_mode' FROM batch WHERE batch_id = row_.batch_id) THEN
            RAISE EXCEPTION 'rollout %: reward_mode is the contract''s', NEW.rollout_key USING ERRCODE = 'RB001';
        END IF;
    END IF;
    IF NEW.selected AND NOT NEW.runtime_eligible AND row_.selected_attempt IS NOT NULL AND (
        SELECT admitted FROM admission WHERE rollout_key = NEW.rollout_key
            AND attempt_index = row_.selected_attempt AND scope = 'runtime'
        ORDER BY decision_index DESC LIMIT 1) THEN
        RAISE EXCEPTION 'rollout %: a masked attempt is not selected over an admitted one', NEW.rollout_key
            USING ERRCODE = 'RB001';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION guard_admission() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE TRIGGER batch_guard BEFORE UPDATE ON batch FOR EACH ROW EXECUTE FUNCTION guard_batch();
CREATE OR REPLACE TRIGGER batch_kept BEFORE DELETE OR TRUNCATE ON batch EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER rollout_new BEFORE INSERT ON rollout FOR EACH ROW EXECUTE FUNCTION guard_new_rollout();
CREATE OR REPLACE TRIGGER rollout_guard BEFORE UPDATE ON rollout FOR EACH ROW EXECUTE FUNCTION guard_rollout();
CREATE OR REPLACE TRIGGER rollout_kept BEFORE DELETE OR TRUNCATE ON rollout EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER sandbox_kept BEFORE DELETE OR TRUNCATE ON sandbox EXECUTE FUNCTION refuse_change();

CREATE OR REPLACE TRIGGER rerun_request_guard BEFORE INSERT ON rerun_request
    FOR EACH ROW EXECUTE FUNCTION guard_rerun_request();
CREATE OR REPLACE TRIGGER attempt_guard BEFORE INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION guard_attempt();
CREATE OR REPLACE TRIGGER turn_guard BEFORE INSERT ON turn FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER model_call_guard BEFORE INSERT ON model_call FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER evaluation_guard BEFORE INSERT ON evaluation FOR EACH ROW EXECUTE FUNCTION guard_evidence();
CREATE OR REPLACE TRIGGER evaluation_guard_task BEFORE INSERT ON evaluation
    FOR EACH ROW EXECUTE FUNCTION guard_evaluation();
CREATE OR REPLACE TRIGGER outcome_guard BEFORE INSERT ON outcome FOR EACH ROW EXECUTE FUNCTION guard_outcome();
CREATE OR REPLACE TRIGGER admission_guard BEFORE INSERT ON admission FOR EACH ROW EXECUTE FUNCTION guard_admission();

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['artifact', 'task', 'task_set', 'task_set_member', 'policy_script',
        'policy_script_name', 'registration', 'rerun_request', 'attempt', 'evaluation', 'outcome', 'admission',
        'turn', 'model_call']
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %I BEFORE UPDATE OR DELETE OR TRUNCATE ON %I
            EXECUTE FUNCTION refuse_change()', name || '_insert_only', name);
    END LOOP;
    -- the seal comes last: triggers of one kind fire in the order of their names
    FOREACH name IN ARRAY ARRAY['artifact', 'registration', 'rerun_request', 'attempt', 'evaluation', 'outcome',
        'admission', 'turn', 'model_call']
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
