"""Troubles on this side of the wire that OSWorld's code logs, swallows, and then scores as a missing file."""

import logging

_SWALLOWED = {
    # logger → beginnings of messages that mean that this machine, not the guest, failed
    "desktopenv.getter.file": ("IO error writing file", "Unexpected error writing file", "Error processing file"),
}


class Tripwires(logging.Handler):
    """Collects the messages that spoil a phase."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a message that is on the list."""
        message = record.getMessage()
        if message.startswith(_SWALLOWED.get(record.name, ())):
            self.found.append(message[:500])


def set_tripwires() -> Tripwires:
    """Watch the loggers on the list from now on."""
    handler = Tripwires()
    for name in _SWALLOWED:
        logging.getLogger(name).addHandler(handler)
    return handler
