ALTER TABLE model_call
    ADD COLUMN image_sha256 TEXT CONSTRAINT model_call_image_sha256_fkey REFERENCES artifact (sha256),
    ADD COLUMN tokens_sha256 TEXT CONSTRAINT model_call_tokens_sha256_fkey REFERENCES artifact (sha256),
    ADD COLUMN said JSONB;
COMMENT ON COLUMN model_call.image_sha256 IS 'the current screen as sent, after scaling';
COMMENT ON COLUMN model_call.tokens_sha256 IS 'token ids and logprobs as the server gave them';
COMMENT ON COLUMN model_call.said IS 'content, reasoning and tool calls of the reply; the thought and action text kept';
