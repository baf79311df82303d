CREATE TABLE completion (
    batch_id TEXT NOT NULL,
    completion_index INTEGER NOT NULL,
    digest TEXT NOT NULL,
    rollouts INTEGER NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT completion_pkey PRIMARY KEY (batch_id, completion_index),
    CONSTRAINT completion_batch_id_fkey FOREIGN KEY(batch_id) REFERENCES batch (batch_id),
    CONSTRAINT completion_digest CHECK (digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT completion_numbers CHECK (completion_index >= 1 AND rollouts >= 1)
);
COMMENT ON TABLE completion IS 'each time at which every row of a batch was final, and the digest of its rows';
COMMENT ON COLUMN completion.batch_id IS 'the batch';
COMMENT ON COLUMN completion.completion_index IS '1, 2, … per batch';
COMMENT ON COLUMN completion.digest IS 'SHA-256 of the batch''s record at that time; the record''s name in the artifact store';
COMMENT ON COLUMN completion.rollouts IS 'rollouts of the batch at that time, all of them final';
COMMENT ON COLUMN completion.recorded_at IS 'when the batch was found whole';
COMMENT ON COLUMN completion.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';
