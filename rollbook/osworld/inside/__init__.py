"""Code that runs inside the evaluator's environment: standard library and `desktop_env` only, nothing of rollbook."""
