"""A desktop as its episode sees it: observations, and actions that happen at most once."""
