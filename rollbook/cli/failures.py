"""Exit codes: 0 only if it is true, 1 if it is not or could not be done, 2 for wrong input or configuration."""

from typing import Final

from rollbook.errors import ConfigError, InvalidInput, RollbookError

OK: Final = 0
NOT_TRUE: Final = 1
WRONG_INPUT: Final = 2
INTERRUPTED: Final = 130


class Failed(RollbookError):
    """What was asked for is not so, or could not be done; exit code 1."""


class Unreachable(Failed):
    """Temporal or the ledger does not answer."""


def exit_code(error: RollbookError) -> int:
    """The exit code of an error that ends a command."""
    return WRONG_INPUT if isinstance(error, ConfigError | InvalidInput) else NOT_TRUE
