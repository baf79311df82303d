"""The local stack: Temporal, Postgres, workers and an artifact server under one supervisor."""
