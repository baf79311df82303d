"""The worker process: connections, services, and the roles it can have."""

from enum import StrEnum


class Role(StrEnum):
    """Which task queues a worker polls."""

    ORCHESTRATE = "orchestrate"
    DESKTOP = "desktop"
    OSWORLD = "osworld"
    ALL = "all"
