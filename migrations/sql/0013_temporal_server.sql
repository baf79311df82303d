CREATE TABLE temporal_server (
    deployment_id TEXT NOT NULL,
    namespace TEXT NOT NULL,
    adoption_index INTEGER NOT NULL,
    namespace_id TEXT NOT NULL,
    cluster_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    adopted_by TEXT NOT NULL,
    adopted_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT temporal_server_pkey PRIMARY KEY (deployment_id, namespace, adoption_index),
    CONSTRAINT temporal_server_ids CHECK (namespace_id ~ '\S' AND cluster_id ~ '\S'),
    CONSTRAINT temporal_server_said CHECK (reason ~ '\S' AND adopted_by ~ '\S'),
    CONSTRAINT temporal_server_index CHECK (adoption_index >= 1)
);
COMMENT ON TABLE temporal_server IS 'the Temporal servers that a deployment''s workflows have lived on; the newest counts';
COMMENT ON COLUMN temporal_server.deployment_id IS 'the deployment';
COMMENT ON COLUMN temporal_server.namespace IS 'Temporal namespace';
COMMENT ON COLUMN temporal_server.adoption_index IS '1, 2, … per deployment and namespace; 1 is the first worker''s, later ones follow a loss';
COMMENT ON COLUMN temporal_server.namespace_id IS 'id of the namespace: another one has other workflows';
COMMENT ON COLUMN temporal_server.cluster_id IS 'id of the Temporal cluster';
COMMENT ON COLUMN temporal_server.reason IS 'why it was adopted';
COMMENT ON COLUMN temporal_server.adopted_by IS 'who adopted it: a worker, or a person';
COMMENT ON COLUMN temporal_server.adopted_at IS 'when';
