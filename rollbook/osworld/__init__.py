"""OSWorld: task sets, what the canonical evaluator knows, and the runner that asks it."""
