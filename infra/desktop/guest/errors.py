"""Errors that become a JSON answer with a status code."""


class GuestError(Exception):
    """A request that cannot be served; `status` is the HTTP code, the message says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class CommandTimeout(GuestError):
    """A command was still running at its limit; its whole process group has been killed.

    The message ends as that of OSWorld's own server does: readers know the case by these words.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the command was killed: it timed out after {limit_s:g} seconds", 500)
