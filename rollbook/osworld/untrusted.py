"""Reading what the evaluator's process wrote: it ran content that the guest controls."""

import os
import stat
from pathlib import Path


def read_regular(path: Path, limit_bytes: int) -> bytes | None:
    """The bytes of a plain file of at most `limit_bytes`; None for anything else.

    No link is followed, no pipe is waited for.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > limit_bytes:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
