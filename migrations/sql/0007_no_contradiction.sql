-- NOT VALID: rows of before are looked at later, by revision 0008.
ALTER TABLE outcome
    ADD CONSTRAINT outcome_closed_from_outside CHECK (closed_by IN ('episode', 'import') OR infrastructure_failure_reason IS NOT DISTINCT FROM CASE closed_by WHEN 'claim' THEN 'superseded' WHEN 'cancel' THEN 'cancelled' WHEN 'reconcile' THEN 'reconciled' END) NOT VALID,
    ADD CONSTRAINT outcome_another_attempt CHECK (next_state = 'final' OR coalesce(infrastructure_failure_reason IN ('model_call_failed', 'sandbox_start_failed', 'sandbox_lost', 'setup_interrupted', 'evaluation_interrupted', 'reconciled', 'evaluator_error', 'setup_failed', 'superseded'), false)) NOT VALID,
    ADD CONSTRAINT outcome_policy_of_closer CHECK (runtime_admission_policy_id = 'osworld-runtime-admission-v1' AND closed_by IN ('episode', 'claim', 'import') OR runtime_admission_policy_id = 'rollbook-reconciliation-v1' AND closed_by IN ('cancel', 'reconcile') OR runtime_admission_policy_id = 'legacy-mask-sample-v1' AND closed_by = 'import') NOT VALID;
ALTER TABLE model_call
    ADD CONSTRAINT model_call_actions_are_text CHECK (NOT jsonb_path_exists(actions, 'strict $[*] ? (@.type() != "string")', '{}', true)) NOT VALID,
    ADD CONSTRAINT model_call_terminal_is_accepted CHECK (terminal_action IS NULL OR accepted) NOT VALID,
    ADD CONSTRAINT model_call_stop_vocabulary CHECK (policy_stop_reason IN ('model_response_unparseable', 'model_output_truncated', 'model_response_empty', 'model_response_invalid', 'model_context_overflow')) NOT VALID,
    ADD CONSTRAINT model_call_failure_vocabulary CHECK (failure_kind IN ('context_overflow', 'transport_error', 'output_truncated', 'empty_response', 'unparseable', 'model_timeout')) NOT VALID,
    ADD CONSTRAINT model_call_tokens CHECK (prompt_tokens >= 0 AND completion_tokens >= 0) NOT VALID;
CREATE INDEX outcome_evaluated_then_closed_idx ON outcome (rollout_key, attempt_index)
    WHERE NOT runtime_eligible AND evaluations > 0;
CREATE UNIQUE INDEX model_call_decides_idx ON model_call (rollout_key, attempt_index, step)
    WHERE accepted OR policy_stop_reason IS NOT NULL;
