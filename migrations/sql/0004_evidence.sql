CREATE TABLE turn (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    step INTEGER NOT NULL,
    screenshot_sha256 TEXT NOT NULL,
    accessibility_tree_sha256 TEXT,
    terminal_sha256 TEXT,
    actions JSONB NOT NULL,
    in_doubt INTEGER NOT NULL,
    raised INTEGER NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT turn_pkey PRIMARY KEY (rollout_key, attempt_index, step),
    CONSTRAINT turn_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT turn_actions CHECK (jsonb_typeof(actions) = 'array'),
    CONSTRAINT turn_counts CHECK (step >= 0 AND in_doubt >= 0 AND raised >= 0),
    CONSTRAINT turn_times CHECK (started_at <= ended_at),
    CONSTRAINT turn_screenshot_sha256_fkey FOREIGN KEY(screenshot_sha256) REFERENCES artifact (sha256),
    CONSTRAINT turn_accessibility_tree_sha256_fkey FOREIGN KEY(accessibility_tree_sha256) REFERENCES artifact (sha256),
    CONSTRAINT turn_terminal_sha256_fkey FOREIGN KEY(terminal_sha256) REFERENCES artifact (sha256)
);
COMMENT ON TABLE turn IS 'one step: what its actions did and what was seen after them';
COMMENT ON COLUMN turn.rollout_key IS 'the rollout';
COMMENT ON COLUMN turn.attempt_index IS 'the attempt';
COMMENT ON COLUMN turn.step IS '0 is the observation before the first step';
COMMENT ON COLUMN turn.screenshot_sha256 IS 'the screen after the step';
COMMENT ON COLUMN turn.accessibility_tree_sha256 IS 'the accessibility tree after the step';
COMMENT ON COLUMN turn.terminal_sha256 IS 'the terminal''s text after the step';
COMMENT ON COLUMN turn.actions IS 'one entry per action: op id, status, error, seconds, …';
COMMENT ON COLUMN turn.in_doubt IS 'actions whose effect is unknown: claimed in the guest, never run again';
COMMENT ON COLUMN turn.raised IS 'actions whose code raised in the guest';
COMMENT ON COLUMN turn.started_at IS 'when the step''s first action began';
COMMENT ON COLUMN turn.ended_at IS 'when the observation was recorded';
COMMENT ON COLUMN turn.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE model_call (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    step INTEGER NOT NULL,
    parse_attempt INTEGER NOT NULL,
    policy_kind TEXT NOT NULL,
    actions JSONB NOT NULL,
    terminal_action TEXT,
    policy_stop_reason TEXT,
    completed BOOLEAN NOT NULL,
    accepted BOOLEAN NOT NULL,
    parse_error TEXT,
    failure_kind TEXT,
    finish_reason TEXT,
    summary TEXT DEFAULT '' NOT NULL,
    prompt_sha256 TEXT,
    response_sha256 TEXT,
    model_name TEXT,
    model_version TEXT,
    prompt_tokens INTEGER,
    completion_tokens INTEGER,
    latency_s DOUBLE PRECISION,
    telemetry JSONB,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT model_call_pkey PRIMARY KEY (rollout_key, attempt_index, step, parse_attempt),
    CONSTRAINT model_call_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT model_call_numbers CHECK (step >= 1 AND parse_attempt >= 1),
    CONSTRAINT model_call_actions CHECK (jsonb_typeof(actions) = 'array'),
    CONSTRAINT model_call_terminal CHECK (terminal_action IN ('DONE', 'FAIL')),
    CONSTRAINT model_call_policy_kind CHECK (policy_kind ~ '\S'),
    CONSTRAINT model_call_stop_alone CHECK (policy_stop_reason IS NULL OR (terminal_action IS NULL AND jsonb_array_length(actions) = 0)),
    CONSTRAINT model_call_accepted CHECK (NOT accepted OR (completed AND parse_error IS NULL)),
    CONSTRAINT model_call_latency CHECK (latency_s IS NULL OR (latency_s >= 0 AND latency_s < 'Infinity')),
    CONSTRAINT model_call_prompt_sha256_fkey FOREIGN KEY(prompt_sha256) REFERENCES artifact (sha256),
    CONSTRAINT model_call_response_sha256_fkey FOREIGN KEY(response_sha256) REFERENCES artifact (sha256)
);
COMMENT ON TABLE model_call IS 'one call of the policy, committed before it is acted upon';
COMMENT ON COLUMN model_call.rollout_key IS 'the rollout';
COMMENT ON COLUMN model_call.attempt_index IS 'the attempt';
COMMENT ON COLUMN model_call.step IS 'the step that was decided, from 1';
COMMENT ON COLUMN model_call.parse_attempt IS '1, 2, …: parser retries are calls of their own';
COMMENT ON COLUMN model_call.policy_kind IS 'scripted, noop or the model protocol';
COMMENT ON COLUMN model_call.actions IS 'the parsed actions, a list of strings';
COMMENT ON COLUMN model_call.terminal_action IS 'DONE or FAIL, when the policy said so';
COMMENT ON COLUMN model_call.policy_stop_reason IS 'why the policy''s output ends the episode';
COMMENT ON COLUMN model_call.completed IS 'the call returned a reply';
COMMENT ON COLUMN model_call.accepted IS 'the reply parsed and is acted upon';
COMMENT ON COLUMN model_call.parse_error IS 'why it did not parse';
COMMENT ON COLUMN model_call.failure_kind IS 'kind of a model failure, from the closed set';
COMMENT ON COLUMN model_call.finish_reason IS 'as the server reported it';
COMMENT ON COLUMN model_call.summary IS 'one short line for people';
COMMENT ON COLUMN model_call.prompt_sha256 IS 'the prompt as sent, images as media ids';
COMMENT ON COLUMN model_call.response_sha256 IS 'the reply as received, with tokens where the server gives them';
COMMENT ON COLUMN model_call.model_name IS 'model as requested';
COMMENT ON COLUMN model_call.model_version IS 'model as the server reported it';
COMMENT ON COLUMN model_call.prompt_tokens IS 'tokens of the prompt, as the server counted them';
COMMENT ON COLUMN model_call.completion_tokens IS 'tokens of the reply, as the server counted them';
COMMENT ON COLUMN model_call.latency_s IS 'seconds from request to reply';
COMMENT ON COLUMN model_call.telemetry IS 'history decision, retries, server timings, …';
COMMENT ON COLUMN model_call.recorded_at IS 'when it was committed, before it was acted upon';
COMMENT ON COLUMN model_call.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';
