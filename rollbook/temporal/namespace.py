"""Rollbook in a Temporal namespace: search attributes, pollers of its queues, the schedule of the Janitor."""

import os
import socket
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType, TaskQueueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    GetClusterInfoRequest,
)
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
from temporalio.service import RPCError, RPCStatusCode

from models import names
from models.attributes import SEARCH_ATTRIBUTES
from models.janitor import ReconcileRequest
from rollbook.config.settings import Settings
from rollbook.errors import ConfigError, ForeignServer
from rollbook.ledger.records import TemporalServer

_TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
}


async def ensure_search_attributes(client: Client) -> None:
    """Register what the client's namespace lacks; raises ConfigError with the command when that is not allowed."""
    service = client.operator_service
    try:
        listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = {name: kind for name, kind in SEARCH_ATTRIBUTES.items() if name not in listed.custom_attributes}
        if missing:
            wanted = {name: _TYPES[kind] for name, kind in missing.items()}
            await service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=wanted)
            )
    except RPCError as error:
        command = " ".join(f"--name {name} --type {kind}" for name, kind in SEARCH_ATTRIBUTES.items())
        raise ConfigError(
            f"search attributes of namespace {client.namespace!r} cannot be checked or registered ({error.message}); "
            f"an operator can: temporal operator search-attribute create --namespace {client.namespace} {command}"
        ) from error


async def server_of(client: Client) -> TemporalServer:
    """Identity of the server: a namespace that was made anew, or is another cluster's, has another id."""
    service = client.workflow_service
    namespace = await service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    try:
        cluster = (await service.get_cluster_info(GetClusterInfoRequest())).cluster_id
    except RPCError as error:  # a login that may use its own namespace alone
        if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise
        cluster = "unknown"
    return TemporalServer(namespace_id=namespace.namespace_info.id, cluster_id=cluster)


def require_same_server(
    deployment_id: str, namespace: str, known: TemporalServer | None, server: TemporalServer
) -> None:
    """Raise ForeignServer unless `server` is the one that the ledger names for a deployment, if it names any."""
    if known is not None and known != server:
        raise ForeignServer(
            f"Temporal: the workflows of deployment {deployment_id!r} live in namespace {namespace!r} with the id "
            f"{known.namespace_id}, by the ledger; this server has {server.namespace_id}. Correct TEMPORAL_ADDRESS; "
            "or, if the first one is lost, `rollbook adopt-temporal --reason …`"
        )


# Pollers of a task queue.


def worker_identity(deployment_id: str) -> str:
    """The name under which a worker polls: `temporal task-queue describe` shows the deployment."""
    return f"{deployment_id}:{os.getpid()}@{socket.gethostname()}"


async def foreign_pollers(client: Client, settings: Settings) -> dict[str, list[str]]:
    """Identities of other deployments' workers by the task queue of this one that they poll, or have within minutes."""
    own = f"{settings.deployment_id}:"
    strangers = {}
    for queue in {settings.task_queue_orchestrate, settings.task_queue_desktop, settings.task_queue_osworld}:
        identities: set[str] = set()
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            request = DescribeTaskQueueRequest(
                namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
            )
            answer = await client.workflow_service.describe_task_queue(request)
            identities |= {poller.identity for poller in answer.pollers if not poller.identity.startswith(own)}
        if identities:
            strangers[queue] = sorted(identities)
    return strangers


# The Janitor's schedule: one per deployment, made by whichever worker comes first.


def schedule_id(deployment_id: str) -> str:
    """Id of a deployment's schedule, for `temporal schedule describe`."""
    return f"rollbook-janitor-{deployment_id}"


def janitor_schedule(settings: Settings) -> Schedule:
    """Every `janitor_interval_s`, never two at once, missed runs are not made up for."""
    return Schedule(
        action=ScheduleActionStartWorkflow(
            names.JANITOR,
            ReconcileRequest(deployment_id=settings.deployment_id),
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
        # at once: a schedule that was lost with its server has rows to look after
        await client.create_schedule(schedule_id(settings.deployment_id), wanted, trigger_immediately=True)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(schedule_id(settings.deployment_id)).update(lambda old: _renewed(old, wanted))


async def has_janitor(client: Client, settings: Settings) -> bool:
    """Return whether the schedule is there."""
    try:
        await client.get_schedule_handle(schedule_id(settings.deployment_id)).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


def _renewed(old: ScheduleUpdateInput, wanted: Schedule) -> ScheduleUpdate:
    return ScheduleUpdate(
        Schedule(action=wanted.action, spec=wanted.spec, policy=wanted.policy, state=old.description.schedule.state)
    )
