"""The same tests for every registered extension."""
