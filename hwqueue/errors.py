"""What can go wrong, one class for each outcome.

HwqueueError
  LeaseError
    LeaseLost                QHL01  the claim is no longer yours: reaped, regranted, node superseded
    LeaseCancelled           QHL02  the lease was cancelled
    LeaseFinished            QHL03  the lease has ended already
    LeaseNotFound            QHL04  no lease has this id
    BadToken                 QHL05  the claim token was never granted for this lease
    LeaseExists              QHL06  the lease id is taken
    LeaseClaimed             QHL07  not while the lease is claimed
    ClaimNotYours            QHL08  the claim belongs to another login
    LeaseBusy                QHL09  another session holds the claim; nothing was done
    LeaseFailed                     a lease whose result was waited for has failed for good
    WaitTimeout                     a lease that was waited for has not ended in time
  NodeError
    NodeUnknown              QHN01  no node has this id
    NodeNameTaken            QHN02  another node has this name
    NodeSuperseded           QHN03  a newer registration of the node has taken over
    NodeNotYours             QHN04  the node belongs to another login
    NodeBusy                 QHN06  another session holds the node or one of its claims
  QueueError
    QueueUnknown             QHQ01  no queue has this name
    QueueExists              QHQ02  the queue exists, and its policy differs
    QueueNotEmpty            QHQ03  the queue still holds leases
  WorkflowError
    WorkflowUnknown          QHF01  no workflow has this name, or this version
    WorkflowInvalid          QHF02  the specification is malformed, or its steps wait in a circle
    RunNotFound              QHF03  no run has this id
    WrongRunState            QHF04  not in the state that the run or step is in
    StepOfRun                QHF05  the lease is a step: its run decides about it
    StepUnknown              QHF06  the workflow has no step of this name
    WorkflowTooLarge         QHF07  too many steps or edges, or too long
  GangError
    GangNotFound             QHG01  no gang has this id, or the lease is of none
    GangExists               QHG02  the gang id is taken
    MemberOfGang             QHG03  the lease is a member: it stays in the queue of its gang
  EverywhereError
    EverywhereNotFound       QHE01  no everywhere task has this id
    EverywhereExists         QHE02  the id is that of another everywhere task, or was stopped
  TokenError
    TokenUnknown             QHK01  no token has this name
    TokenNameTaken           QHK02  the name was given to a token before
  WebhookUnknown             QHH01  no webhook has this name
  IdempotencyMismatch        QHT01  the idempotency key was used with other content
  UniqueConflict             QHT02  another lease holds the key of the option unique
  QuotaExceeded              QHT03  the tenant has too much of that work open
  BadArgument                QHA01  an argument is malformed, or out of range
  IsolationLevel             QHA02  the transaction is not read committed
  OtherTenant                QHA03  it is about another tenant, or all, and the caller is for one
  ConstraintError
    ClassUnknown             QHC01  no placement class has this id
    PlacementInvalid         QHC03  the placement is malformed
    PlacementContradictory   QHC04  no node could ever meet the placement
    WireInvalid              QHW01  the params blob is not valid
  SchemaError
    SchemaTooOld             QHS01  the database has an older schema than this package, or none
    SchemaTooNew             QHS02  the database has a newer schema that this package cannot use
    SchemaLocked                    another session holds the lock of upgrades
  InvalidSignature                  a request to a webhook was not signed with its secret, or is old
  ConfigError                       a setting is missing or wrong
  EmbeddedError                     the embedded server could not be set up or run

Errors that are not about the queue (connection lost, deadlock, no permission) stay what the driver
raised; one about a permission has a note that says which role may do what. After a lost connection
the outcome of the call is unknown: see docs/reference/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "BY_SQLSTATE",
    "BadArgument",
    "BadToken",
    "ClaimNotYours",
    "ClassUnknown",
    "ConfigError",
    "ConstraintError",
    "EmbeddedError",
    "EverywhereError",
    "EverywhereExists",
    "EverywhereNotFound",
    "GangError",
    "GangExists",
    "GangNotFound",
    "HwqueueError",
    "IdempotencyMismatch",
    "IsolationLevel",
    "LeaseBusy",
    "LeaseCancelled",
    "LeaseClaimed",
    "LeaseError",
    "LeaseExists",
    "LeaseFailed",
    "LeaseFinished",
    "LeaseLost",
    "LeaseNotFound",
    "MemberOfGang",
    "NodeBusy",
    "NodeError",
    "NodeNameTaken",
    "NodeNotYours",
    "NodeSuperseded",
    "NodeUnknown",
    "OtherTenant",
    "PlacementContradictory",
    "PlacementInvalid",
    "QueueError",
    "QueueExists",
    "QueueNotEmpty",
    "QueueUnknown",
    "RunNotFound",
    "SchemaError",
    "SchemaLocked",
    "SchemaTooNew",
    "SchemaTooOld",
    "StepOfRun",
    "StepUnknown",
    "TokenError",
    "TokenNameTaken",
    "TokenUnknown",
    "UniqueConflict",
    "WaitTimeout",
    "WireInvalid",
    "WorkflowError",
    "WorkflowInvalid",
    "WorkflowTooLarge",
    "WorkflowUnknown",
    "WrongRunState",
]


class HwqueueError(Exception):
    """Base of every error this package raises.

    `sqlstate`: the code the server sent, or would have sent; None where there is none.
    `detail`: facts for programs, such as `{"field": "options.placement.require[0].op"}`.
    `hint`: what to do about it. `retryable`: whether the same call may succeed later.
    """

    default_sqlstate: ClassVar[str | None] = None
    default_retryable: ClassVar[bool] = False

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


class LeaseLost(LeaseError):
    """The claim is no longer yours: it was reaped, granted again, or its node was superseded."""

    default_sqlstate = "QHL01"


class LeaseCancelled(LeaseError):
    """The lease was cancelled."""

    default_sqlstate = "QHL02"


class LeaseFinished(LeaseError):
    """The lease has ended already."""

    default_sqlstate = "QHL03"


class LeaseNotFound(LeaseError):
    """No lease has this id; it may have been pruned."""

    default_sqlstate = "QHL04"


class BadToken(LeaseError):
    """The claim token was never granted for this lease."""

    default_sqlstate = "QHL05"


class LeaseExists(LeaseError):
    """The lease id is taken."""

    default_sqlstate = "QHL06"


class LeaseClaimed(LeaseError):
    """Not while the lease is claimed; the same call may succeed once the claim has ended."""

    default_sqlstate = "QHL07"
    default_retryable = True


class ClaimNotYours(LeaseError):
    """The claim belongs to another login: that of its node."""

    default_sqlstate = "QHL08"


class LeaseBusy(LeaseError):
    """Another session holds the claim, such as one that has cancelled the lease and not committed.

    Nothing was settled or extended; `detail["sessions"]` lists the process ids of the sessions.
    """

    default_sqlstate = "QHL09"
    default_retryable = True


class LeaseFailed(LeaseError):
    """A lease whose result was waited for has failed, and no attempt is left.

    `detail["error"]` is what its last attempt failed with.
    """


class WaitTimeout(LeaseError):
    """A lease that was waited for has not ended in time; `detail["lease_ids"]` has which."""

    default_retryable = True


class NodeError(HwqueueError):
    """The node is not registered as the call assumes."""


class NodeUnknown(NodeError):
    """No node has this id."""

    default_sqlstate = "QHN01"


class NodeNameTaken(NodeError):
    """Another node has this name."""

    default_sqlstate = "QHN02"


class NodeSuperseded(NodeError):
    """A newer registration of the node has taken over: this runtime must stop."""

    default_sqlstate = "QHN03"


class NodeNotYours(NodeError):
    """The node belongs to another login; an operator may hand it over."""

    default_sqlstate = "QHN04"


class NodeBusy(NodeError):
    """Another session holds the node or one of its claims, so these cannot be changed now."""

    default_sqlstate = "QHN06"
    default_retryable = True


class QueueError(HwqueueError):
    """The queue is not there, or not as the call assumes."""


class QueueUnknown(QueueError):
    """No queue has this name."""

    default_sqlstate = "QHQ01"


class QueueExists(QueueError):
    """The queue exists, and differs in a key of the policy that was given."""

    default_sqlstate = "QHQ02"


class QueueNotEmpty(QueueError):
    """The queue still holds leases."""

    default_sqlstate = "QHQ03"


class WorkflowError(HwqueueError):
    """About a workflow or a run of one."""


class WorkflowUnknown(WorkflowError):
    """No workflow has this name, or this version."""

    default_sqlstate = "QHF01"


class WorkflowInvalid(WorkflowError):
    """The specification is malformed; `detail` names the step, or the cycle."""

    default_sqlstate = "QHF02"


class RunNotFound(WorkflowError):
    """No run has this id; runs that have ended go with their retention."""

    default_sqlstate = "QHF03"


class WrongRunState(WorkflowError):
    """The run, or the step, is in a state that does not allow this."""

    default_sqlstate = "QHF04"


class StepOfRun(WorkflowError):
    """The lease is a step of a run, which alone decides about it."""

    default_sqlstate = "QHF05"


class StepUnknown(WorkflowError):
    """The workflow has no step of this name."""

    default_sqlstate = "QHF06"


class WorkflowTooLarge(WorkflowError):
    """The specification has too many steps or edges, or is too long."""

    default_sqlstate = "QHF07"


class GangError(HwqueueError):
    """About a gang."""


class GangNotFound(GangError):
    """No gang has this id, or the lease is of none; a gang goes with the last of its leases."""

    default_sqlstate = "QHG01"


class GangExists(GangError):
    """The gang id is taken."""

    default_sqlstate = "QHG02"


class MemberOfGang(GangError):
    """The lease is a member of a gang, or of an everywhere task, whose leases share a queue."""

    default_sqlstate = "QHG03"


class EverywhereError(HwqueueError):
    """About a task that runs on every node."""


class EverywhereNotFound(EverywhereError):
    """No everywhere task has this id; a stopped one goes with the last of its leases."""

    default_sqlstate = "QHE01"


class EverywhereExists(EverywhereError):
    """The id is that of an everywhere task with other content, or of one that was stopped."""

    default_sqlstate = "QHE02"


class TokenError(HwqueueError):
    """The token of the HTTP API is not there, or not as the call assumes."""


class TokenUnknown(TokenError):
    """No token has this name."""

    default_sqlstate = "QHK01"


class TokenNameTaken(TokenError):
    """The name was given to a token before, which may be revoked by now."""

    default_sqlstate = "QHK02"


class WebhookUnknown(HwqueueError):
    """No webhook has this name."""

    default_sqlstate = "QHH01"


class InvalidSignature(HwqueueError):
    """A request to a webhook's receiver was not signed with its secret, or is old."""


