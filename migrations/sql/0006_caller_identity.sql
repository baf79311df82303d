ALTER TABLE rollout DROP CONSTRAINT rollout_identity_complete;
ALTER TABLE rollout
    ADD CONSTRAINT rollout_identity_complete CHECK ((sampling_event_id IS NULL) = (source_group_id IS NULL) AND (sampling_event_id IS NULL) = (identity_source = 'derived')),
    ADD CONSTRAINT rollout_caller_ids CHECK (sampling_event_id ~ '\S' AND source_group_id ~ '\S');
