CREATE TABLE batch (
    batch_id TEXT NOT NULL,
    deployment_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    contract JSON NOT NULL,
    contract_digest TEXT NOT NULL,
    purpose TEXT NOT NULL,
    paused BOOLEAN DEFAULT false NOT NULL,
    frozen BOOLEAN DEFAULT false NOT NULL,
    stopping BOOLEAN DEFAULT false NOT NULL,
    cancelling BOOLEAN DEFAULT false NOT NULL,
    control_reason TEXT DEFAULT '' NOT NULL,
    concurrency INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    launch_id TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    closed_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT batch_pkey PRIMARY KEY (batch_id),
    CONSTRAINT batch_id_form CHECK (batch_id ~ '^[A-Za-z0-9][A-Za-z0-9_.-]*$'),
    CONSTRAINT batch_contract_digest CHECK (contract_digest = encode(sha256(convert_to(contract::text, 'UTF8')), 'hex')),
    CONSTRAINT batch_purpose CHECK (purpose IN ('eval', 'train') AND purpose = contract ->> 'purpose'),
    CONSTRAINT batch_frozen_is_paused CHECK (paused OR NOT frozen),
    CONSTRAINT batch_concurrency CHECK (concurrency >= 1),
    CONSTRAINT batch_max_attempts CHECK (max_attempts >= 1)
);
COMMENT ON TABLE batch IS 'one batch of rollouts under one contract';
COMMENT ON COLUMN batch.batch_id IS 'workflow id of the BenchmarkBatch';
COMMENT ON COLUMN batch.deployment_id IS 'the deployment that runs it';
COMMENT ON COLUMN batch.namespace IS 'Temporal namespace';
COMMENT ON COLUMN batch.contract IS 'everything that gives one rollout its meaning, canonical JSON';
COMMENT ON COLUMN batch.contract_digest IS 'SHA-256 of the contract';
COMMENT ON COLUMN batch.purpose IS 'eval or train, as in the contract';
COMMENT ON COLUMN batch.paused IS 'control: nothing new is started';
COMMENT ON COLUMN batch.frozen IS 'control: running episodes are suspended and their deadlines do not advance';
COMMENT ON COLUMN batch.stopping IS 'control: nothing new is started or claimed; planned rows stay planned';
COMMENT ON COLUMN batch.cancelling IS 'control: open rows are being closed as cancelled';
COMMENT ON COLUMN batch.control_reason IS 'why the control was last changed';
COMMENT ON COLUMN batch.concurrency IS 'control: episodes that may run at once';
COMMENT ON COLUMN batch.max_attempts IS 'attempts per rollout since its last rerun request';
COMMENT ON COLUMN batch.launch_id IS 'the launch that the control belongs to';
COMMENT ON COLUMN batch.created_at IS 'first registration';
COMMENT ON COLUMN batch.closed_at IS 'when every row was found final; NULL while open';

