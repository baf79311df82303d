"""One worker process: `python -m worker_main --role orchestrate | desktop | osworld | all`.

Polls the task queues of its roles until SIGTERM or SIGINT, then drains: running activities may finish within
`ROLLBOOK_WORKER_DRAIN_S` seconds, nothing new is taken.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.desktop import DesktopActivities
from activities.janitor import JanitorActivities
from activities.ledger import LedgerActivities
from activities.osworld import OsworldActivities
from activities.policy import PolicyActivities
from activities.pump import PumpActivities
from activities.sandbox import SandboxActivities
from models import names
from rollbook import redaction
from rollbook.config.settings import Settings, get_settings
from rollbook.errors import RollbookError
from rollbook.temporal.namespace import ensure_janitor, ensure_search_attributes
from rollbook.temporal.plugin import RollbookPlugin
from rollbook.worker import Role
from rollbook.worker.server_check import await_server, watch_server
from rollbook.worker.services import Services, connect_temporal, open_services
from workflows.batch import BenchmarkBatch
from workflows.episode import Episode
from workflows.janitor import Janitor

WORKFLOWS: tuple[type, ...] = (BenchmarkBatch, Episode, Janitor)

log = logging.getLogger("rollbook.worker")

Queue = tuple[list[type], list[Callable[..., Any]]]


def queues(role: str, services: Services, client: Client) -> dict[str, Queue]:
    """The queues of a role: task queue name → (workflows, activities). Roles that share a queue share a poller."""
    settings = services.settings
    polled: dict[str, Queue] = {}

    def add(queue: str, workflows: list[type], activities: list[Callable[..., Any]]) -> None:
        of_queue = polled.setdefault(queue, ([], []))
        of_queue[0].extend(workflows)
        of_queue[1].extend(activities)

    if role in ("orchestrate", "all"):
        own = LedgerActivities(services).all() + PumpActivities(services, client).all()
        own += PolicyActivities(services).all() + JanitorActivities(services, client).all()
        add(settings.task_queue_orchestrate, list(WORKFLOWS), own)
    if role in ("desktop", "all"):
        own = SandboxActivities(services).all() + DesktopActivities(services).all()
        add(settings.task_queue_desktop, [], own)
    if role in ("osworld", "all"):
        add(settings.task_queue_osworld, [], OsworldActivities(services).all())
    return polled


def make_worker(client: Client, queue: str, work: Queue, settings: Settings) -> Worker:
    """A worker for one task queue."""
    workflows, activities = work
    return Worker(
        client,
        task_queue=queue,
        workflows=workflows,
        activities=activities,
        max_concurrent_activities=settings.worker_activities,
        max_concurrent_workflow_tasks=4 * (os.cpu_count() or 1),
        graceful_shutdown_timeout=timedelta(seconds=settings.worker_drain_s),
        max_heartbeat_throttle_interval=timedelta(seconds=5),
        default_heartbeat_throttle_interval=timedelta(seconds=5),
    )


async def serve(role: str, settings: Settings, stop: asyncio.Event) -> None:
    """Work until `stop` is set."""
    async with AsyncExitStack() as stack:
        services = await open_services(settings, role)
        stack.push_async_callback(services.close)
        client = await connect_temporal(settings, RollbookPlugin())
        await await_server(services, client)
        orchestrates = role in ("orchestrate", "all")
        if orchestrates:
            await ensure_search_attributes(client)
            await ensure_janitor(client, settings)
        for queue, work in queues(role, services, client).items():
            await stack.enter_async_context(make_worker(client, queue, work, settings))
            log.info("polling %s as %s", queue, role)
        watch = asyncio.create_task(watch_server(services, client, schedules=orchestrates))
        stack.callback(watch.cancel)
        if ready := os.environ.get("ROLLBOOK_READY_FILE"):
            await asyncio.to_thread(Path(ready).write_text, f"{os.getpid()}\n")
        await stop.wait()
        log.info("draining")


async def _main(role: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(role, get_settings(), stop)


def refused_in_a_line(record: logging.LogRecord) -> bool:
    """Log wrong input of people in one line, without the traceback of the code that refused it."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ApplicationError) and error.type == names.INVALID_INPUT:
        record.msg, record.args, record.exc_info = (
            "%s refused its input: %s",
            (_activity_of(record), error.message),
            None,
        )
    return True


def _activity_of(record: logging.LogRecord) -> str:
    """Name and workflow id, as the SDK adds them to its records."""
    info = getattr(record, "temporal_activity", {})
    return f"{info.get('activity_type', 'an activity')} ({info.get('workflow_id', '?')})"


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=[role.value for role in Role], default=Role.ALL.value)
    role = parser.parse_args().role
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    redaction.install()
    logging.getLogger("temporalio.activity").addFilter(refused_in_a_line)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request, with its URL
    try:
        asyncio.run(_main(role))
    except RollbookError as error:
        print(redaction.redact(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    code = main()
    # Temporal's runtime threads abort a share of interpreters that shut down the usual way
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
