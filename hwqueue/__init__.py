"""A task queue inside Postgres that knows which machine may run what."""

from typing import TYPE_CHECKING

from hwqueue.extras import loader, needs

with needs("binary"):
    import psycopg as _psycopg  # noqa: F401  every part of it needs libpq

from hwqueue.app import App, Cancelled, Reject, Retry, Snooze, Task, Throttled
from hwqueue.client import AsyncClient, Client
from hwqueue.cron_times import cron, every
from hwqueue.errors import HwqueueError
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.depends import Depends
from hwqueue.handler.gang import GangContext
from hwqueue.handler.member import Member
from hwqueue.handler.retrying import Retrying
from hwqueue.handler.steps import Suspended
from hwqueue.handler.task import Keyed
from hwqueue.logs import LeaseLogFilter
from hwqueue.placement import (
    Placement,
    any_of,
    label,
    lease,
    leases,
    node,
    rack,
    resource,
    same,
    selector,
    service,
    tags,
    trust,
)
from hwqueue.types import (
    Assignment,
    Claim,
    Gpu,
    Lease,
    LeaseSpec,
    LeaseState,
    NodeSpec,
    QueuePolicy,
    Replaces,
    RetryPolicy,
    ServicePolicy,
    Settlement,
    SpawnResult,
    Taint,
    Unique,
)
from hwqueue.workflow import Step, Workflow, WorkflowBuilder, WorkflowTask

if TYPE_CHECKING:
    from hwqueue.worker import Worker, WorkerSettings

__all__ = [
    "App",
    "Assignment",
    "AsyncClient",
    "AsyncLeaseContext",
    "Cancelled",
    "Claim",
    "Client",
    "Depends",
    "GangContext",
    "Gpu",
    "HwqueueError",
    "Keyed",
    "Lease",
    "LeaseContext",
    "LeaseLogFilter",
    "LeaseSpec",
    "LeaseState",
    "Member",
    "NodeSpec",
    "Placement",
    "QueuePolicy",
    "Reject",
    "Replaces",
    "Retry",
    "RetryPolicy",
    "Retrying",
    "ServicePolicy",
    "Settlement",
    "Snooze",
    "SpawnResult",
    "Step",
    "Suspended",
    "Taint",
    "Task",
    "Throttled",
    "Unique",
    "Worker",
    "WorkerSettings",
    "Workflow",
    "WorkflowBuilder",
    "WorkflowTask",
    "any_of",
    "cron",
    "every",
    "label",
    "lease",
    "leases",
    "node",
    "rack",
    "resource",
    "same",
    "selector",
    "service",
    "tags",
    "trust",
]

__getattr__ = loader(__name__, "worker", "hwqueue.worker", ("Worker", "WorkerSettings"))
