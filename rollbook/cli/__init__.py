"""The `rollbook` command: a convenience over Temporal and SQL, never a second source of truth."""
