ALTER TABLE task ADD COLUMN unscorable TEXT;
ALTER TABLE task ADD CONSTRAINT task_unscorable CHECK (unscorable ~ '\S');
COMMENT ON COLUMN task.unscorable IS 'why the evaluator cannot set it up or score it; NULL where it can';
ALTER TABLE registration ADD COLUMN notice TEXT DEFAULT '' NOT NULL;
COMMENT ON COLUMN registration.notice IS 'something to know about the batch besides errors';

CREATE TABLE excluded_task (
    batch_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    task_digest TEXT NOT NULL,
    launch_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT excluded_task_pkey PRIMARY KEY (batch_id, task_id),
    CONSTRAINT excluded_task_batch_id_launch_id_fkey FOREIGN KEY(batch_id, launch_id) REFERENCES registration (batch_id, launch_id),
    CONSTRAINT excluded_task_task_digest_fkey FOREIGN KEY(task_digest) REFERENCES task (task_digest),
    CONSTRAINT excluded_task_reason CHECK (reason ~ '\S')
);
COMMENT ON TABLE excluded_task IS 'tasks that a batch leaves out because they cannot be run or scored here';
COMMENT ON COLUMN excluded_task.batch_id IS 'the batch';
COMMENT ON COLUMN excluded_task.task_id IS 'the task that its spec selects and no rollout is planned for';
COMMENT ON COLUMN excluded_task.domain IS 'the task''s folder';
COMMENT ON COLUMN excluded_task.task_digest IS 'version of the task';
COMMENT ON COLUMN excluded_task.launch_id IS 'the launch that first left it out';
COMMENT ON COLUMN excluded_task.reason IS 'what the image lacks, or why the evaluator cannot score it';
COMMENT ON COLUMN excluded_task.recorded_at IS 'when it was left out';
COMMENT ON COLUMN excluded_task.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';
