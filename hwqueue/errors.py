"""What can go wrong, one class for each outcome.

The line of a class says its SQLSTATE, the status of the answer over HTTP, and whether the same call
may succeed later; docs/reference/errors.md says what to do.

Errors that are not about the queue (connection lost, deadlock, no permission) stay what the driver
raised; one about a permission has a note that says which role may do what. After a lost connection
the outcome of the call is unknown: see docs/reference/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

BY_SQLSTATE: dict[str, type[HwqueueError]] = {}
"""The class of every SQLSTATE that the SQL functions raise."""


class HwqueueError(Exception):
    """Base of every error this package raises.

    `sqlstate`: the code the server sent, or would have sent; None where there is none.
    `detail`: facts for programs, such as `{"field": "options.placement.require[0].op"}`.
    `hint`: what to do about it. `retryable`: whether the same call may succeed later.
    """

    default_sqlstate: ClassVar[str | None] = None
    default_retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 400

    def __init_subclass__(
        cls, *, sqlstate: str | None = None, status: int | None = None, retryable: bool | None = None
    ) -> None:
        """What errors of the class have: their code, the status of an answer over HTTP."""
        if sqlstate is not None:
            cls.default_sqlstate = sqlstate
            BY_SQLSTATE[sqlstate] = cls
        if status is not None:
            cls.http_status = status
        if retryable is not None:
            cls.default_retryable = retryable

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None = None,
        detail: Mapping[str, Any] | None = None,
        hint: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate or self.default_sqlstate
        self.detail: dict[str, Any] = dict(detail or {})
        self.hint = hint
        self.retryable = self.default_retryable if retryable is None else retryable
        if hint:
            self.add_note(f"hint: {hint}")

    @property
    def field(self) -> str | None:
        """Path of the argument that was refused, such as `params.a[3]`; None where unknown."""
        field = self.detail.get("field")
        return field.removeprefix("p_") if isinstance(field, str) else None

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "sqlstate": self.sqlstate,
            "detail": self.detail,
            "hint": self.hint,
            "retryable": self.retryable,
        }
        return (_rebuild, (type(self), str(self), options))


def _rebuild(kind: type[HwqueueError], message: str, options: dict[str, Any]) -> HwqueueError:
    """Unpickle: exceptions with keyword-only arguments need a function that knows them."""
    return kind(message, **options)


class LeaseError(HwqueueError):
    """The lease is not in a state, or not in your hands, for what was asked."""


class LeaseLost(LeaseError, sqlstate="QHL01", status=409):
    """The claim is no longer yours: it was reaped, granted again, or its node was superseded."""


class LeaseCancelled(LeaseError, sqlstate="QHL02", status=409):
    """The lease was cancelled."""


class LeaseFinished(LeaseError, sqlstate="QHL03", status=409):
    """The lease has ended already."""


class LeaseNotFound(LeaseError, sqlstate="QHL04", status=404):
    """No lease has this id; it may have been pruned."""


class BadToken(LeaseError, sqlstate="QHL05", status=409):
    """The claim token was never granted for this lease."""


class LeaseExists(LeaseError, sqlstate="QHL06", status=409):
    """The lease id is taken."""


class LeaseClaimed(LeaseError, sqlstate="QHL07", status=409, retryable=True):
    """Not while the lease is claimed; the same call may succeed once the claim has ended."""


class ClaimNotYours(LeaseError, sqlstate="QHL08", status=403):
    """The claim belongs to another login: that of its node."""


class LeaseBusy(LeaseError, sqlstate="QHL09", status=409, retryable=True):
    """Another session holds the claim, such as one that has cancelled the lease and not committed.

    Nothing was settled or extended; `detail["sessions"]` lists the process ids of the sessions.
    """


class LeaseFailed(LeaseError):
    """A lease whose result was waited for has failed, and no attempt is left.

    `detail["error"]` is what its last attempt failed with.
    """


class WaitTimeout(LeaseError, retryable=True):
    """A lease that was waited for has not ended in time; `detail["lease_ids"]` has which."""


class NodeError(HwqueueError):
    """The node is not registered as the call assumes."""


class NodeUnknown(NodeError, sqlstate="QHN01", status=404):
    """No node has this id."""


class NodeNameTaken(NodeError, sqlstate="QHN02", status=409):
    """Another node has this name."""


class NodeSuperseded(NodeError, sqlstate="QHN03", status=409):
    """A newer registration of the node has taken over: this runtime must stop."""


class NodeNotYours(NodeError, sqlstate="QHN04", status=403):
    """The node belongs to another login; an operator may hand it over."""


class NodeBusy(NodeError, sqlstate="QHN06", status=409, retryable=True):
    """Another session holds the node or one of its claims, so these cannot be changed now."""


class NodeNotBound(NodeNotYours, sqlstate="QHN07", status=403):
    """The token of a worker over HTTP is not for this node, or lets nobody in any more."""


class QueueError(HwqueueError):
    """The queue is not there, or not as the call assumes."""


class QueueUnknown(QueueError, sqlstate="QHQ01", status=404):
    """No queue has this name."""


class QueueExists(QueueError, sqlstate="QHQ02", status=409):
    """The queue exists, and differs in a key of the policy that was given."""


class QueueNotEmpty(QueueError, sqlstate="QHQ03", status=409):
    """The queue still holds leases."""


class WorkflowError(HwqueueError):
    """About a workflow or a run of one."""


class WorkflowUnknown(WorkflowError, sqlstate="QHF01", status=404):
    """No workflow has this name, or this version."""


class WorkflowInvalid(WorkflowError, sqlstate="QHF02", status=422):
    """The specification is malformed; `detail` names the step, or the cycle."""


class RunNotFound(WorkflowError, sqlstate="QHF03", status=404):
    """No run has this id; runs that have ended go with their retention."""


class WrongRunState(WorkflowError, sqlstate="QHF04", status=409):
    """The run, or the step, is in a state that does not allow this."""


class StepOfRun(WorkflowError, sqlstate="QHF05", status=409):
    """The lease is a step of a run, which alone decides about it."""


class StepUnknown(WorkflowError, sqlstate="QHF06", status=422):
    """The workflow has no step of this name."""


class WorkflowTooLarge(WorkflowError, sqlstate="QHF07", status=422):
    """The specification has too many steps or edges, or is too long."""


class GangError(HwqueueError):
    """About a gang."""


class GangNotFound(GangError, sqlstate="QHG01", status=404):
    """No gang has this id, or the lease is of none; a gang goes with the last of its leases."""


class GangExists(GangError, sqlstate="QHG02", status=409):
    """The gang id is taken."""


class MemberOfGang(GangError, sqlstate="QHG03", status=409):
    """The lease is a member of a gang, or of an everywhere task, whose leases share a queue."""


class EverywhereError(HwqueueError):
    """About a task that runs on every node."""


class EverywhereNotFound(EverywhereError, sqlstate="QHE01", status=404):
    """No everywhere task has this id; a stopped one goes with the last of its leases."""


class EverywhereExists(EverywhereError, sqlstate="QHE02", status=409):
    """The id is that of an everywhere task with other content, or of one that was stopped."""


class TokenError(HwqueueError):
    """The token of the HTTP API is not there, or not as the call assumes."""


class TokenUnknown(TokenError, sqlstate="QHK01", status=404):
    """No token has this name."""


class TokenNameTaken(TokenError, sqlstate="QHK02", status=409):
    """The name was given to a token before, which may be revoked by now."""


class WebhookUnknown(HwqueueError, sqlstate="QHH01", status=404):
    """No webhook has this name."""


class ScheduleError(HwqueueError):
    """About a schedule."""


class ScheduleUnknown(ScheduleError, sqlstate="QHD01", status=404):
    """No schedule has this name."""


class ScheduleExists(ScheduleError, sqlstate="QHD02", status=409):
    """The name is that of a schedule with another specification, or of another origin."""


class ScheduleInvalid(ScheduleError, sqlstate="QHD03", status=422):
    """The specification of a schedule is malformed, or has no time to come."""


class LimitError(HwqueueError):
    """About a limit."""


class LimitUnknown(LimitError, sqlstate="QHM01", status=404):
    """No limit has this name."""


class LimitExists(LimitError, sqlstate="QHM02", status=409):
    """The name is that of a limit with another specification."""


class LimitInvalid(LimitError, sqlstate="QHM03", status=422):
    """The specification of a limit is malformed, or what names the limit does not fit it."""


class InvalidSignature(HwqueueError):
    """A request to a webhook's receiver was not signed with its secret, or is old."""