class IdempotencyMismatch(HwqueueError):
    """The idempotency key was used before with other content."""

    default_sqlstate = "QHT01"


class UniqueConflict(HwqueueError):
    """Another lease holds the unique key, and a spawn asked to be told, or a requeue needs the key.

    `detail` names the lease that has it.
    """

    default_sqlstate = "QHT02"


class QuotaExceeded(HwqueueError):
    """The tenant, or the installation, has as much of that work open as it may.

    `detail` has `what`, `used`, `limit` and `tenant`.
    """

    default_sqlstate = "QHT03"


class BadArgument(HwqueueError):
    """An argument is malformed or out of range; `field` says which."""

    default_sqlstate = "QHA01"


class IsolationLevel(HwqueueError):
    """The function needs read committed, and the transaction is something else."""

    default_sqlstate = "QHA02"


class OtherTenant(HwqueueError):
    """It is about another tenant, or about all, and the caller is for one tenant alone."""

    default_sqlstate = "QHA03"


class ConstraintError(HwqueueError):
    """What the lease asks of its node cannot be served; `detail["class"]` names a refused class."""


class ClassUnknown(ConstraintError):
    """No placement class has this id."""

    default_sqlstate = "QHC01"


class PlacementInvalid(ConstraintError):
    """The placement is malformed."""

    default_sqlstate = "QHC03"