CREATE TABLE registration (
    batch_id TEXT NOT NULL,
    launch_id TEXT NOT NULL,
    launch_index INTEGER NOT NULL,
    spec JSONB NOT NULL,
    deployment_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    set_digest TEXT NOT NULL,
    planned INTEGER NOT NULL,
    added INTEGER NOT NULL,
    plan_digest TEXT NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT registration_pkey PRIMARY KEY (batch_id, launch_id),
    CONSTRAINT registration_batch_id_launch_index_key UNIQUE (batch_id, launch_index),
    CONSTRAINT registration_counts CHECK (planned >= added AND added >= 0 AND planned > 0 AND launch_index >= 1),
    CONSTRAINT registration_plan_digest CHECK (plan_digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT registration_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (batch_id)
);
COMMENT ON TABLE registration IS 'each launch of a batch and what it planned';
COMMENT ON COLUMN registration.batch_id IS 'the batch';
COMMENT ON COLUMN registration.launch_id IS 'first run id of the launch';
COMMENT ON COLUMN registration.launch_index IS '1, 2, … per batch';
COMMENT ON COLUMN registration.spec IS 'the spec as it was submitted';
COMMENT ON COLUMN registration.deployment_id IS 'the deployment that runs the batch';
COMMENT ON COLUMN registration.namespace IS 'Temporal namespace of the batch';
COMMENT ON COLUMN registration.set_digest IS 'the task set that the spec''s name meant';
COMMENT ON COLUMN registration.planned IS 'rollouts of the batch after this registration, all of them';
COMMENT ON COLUMN registration.added IS 'rollouts that this registration added';
COMMENT ON COLUMN registration.plan_digest IS 'SHA-256 over every planned rollout of the batch after this registration';
COMMENT ON COLUMN registration.registered_at IS 'when it was registered';
COMMENT ON COLUMN registration.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE rollout (
    rollout_key TEXT NOT NULL,
    batch_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    task_id TEXT NOT NULL,
    sample INTEGER NOT NULL,
    task_digest TEXT NOT NULL,
    identity_source TEXT DEFAULT 'derived' NOT NULL,
    sampling_event_id TEXT,
    source_group_id TEXT,
    group_id TEXT NOT NULL,
    rollout_index INTEGER NOT NULL,
    plan_order INTEGER NOT NULL,
    state TEXT DEFAULT 'waiting' NOT NULL,
    queued_at TIMESTAMP WITH TIME ZONE,
    current_attempt INTEGER,
    selected_attempt INTEGER,
    decisions INTEGER DEFAULT '0' NOT NULL,
    planned_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT rollout_pkey PRIMARY KEY (rollout_key),
    CONSTRAINT rollout_batch_id_task_id_sample_key UNIQUE (batch_id, task_id, sample),
    CONSTRAINT rollout_batch_id_plan_order_key UNIQUE (batch_id, plan_order),
    CONSTRAINT rollout_caller_key UNIQUE (sampling_event_id, source_group_id, task_id, rollout_index),
    CONSTRAINT rollout_key_form CHECK (rollout_key = batch_id || '/' || domain || '/' || task_id || '/' || sample),
    CONSTRAINT rollout_numbers CHECK (sample >= 0 AND rollout_index >= 0 AND plan_order >= 0),
    CONSTRAINT rollout_state CHECK (state IN ('waiting', 'queued', 'running', 'final')),
    CONSTRAINT rollout_identity_source CHECK (identity_source IN ('derived', 'caller')),
    CONSTRAINT rollout_identity_complete CHECK ((sampling_event_id IS NULL) = (source_group_id IS NULL) AND (sampling_event_id IS NULL OR identity_source = 'caller')),
    CONSTRAINT rollout_group CHECK (group_id ~ '\S'),
    CONSTRAINT rollout_queued CHECK (state <> 'queued' OR queued_at IS NOT NULL),
    CONSTRAINT rollout_running CHECK (state <> 'running' OR current_attempt IS NOT NULL),
    CONSTRAINT rollout_final CHECK (state <> 'final' OR selected_attempt IS NOT NULL),
    CONSTRAINT rollout_selected CHECK (selected_attempt IS NULL OR selected_attempt <= current_attempt),
    CONSTRAINT rollout_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (batch_id),
    CONSTRAINT rollout_task_digest_fkey FOREIGN KEY(task_digest) REFERENCES task (task_digest)
);
CREATE INDEX rollout_in_flight_idx ON rollout (batch_id, rollout_key) WHERE state IN ('queued', 'running');
CREATE INDEX rollout_waiting_idx ON rollout (batch_id, plan_order) WHERE state = 'waiting';
COMMENT ON TABLE rollout IS 'one logical rollout: who must be present';
COMMENT ON COLUMN rollout.rollout_key IS 'batch/domain/task/sample; also the id of the Episode workflow';
COMMENT ON COLUMN rollout.batch_id IS 'the batch';
COMMENT ON COLUMN rollout.domain IS 'the task''s folder';
COMMENT ON COLUMN rollout.task_id IS 'OSWorld''s id of the task';
COMMENT ON COLUMN rollout.sample IS 'sample index within the task, from 0';
COMMENT ON COLUMN rollout.task_digest IS 'version of the task, pinned when the row was planned';
COMMENT ON COLUMN rollout.identity_source IS 'derived, or caller when a trainer gave the identity';
COMMENT ON COLUMN rollout.sampling_event_id IS 'the trainer''s sampling event; only with source_group_id';
COMMENT ON COLUMN rollout.source_group_id IS 'the trainer''s group before scoping; only with sampling_event_id';
COMMENT ON COLUMN rollout.group_id IS 'comparison group: rollouts of one task that are compared with each other';
COMMENT ON COLUMN rollout.rollout_index IS 'position within the group, from 0';
COMMENT ON COLUMN rollout.plan_order IS 'the order in which rows are started, from 0';
COMMENT ON COLUMN rollout.state IS 'waiting, queued, running or final';
COMMENT ON COLUMN rollout.queued_at IS 'when the Episode workflow was last started for this row';
COMMENT ON COLUMN rollout.current_attempt IS 'newest attempt; NULL before the first claim';
COMMENT ON COLUMN rollout.selected_attempt IS 'the attempt that counts; NULL before the first end';
COMMENT ON COLUMN rollout.decisions IS 'admission decisions on its attempts, counted by a trigger';
COMMENT ON COLUMN rollout.planned_at IS 'when the row was planned';
