"""The Janitor's schedule: one per deployment, made by whichever worker comes first."""

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from models import names
from models.janitor import ReconcileRequest
from rollbook.config.settings import Settings


def schedule_id(deployment_id: str) -> str:
    """Id of a deployment's schedule, for `temporal schedule describe`."""
    return f"rollbook-janitor-{deployment_id}"


def janitor_schedule(settings: Settings) -> Schedule:
    """Every `janitor_interval_s`, never two at once, missed runs are not made up for."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            names.JANITOR,
            ReconcileRequest(),
            id=schedule_id(settings.deployment_id),
            task_queue=settings.task_queue_orchestrate,
            static_summary="reconcile ledger, workflows and desktops",
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=settings.janitor_interval_s))]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(seconds=60)),
    )


async def ensure_janitor(client: Client, settings: Settings) -> None:
    """Create the schedule, or bring an older one up to date; what an operator paused stays paused."""
    wanted = janitor_schedule(settings)
    try:
        await client.create_schedule(schedule_id(settings.deployment_id), wanted)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(schedule_id(settings.deployment_id)).update(lambda old: _renewed(old, wanted))


def _renewed(old: ScheduleUpdateInput, wanted: Schedule) -> ScheduleUpdate:
    return ScheduleUpdate(
        Schedule(action=wanted.action, spec=wanted.spec, policy=wanted.policy, state=old.description.schedule.state)
    )