class PlacementContradictory(ConstraintError):
    """No node could ever meet the placement."""

    default_sqlstate = "QHC04"


class WireInvalid(ConstraintError):
    """The params blob is not valid; docs/reference/wire.md lists the reasons."""

    default_sqlstate = "QHW01"

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


class SchemaTooOld(SchemaError):
    """The database has an older schema than this package, or none at all."""

    default_sqlstate = "QHS01"


class SchemaTooNew(SchemaError):
    """The database has a newer schema that is not compatible with this package."""

    default_sqlstate = "QHS02"


class SchemaLocked(SchemaError):
    """Another session holds the lock of upgrades; the message says which."""

    default_retryable = True


class ConfigError(HwqueueError):
    """A setting is missing or wrong."""


class EmbeddedError(HwqueueError):
    """The embedded server could not be set up or run."""


BY_SQLSTATE: Mapping[str, type[HwqueueError]] = {
    kind.default_sqlstate: kind
    for family in (
        HwqueueError,
        LeaseError,
        NodeError,
        QueueError,
        WorkflowError,
        GangError,
        EverywhereError,
        TokenError,
        ConstraintError,
        SchemaError,
    )
    for kind in family.__subclasses__()
    if kind.default_sqlstate is not None
}
"""The class of every SQLSTATE that the SQL functions raise."""
