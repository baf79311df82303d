"""PID 1 of the desktop container: starts the session, keeps it running, collects dead processes."""
