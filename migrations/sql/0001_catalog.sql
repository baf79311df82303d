CREATE TABLE artifact (
    sha256 TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    row_digest TEXT NOT NULL,
    CONSTRAINT artifact_pkey PRIMARY KEY (sha256),
    CONSTRAINT artifact_sha256 CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    CONSTRAINT artifact_size CHECK (size_bytes >= 0),
    CONSTRAINT artifact_media_type CHECK (media_type ~ '\S')
);
COMMENT ON TABLE artifact IS 'bytes in the artifact store that the ledger refers to';
COMMENT ON COLUMN artifact.sha256 IS 'digest of the bytes; their name in the artifact store';
COMMENT ON COLUMN artifact.size_bytes IS 'size of the bytes';
COMMENT ON COLUMN artifact.media_type IS 'media type, for instance image/png';
COMMENT ON COLUMN artifact.recorded_at IS 'when the ledger first referred to it';
COMMENT ON COLUMN artifact.row_digest IS 'SHA-256 over the other columns, set by a trigger when the row is inserted';

CREATE TABLE task (
    task_digest TEXT NOT NULL,
    task_id TEXT NOT NULL,
    document JSON NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT task_pkey PRIMARY KEY (task_digest),
    CONSTRAINT task_digest_of_document CHECK (task_digest = encode(sha256(convert_to(document::text, 'UTF8')), 'hex')),
    CONSTRAINT task_id_of_document CHECK (document ->> 'id' = task_id)
);
COMMENT ON TABLE task IS 'one version of one task';
COMMENT ON COLUMN task.task_digest IS 'SHA-256 of the canonical JSON of the document';
COMMENT ON COLUMN task.task_id IS 'OSWorld''s id of the task';
COMMENT ON COLUMN task.document IS 'the task in OSWorld''s format, as canonical JSON';
COMMENT ON COLUMN task.recorded_at IS 'when the document was first registered';

CREATE TABLE task_set (
    registration INTEGER GENERATED ALWAYS AS IDENTITY,
    name TEXT NOT NULL,
    set_digest TEXT NOT NULL,
    task_count INTEGER NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT task_set_pkey PRIMARY KEY (registration),
    CONSTRAINT task_set_digest CHECK (set_digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT task_set_count CHECK (task_count > 0)
);
CREATE INDEX task_set_name_idx ON task_set (name, registration);
COMMENT ON TABLE task_set IS 'names of registered task sets';
COMMENT ON COLUMN task_set.registration IS 'order of registration';
COMMENT ON COLUMN task_set.name IS 'name of the set; the newest registration under a name wins';
COMMENT ON COLUMN task_set.set_digest IS 'content address of the set, independent of file order and layout';
COMMENT ON COLUMN task_set.task_count IS 'tasks in the set';
COMMENT ON COLUMN task_set.registered_at IS 'when it was registered under this name';

CREATE TABLE task_set_member (
    set_digest TEXT NOT NULL,
    task_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    task_digest TEXT NOT NULL,
    CONSTRAINT task_set_member_pkey PRIMARY KEY (set_digest, task_id),
    CONSTRAINT task_set_member_task_digest_fkey FOREIGN KEY(task_digest) REFERENCES task (task_digest)
);
COMMENT ON TABLE task_set_member IS 'which tasks a set holds';
COMMENT ON COLUMN task_set_member.set_digest IS 'the set';
COMMENT ON COLUMN task_set_member.task_id IS 'the task; once per set';
COMMENT ON COLUMN task_set_member.domain IS 'the task''s folder, for instance os or multi_apps';
COMMENT ON COLUMN task_set_member.task_digest IS 'the version of the task that the set holds';

CREATE TABLE policy_script (
    script_digest TEXT NOT NULL,
    body JSON NOT NULL,
    recorded_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT policy_script_pkey PRIMARY KEY (script_digest),
    CONSTRAINT policy_script_digest_of_body CHECK (script_digest = encode(sha256(convert_to(body::text, 'UTF8')), 'hex'))
);
COMMENT ON TABLE policy_script IS 'recorded steps that a scripted policy plays';
COMMENT ON COLUMN policy_script.script_digest IS 'SHA-256 of the canonical JSON of the body';
COMMENT ON COLUMN policy_script.body IS 'steps per task, as canonical JSON';
COMMENT ON COLUMN policy_script.recorded_at IS 'when the body was first registered';

CREATE TABLE policy_script_name (
    registration INTEGER GENERATED ALWAYS AS IDENTITY,
    name TEXT NOT NULL,
    script_digest TEXT NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT policy_script_name_pkey PRIMARY KEY (registration),
    CONSTRAINT policy_script_name_script_digest_fkey FOREIGN KEY(script_digest) REFERENCES policy_script (script_digest)
);
CREATE INDEX policy_script_name_name_idx ON policy_script_name (name, registration);
COMMENT ON TABLE policy_script_name IS 'names of registered scripts';
COMMENT ON COLUMN policy_script_name.registration IS 'order of registration';
COMMENT ON COLUMN policy_script_name.name IS 'name of the script; the newest registration under a name wins';
COMMENT ON COLUMN policy_script_name.script_digest IS 'what the name means';
COMMENT ON COLUMN policy_script_name.registered_at IS 'when it was registered under this name';