class IdempotencyMismatch(HwqueueError, sqlstate="QHT01", status=422):
    """The idempotency key was used before with other content."""


class UniqueConflict(HwqueueError, sqlstate="QHT02", status=409):
    """Another lease holds the unique key, and a spawn asked to be told, or a requeue needs the key.

    `detail` names the lease that has it.
    """


class QuotaExceeded(HwqueueError, sqlstate="QHT03", status=429):
    """The tenant, or the installation, has as much of that as it may.

    `detail` has `what`, `used`, `limit` and `tenant`; of what `reap` counts, `counted_at`.
    """


class BadArgument(HwqueueError, sqlstate="QHA01", status=422):
    """An argument is malformed or out of range; `field` says which."""


class IsolationLevel(HwqueueError, sqlstate="QHA02", status=500):
    """The function needs read committed, and the transaction is something else."""


class OtherTenant(HwqueueError, sqlstate="QHA03", status=403):
    """It is about another tenant, or about all, and the caller is for one tenant alone."""


class ConstraintError(HwqueueError):
    """What the lease asks of its node cannot be served; `detail["class"]` names a refused class."""


class ClassUnknown(ConstraintError, sqlstate="QHC01", status=404):
    """No placement class has this id."""


class PlacementInvalid(ConstraintError, sqlstate="QHC03", status=422):
    """The placement is malformed."""


class PlacementContradictory(ConstraintError, sqlstate="QHC04", status=422):
    """No node could ever meet the placement."""


class WireInvalid(ConstraintError, sqlstate="QHW01", status=422):
    """The params blob is not valid; docs/reference/wire.md lists the reasons."""

    @property
    def reason(self) -> str | None:
        """What is wrong, such as `unknown_category`."""
        reason: str | None = self.detail.get("reason")
        return reason

    @property
    def offset(self) -> int | None:
        """Where: the byte at fault, counted from 0."""
        offset: int | None = self.detail.get("offset")
        return offset


class SchemaError(HwqueueError):
    """The schema of the database does not fit this package."""


class SchemaTooOld(SchemaError, sqlstate="QHS01", status=503):
    """The database has an older schema than this package, or none at all."""


class SchemaTooNew(SchemaError, sqlstate="QHS02", status=503):
    """The database has a newer schema that is not compatible with this package."""


class SchemaLocked(SchemaError, retryable=True):
    """Another session holds the lock of upgrades; the message says which."""


class ConfigError(HwqueueError):
    """A setting is missing or wrong."""


class EmbeddedError(HwqueueError):
    """The embedded server could not be set up or run."""
