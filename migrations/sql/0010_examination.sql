CREATE TABLE examination (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    cause TEXT,
    cause_detail TEXT DEFAULT '' NOT NULL,
    tampered BOOLEAN NOT NULL,
    detail TEXT DEFAULT '' NOT NULL,
    evidence JSONB,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT examination_pkey PRIMARY KEY (rollout_key, attempt_index),
    CONSTRAINT examination_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT examination_cause CHECK (cause IN ('host', 'guest', 'unknown')),
    CONSTRAINT examination_detail CHECK (NOT tampered OR detail <> '')
);
COMMENT ON TABLE examination IS 'what the provider of an attempt''s desktop saw from outside when the attempt ended';
COMMENT ON COLUMN examination.rollout_key IS 'the rollout';
COMMENT ON COLUMN examination.attempt_index IS 'the attempt';
COMMENT ON COLUMN examination.cause IS 'whose doing a failure was: host, guest or unknown; NULL when nothing had failed';
COMMENT ON COLUMN examination.cause_detail IS 'the provider''s evidence for it, for people';
COMMENT ON COLUMN examination.tampered IS 'the guest server is not the image''s';
COMMENT ON COLUMN examination.detail IS 'evidence of that, for people';
COMMENT ON COLUMN examination.evidence IS 'changed system files and the guest server''s process, as the provider sees them';
COMMENT ON COLUMN examination.recorded_at IS 'when it was committed';
COMMENT ON COLUMN examination.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

-- NOT VALID: rows of before are looked at by revision 0011.
ALTER TABLE evaluation DROP CONSTRAINT evaluation_reason;
ALTER TABLE evaluation ADD CONSTRAINT evaluation_reason CHECK (reason IN ('timeout', 'task_timeout', 'model_timeout', 'action_timeout', 'evaluator_error', 'proxy_configuration_error', 'proxy_required_but_disabled', 'proxy_setup_error', 'model_call_failed', 'rollout_error', 'sandbox_start_failed', 'sandbox_lost', 'desktop_broken', 'setup_failed', 'setup_interrupted', 'evaluation_interrupted', 'cancelled', 'superseded', 'reconciled')) NOT VALID;
ALTER TABLE outcome DROP CONSTRAINT outcome_failure_vocabulary;
ALTER TABLE outcome ADD CONSTRAINT outcome_failure_vocabulary CHECK (infrastructure_failure_reason IN ('timeout', 'task_timeout', 'model_timeout', 'action_timeout', 'evaluator_error', 'proxy_configuration_error', 'proxy_required_but_disabled', 'proxy_setup_error', 'model_call_failed', 'rollout_error', 'sandbox_start_failed', 'sandbox_lost', 'desktop_broken', 'setup_failed', 'setup_interrupted', 'evaluation_interrupted', 'cancelled', 'superseded', 'reconciled')) NOT VALID;
ALTER TABLE outcome DROP CONSTRAINT outcome_another_attempt;
ALTER TABLE outcome ADD CONSTRAINT outcome_another_attempt CHECK (next_state = 'final' OR coalesce(infrastructure_failure_reason IN ('model_call_failed', 'sandbox_start_failed', 'sandbox_lost', 'setup_interrupted', 'evaluation_interrupted', 'reconciled', 'evaluator_error', 'setup_failed', 'superseded', 'desktop_broken'), false)) NOT VALID;
ALTER TABLE outcome ADD CONSTRAINT outcome_broken_has_no_score CHECK (coalesce(infrastructure_failure_reason, '') <> 'desktop_broken' OR score IS NULL) NOT VALID;
