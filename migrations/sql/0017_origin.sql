CREATE TABLE image (
    digest TEXT NOT NULL,
    provider TEXT NOT NULL,
    name TEXT NOT NULL,
    manifest JSONB,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT image_pkey PRIMARY KEY (digest),
    CONSTRAINT image_manifest CHECK (manifest IS NULL OR jsonb_typeof(manifest) = 'object')
);
COMMENT ON TABLE image IS 'images of desktops that batches were registered with';
COMMENT ON COLUMN image.digest IS 'the provider''s immutable identity of the image';
COMMENT ON COLUMN image.provider IS 'the provider that has it';
COMMENT ON COLUMN image.name IS 'the name under which it was first found';
COMMENT ON COLUMN image.manifest IS 'the programs that the image declares to have; NULL when it declares nothing';
COMMENT ON COLUMN image.recorded_at IS 'when it was first inspected';

ALTER TABLE sandbox ADD COLUMN image_digest TEXT;
COMMENT ON COLUMN sandbox.image_digest IS 'digest of the image that it was made from';

CREATE TABLE phase (
    rollout_key TEXT NOT NULL,
    attempt_index INTEGER NOT NULL,
    phase TEXT NOT NULL,
    token TEXT NOT NULL,
    ok BOOLEAN NOT NULL,
    guest_failed BOOLEAN NOT NULL,
    detail TEXT DEFAULT '' NOT NULL,
    exchanges JSONB NOT NULL,
    pressure JSONB,
    log_sha256 TEXT,
    screenshot_sha256 TEXT,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    duration_s DOUBLE PRECISION,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT phase_pkey PRIMARY KEY (rollout_key, attempt_index, phase, token),
    CONSTRAINT phase_log_sha256_fkey FOREIGN KEY(log_sha256) REFERENCES artifact (sha256),
    CONSTRAINT phase_screenshot_sha256_fkey FOREIGN KEY(screenshot_sha256) REFERENCES artifact (sha256),
    CONSTRAINT phase_rollout_key_attempt_index_fkey FOREIGN KEY(rollout_key, attempt_index) REFERENCES attempt (rollout_key, attempt_index),
    CONSTRAINT phase_phase CHECK (phase IN ('setup', 'postconfig', 'evaluation')),
    CONSTRAINT phase_duration CHECK (duration_s IS NULL OR (duration_s >= 0 AND duration_s < 'Infinity'))
);
COMMENT ON TABLE phase IS 'runs of OSWorld''s code against a desktop, failed ones too';
COMMENT ON COLUMN phase.rollout_key IS 'the rollout';
COMMENT ON COLUMN phase.attempt_index IS 'the attempt';
COMMENT ON COLUMN phase.phase IS 'setup, postconfig or evaluation';
COMMENT ON COLUMN phase.token IS 'the try of the phase';
COMMENT ON COLUMN phase.ok IS 'OSWorld''s code came to its end';
COMMENT ON COLUMN phase.guest_failed IS 'an exchange with the guest failed';
COMMENT ON COLUMN phase.detail IS 'error text, for people';
COMMENT ON COLUMN phase.exchanges IS 'exchanges with the guest by port, and the failed ones';
COMMENT ON COLUMN phase.pressure IS 'pressure on the host at the end of the phase; NULL where it cannot be read';
COMMENT ON COLUMN phase.log_sha256 IS 'the log of OSWorld''s code';
COMMENT ON COLUMN phase.screenshot_sha256 IS 'the screen after postconfig';
COMMENT ON COLUMN phase.started_at IS 'when it began';
COMMENT ON COLUMN phase.duration_s IS 'seconds that it took';
COMMENT ON COLUMN phase.recorded_at IS 'when it was committed';
COMMENT ON COLUMN phase.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';
