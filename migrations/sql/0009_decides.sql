ALTER TABLE model_call ADD COLUMN decides boolean
    GENERATED ALWAYS AS (accepted OR policy_stop_reason IS NOT NULL) STORED;
COMMENT ON COLUMN model_call.decides IS
    'the call decides its step: it is acted upon or ends the episode; at most one per step, generated';

DROP INDEX model_call_decides_idx;
CREATE UNIQUE INDEX model_call_decides_idx ON model_call (rollout_key, attempt_index, step) WHERE decides;
