CREATE TABLE attempt (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    claim INTEGER NOT NULL,
    execution_id UUID NOT NULL,
    trajectory_rollout_id TEXT NOT NULL,
    claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT attempt_pkey PRIMARY KEY (rollout_key, attempt_index),
    CONSTRAINT attempt_run_id_claim_rollout_key_key UNIQUE (run_id, claim, rollout_key),
    CONSTRAINT attempt_numbers CHECK (attempt_index >= 1 AND claim >= 1),
    CONSTRAINT attempt_run CHECK (run_id ~ '\S' AND workflow_id ~ '\S'),
    CONSTRAINT attempt_rollout_key_fkey FOREIGN KEY(rollout_key) REFERENCES rollout (rollout_key),
    CONSTRAINT attempt_execution_id_key UNIQUE (execution_id)
);
COMMENT ON TABLE attempt IS 'one try of a rollout, on one desktop; open until it has an outcome';
COMMENT ON COLUMN attempt.rollout_key IS 'the rollout';
COMMENT ON COLUMN attempt.attempt_index IS '1, 2, … per rollout: the fence';
COMMENT ON COLUMN attempt.workflow_id IS 'id of the Episode workflow';
COMMENT ON COLUMN attempt.run_id IS 'Temporal run id; closed-… for a row that was closed without ever running';
COMMENT ON COLUMN attempt.claim IS '1, 2, … per run: the claim that made this attempt';
COMMENT ON COLUMN attempt.execution_id IS 'fresh per attempt, outside semantic digests';
COMMENT ON COLUMN attempt.trajectory_rollout_id IS 'upstream''s id of the rollout of this attempt';
COMMENT ON COLUMN attempt.claimed_at IS 'when it was claimed';
COMMENT ON COLUMN attempt.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE evaluation (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    completed BOOLEAN NOT NULL,
    score DOUBLE PRECISION,
    score_type TEXT,
    reason TEXT,
    guest_failed BOOLEAN NOT NULL,
    detail TEXT DEFAULT '' NOT NULL,
    evaluator_revision TEXT,
    numpy_version TEXT,
    task_digest TEXT NOT NULL,
    isolation TEXT DEFAULT '' NOT NULL,
    exchanges JSONB,
    log_sha256 TEXT,
    duration_s DOUBLE PRECISION,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT evaluation_pkey PRIMARY KEY (rollout_key, attempt_index),
    CONSTRAINT evaluation_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT evaluation_score_range CHECK (score IS NULL OR (score >= 0 AND score <= 1)),
    CONSTRAINT evaluation_score_iff_completed CHECK (completed = (score IS NOT NULL)),
    CONSTRAINT evaluation_reason_iff_not_completed CHECK (completed = (reason IS NULL)),
    CONSTRAINT evaluation_reason CHECK (reason IN ('timeout', 'task_timeout', 'model_timeout', 'action_timeout', 'evaluator_error', 'proxy_configuration_error', 'proxy_required_but_disabled', 'proxy_setup_error', 'model_call_failed', 'rollout_error', 'sandbox_start_failed', 'sandbox_lost', 'setup_failed', 'setup_interrupted', 'evaluation_interrupted', 'cancelled', 'superseded', 'reconciled')),
    CONSTRAINT evaluation_guest_failed CHECK (NOT (completed AND guest_failed)),
    CONSTRAINT evaluation_duration CHECK (duration_s IS NULL OR (duration_s >= 0 AND duration_s < 'Infinity')),
    CONSTRAINT evaluation_log_sha256_fkey FOREIGN KEY(log_sha256) REFERENCES artifact (sha256)
);
COMMENT ON TABLE evaluation IS 'the evaluator''s answer for one attempt';
COMMENT ON COLUMN evaluation.rollout_key IS 'the rollout';
COMMENT ON COLUMN evaluation.attempt_index IS 'the attempt';
COMMENT ON COLUMN evaluation.completed IS 'the evaluator returned a score';
COMMENT ON COLUMN evaluation.score IS 'the evaluator''s score, 0..1; NULL, never 0, when it did not complete';
COMMENT ON COLUMN evaluation.score_type IS 'type that the evaluator returned, for instance float';
COMMENT ON COLUMN evaluation.reason IS 'why it did not complete';
COMMENT ON COLUMN evaluation.guest_failed IS 'an exchange with the guest failed';
COMMENT ON COLUMN evaluation.detail IS 'error text, for people';
COMMENT ON COLUMN evaluation.evaluator_revision IS 'revision of the evaluator';
COMMENT ON COLUMN evaluation.numpy_version IS 'version of numpy that the evaluator used';
COMMENT ON COLUMN evaluation.task_digest IS 'the task version that was evaluated';
COMMENT ON COLUMN evaluation.isolation IS 'how the evaluator was confined';
COMMENT ON COLUMN evaluation.exchanges IS 'what the forwarder saw between evaluator and guest, summed up';
COMMENT ON COLUMN evaluation.log_sha256 IS 'the evaluator''s log';
COMMENT ON COLUMN evaluation.duration_s IS 'seconds the evaluation took';
COMMENT ON COLUMN evaluation.recorded_at IS 'when it was committed';
COMMENT ON COLUMN evaluation.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE outcome (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    evaluation_completed BOOLEAN NOT NULL,
    infrastructure_failure_reason TEXT,
    terminal_action TEXT,
    environment_done BOOLEAN NOT NULL,
    horizon_reached BOOLEAN NOT NULL,
    policy_stop_reason TEXT,
    guest_failed BOOLEAN NOT NULL,
    steps INTEGER NOT NULL,
    detail TEXT DEFAULT '' NOT NULL,
    termination_reason TEXT NOT NULL,
    runtime_eligible BOOLEAN NOT NULL,
    runtime_admission_reason TEXT NOT NULL,
    runtime_admission_policy_id TEXT NOT NULL,
    mask_sample BOOLEAN GENERATED ALWAYS AS (NOT runtime_eligible) STORED,
    score DOUBLE PRECISION,
    reward DOUBLE PRECISION,
    reward_mode TEXT NOT NULL,
    closed_by TEXT NOT NULL,
    selected BOOLEAN NOT NULL,
    next_state TEXT NOT NULL,
    turns INTEGER NOT NULL,
    model_calls INTEGER NOT NULL,
    evaluations INTEGER NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT outcome_pkey PRIMARY KEY (rollout_key, attempt_index),
    CONSTRAINT outcome_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT outcome_score_range CHECK (score IS NULL OR (score >= 0 AND score <= 1)),
    CONSTRAINT outcome_reward_range CHECK (reward IS NULL OR (reward >= 0 AND reward <= 1)),
    CONSTRAINT outcome_score_iff_evaluated CHECK (evaluation_completed = (score IS NOT NULL)),
    CONSTRAINT outcome_reward_of_score CHECK (reward IS NOT DISTINCT FROM CASE WHEN reward_mode = 'raw' THEN score WHEN score >= 1 THEN 1 WHEN score IS NOT NULL THEN 0 END),
    CONSTRAINT outcome_reward_mode CHECK (reward_mode IN ('binary', 'raw')),
    CONSTRAINT outcome_eligible_is_evaluated CHECK (NOT runtime_eligible OR (evaluation_completed AND score IS NOT NULL)),
    CONSTRAINT outcome_failure_is_ineligible CHECK (infrastructure_failure_reason IS NULL OR NOT runtime_eligible),
    CONSTRAINT outcome_failure_vocabulary CHECK (infrastructure_failure_reason IN ('timeout', 'task_timeout', 'model_timeout', 'action_timeout', 'evaluator_error', 'proxy_configuration_error', 'proxy_required_but_disabled', 'proxy_setup_error', 'model_call_failed', 'rollout_error', 'sandbox_start_failed', 'sandbox_lost', 'setup_failed', 'setup_interrupted', 'evaluation_interrupted', 'cancelled', 'superseded', 'reconciled')),
    CONSTRAINT outcome_terminal_vocabulary CHECK (terminal_action IN ('DONE', 'FAIL')),
    CONSTRAINT outcome_policy_stop_vocabulary CHECK (policy_stop_reason IN ('model_response_unparseable', 'model_output_truncated', 'model_response_empty', 'model_response_invalid', 'model_context_overflow')),
    CONSTRAINT outcome_horizon_excludes CHECK (NOT (horizon_reached AND (terminal_action IS NOT NULL OR environment_done OR policy_stop_reason IS NOT NULL))),
    CONSTRAINT outcome_policy_stop_excludes CHECK (NOT (policy_stop_reason IS NOT NULL AND (terminal_action IS NOT NULL OR environment_done))),
    CONSTRAINT outcome_max_steps_is_horizon CHECK (termination_reason <> 'max_steps' OR horizon_reached),
    CONSTRAINT outcome_reasons_not_blank CHECK (termination_reason ~ '\S' AND runtime_admission_reason ~ '\S' AND runtime_admission_policy_id ~ '\S'),
    CONSTRAINT outcome_termination CHECK (runtime_admission_policy_id = 'legacy-mask-sample-v1' OR termination_reason = CASE
    WHEN infrastructure_failure_reason IS NOT NULL THEN infrastructure_failure_reason
    WHEN NOT evaluation_completed THEN 'evaluation_incomplete'
    WHEN policy_stop_reason IS NOT NULL THEN policy_stop_reason
    WHEN terminal_action = 'DONE' THEN 'agent_done'
    WHEN terminal_action = 'FAIL' THEN 'agent_fail'
    WHEN environment_done THEN 'environment_done'
    WHEN horizon_reached THEN 'max_steps'
    ELSE 'rollout_state_incomplete' END),
    CONSTRAINT outcome_eligibility CHECK (runtime_admission_policy_id = 'legacy-mask-sample-v1' OR runtime_eligible = (infrastructure_failure_reason IS NULL AND evaluation_completed AND
    (policy_stop_reason IS NOT NULL OR terminal_action IS NOT NULL OR environment_done OR horizon_reached))),
    CONSTRAINT outcome_admission_reason CHECK (runtime_admission_policy_id = 'legacy-mask-sample-v1' OR runtime_admission_reason = CASE WHEN runtime_eligible THEN 'valid_evaluated_outcome' ELSE termination_reason END),
    CONSTRAINT outcome_counts CHECK (steps >= 0 AND turns >= 0 AND model_calls >= 0 AND evaluations IN (0, 1)),
    CONSTRAINT outcome_closed_by CHECK (closed_by IN ('episode', 'claim', 'cancel', 'reconcile', 'import')),
    CONSTRAINT outcome_next_state CHECK (next_state IN ('final', 'running', 'waiting')),
    CONSTRAINT outcome_final_is_selectable CHECK (closed_by <> 'claim' OR (next_state = 'running' AND NOT selected))
);
COMMENT ON TABLE outcome IS 'the end of an attempt: facts, classification, score';
COMMENT ON COLUMN outcome.rollout_key IS 'the rollout';
COMMENT ON COLUMN outcome.attempt_index IS 'the attempt';
COMMENT ON COLUMN outcome.evaluation_completed IS 'fact: the evaluator returned a score';
COMMENT ON COLUMN outcome.infrastructure_failure_reason IS 'fact: what failed outside the policy, first by precedence';
COMMENT ON COLUMN outcome.terminal_action IS 'fact: DONE or FAIL, when the policy said so';
COMMENT ON COLUMN outcome.environment_done IS 'fact: the environment ended the episode';
COMMENT ON COLUMN outcome.horizon_reached IS 'fact: the step limit was reached';
COMMENT ON COLUMN outcome.policy_stop_reason IS 'fact: why the policy''s output ended the episode';
COMMENT ON COLUMN outcome.guest_failed IS 'fact: an exchange with the guest failed in evaluation';
COMMENT ON COLUMN outcome.steps IS 'steps taken';
COMMENT ON COLUMN outcome.detail IS 'error text, for people';
COMMENT ON COLUMN outcome.termination_reason IS 'reason of the end, from the closed vocabulary';
COMMENT ON COLUMN outcome.runtime_eligible IS 'classification of the facts: may it be counted';
COMMENT ON COLUMN outcome.runtime_admission_reason IS 'reason of the classification';
COMMENT ON COLUMN outcome.runtime_admission_policy_id IS 'policy of the classification';
COMMENT ON COLUMN outcome.mask_sample IS 'NOT runtime_eligible, generated';
COMMENT ON COLUMN outcome.score IS 'the evaluator''s score, 0..1; NULL, never 0, where nothing was evaluated';
COMMENT ON COLUMN outcome.reward IS 'score through reward_mode; NULL where nothing was evaluated';
COMMENT ON COLUMN outcome.reward_mode IS 'binary or raw, as in the contract';
COMMENT ON COLUMN outcome.closed_by IS 'who ended it: episode, claim (superseded), cancel, reconcile or import';
COMMENT ON COLUMN outcome.selected IS 'it became the selected attempt when it ended';
COMMENT ON COLUMN outcome.next_state IS 'state of the rollout after it: final, running (earned a new attempt) or waiting';
COMMENT ON COLUMN outcome.turns IS 'turn rows of the attempt when it ended';
COMMENT ON COLUMN outcome.model_calls IS 'model_call rows of the attempt when it ended';
COMMENT ON COLUMN outcome.evaluations IS 'evaluation rows of the attempt when it ended, 0 or 1';
COMMENT ON COLUMN outcome.ended_at IS 'when it ended';
COMMENT ON COLUMN outcome.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE admission (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    scope TEXT NOT NULL,
    decision_index INTEGER NOT NULL,
    admitted BOOLEAN NOT NULL,
    policy_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    evidence JSONB,
    decided_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT admission_pkey PRIMARY KEY (rollout_key, attempt_index, scope, decision_index),
    CONSTRAINT admission_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES outcome (rollout_key, attempt_index),
    CONSTRAINT admission_scope CHECK (scope IN ('runtime', 'training')),
    CONSTRAINT admission_decision_index CHECK (decision_index >= 1),
    CONSTRAINT admission_texts_not_blank CHECK (policy_id ~ '\S' AND reason ~ '\S' AND decided_by ~ '\S')
);
COMMENT ON TABLE admission IS 'decisions on ended attempts, append-only: facts, score and reward never change';
COMMENT ON COLUMN admission.rollout_key IS 'the rollout';
COMMENT ON COLUMN admission.attempt_index IS 'the attempt';
COMMENT ON COLUMN admission.scope IS 'runtime (may it be counted) or training (may it be trained on)';
COMMENT ON COLUMN admission.decision_index IS '1, 2, … per attempt and scope; the highest is in force';
COMMENT ON COLUMN admission.admitted IS 'the decision';
COMMENT ON COLUMN admission.policy_id IS 'the policy that decided';
COMMENT ON COLUMN admission.reason IS 'why';
COMMENT ON COLUMN admission.decided_by IS 'who or what decided';
COMMENT ON COLUMN admission.evidence IS 'what the decision rests on';
COMMENT ON COLUMN admission.decided_at IS 'when';
COMMENT ON COLUMN admission.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE rerun_request (
    request BIGINT GENERATED ALWAYS AS IDENTITY,
    rollout_key TEXT NOT NULL,
    after_attempt INTEGER NOT NULL,
    supersede BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT rerun_request_pkey PRIMARY KEY (request),
    CONSTRAINT rerun_request_rollout_key_after_attempt_key UNIQUE (rollout_key, after_attempt),
    CONSTRAINT rerun_request_reason CHECK (reason ~ '\S'),
    CONSTRAINT rerun_request_by CHECK (requested_by ~ '\S'),
    CONSTRAINT rerun_request_rollout_key_fkey FOREIGN KEY(rollout_key) REFERENCES rollout (rollout_key)
);
COMMENT ON TABLE rerun_request IS 'requests to run a final rollout again; nothing is ever deleted';
COMMENT ON COLUMN rerun_request.request IS 'order of the requests';
COMMENT ON COLUMN rerun_request.rollout_key IS 'the rollout';
COMMENT ON COLUMN rerun_request.after_attempt IS 'the newest attempt when it was requested: the budget counts from here';
COMMENT ON COLUMN rerun_request.supersede IS 'the selected attempt was admitted and may be superseded';
COMMENT ON COLUMN rerun_request.reason IS 'why';
COMMENT ON COLUMN rerun_request.requested_by IS 'who';
COMMENT ON COLUMN rerun_request.requested_at IS 'when';
COMMENT ON COLUMN rerun_request.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE sandbox (
    sandbox_key TEXT NOT NULL,
    deployment_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    sandbox_id TEXT,
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    state TEXT NOT NULL,
    nonce TEXT,
    isolation TEXT,
    view_url TEXT DEFAULT '' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    stopped_at TIMESTAMP WITH TIME ZONE,
    stop_reason TEXT,
    CONSTRAINT sandbox_pkey PRIMARY KEY (sandbox_key),
    CONSTRAINT sandbox_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT sandbox_rollout_key_attempt_index_key UNIQUE (rollout_key, attempt_index),
    CONSTRAINT sandbox_state CHECK (state IN ('intended', 'running', 'stopped')),
    CONSTRAINT sandbox_running CHECK (state <> 'running' OR (sandbox_id IS NOT NULL AND nonce IS NOT NULL)),
    CONSTRAINT sandbox_stopped CHECK ((state = 'stopped') = (stopped_at IS NOT NULL))
);
CREATE INDEX sandbox_live_idx ON sandbox (deployment_id, lease_until) WHERE state != 'stopped';
COMMENT ON TABLE sandbox IS 'leases of desktops, one per attempt';
COMMENT ON COLUMN sandbox.sandbox_key IS 'label by which the desktop is found again';
COMMENT ON COLUMN sandbox.deployment_id IS 'the deployment that owns it';
COMMENT ON COLUMN sandbox.provider IS 'docker, e2b or null';
COMMENT ON COLUMN sandbox.sandbox_id IS 'the provider''s id; NULL until it is created';
COMMENT ON COLUMN sandbox.rollout_key IS 'the rollout';
COMMENT ON COLUMN sandbox.attempt_index IS 'the attempt';
COMMENT ON COLUMN sandbox.state IS 'intended, running or stopped';
COMMENT ON COLUMN sandbox.nonce IS 'identity of the guest''s boot; another one means another desktop';
COMMENT ON COLUMN sandbox.isolation IS 'full or partial: how far the guest is confined';
COMMENT ON COLUMN sandbox.view_url IS 'loopback live view, without a password';
COMMENT ON COLUMN sandbox.created_at IS 'when its creation was intended';
COMMENT ON COLUMN sandbox.started_at IS 'when it was ready';
COMMENT ON COLUMN sandbox.lease_until IS 'without renewal it may be reaped after this';
COMMENT ON COLUMN sandbox.stopped_at IS 'when it was stopped';
COMMENT ON COLUMN sandbox.stop_reason IS 'why it was stopped';

CREATE TABLE sighting (
    rollout_key TEXT NOT NULL,
    run_id TEXT NOT NULL,
    seen INTEGER NOT NULL,
    first_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    last_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT sighting_pkey PRIMARY KEY (rollout_key, run_id),
    CONSTRAINT sighting_seen CHECK (seen >= 0),
    CONSTRAINT sighting_rollout_key_fkey FOREIGN KEY(rollout_key) REFERENCES rollout (rollout_key)
);
COMMENT ON TABLE sighting IS 'working notes of reconciliation: one missing workflow alone proves nothing';
COMMENT ON COLUMN sighting.rollout_key IS 'the rollout';
COMMENT ON COLUMN sighting.run_id IS 'the run that was not found; empty for a queued row';
COMMENT ON COLUMN sighting.seen IS 'times in a row that its workflow was not found';
COMMENT ON COLUMN sighting.first_at IS 'first of them';
COMMENT ON COLUMN sighting.last_at IS 'last of them';

ALTER TABLE rollout ADD CONSTRAINT rollout_current_attempt_fkey FOREIGN KEY(rollout_key, current_attempt) REFERENCES attempt (rollout_key, attempt_index);
ALTER TABLE rollout ADD CONSTRAINT rollout_selected_attempt_fkey FOREIGN KEY(rollout_key, selected_attempt) REFERENCES outcome (rollout_key, attempt_index);
ALTER TABLE rerun_request ADD CONSTRAINT rerun_request_rollout_key_after_attempt_fkey FOREIGN KEY(rollout_key, after_attempt) REFERENCES outcome (rollout_key, attempt_index);
