"""The calls of a worker's node over HTTP: their routes, and their arguments and rows in JSON.

The server offers these calls at `/nodes/{id}/...` and a worker without a login of the database makes
them there. Which node, and at which epoch, is said by the path and by the secret of its registration,
not by an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, get_type_hints
from uuid import UUID

from hwqueue import calls, types
from hwqueue.calls import Call
from hwqueue.client._drivers import Rows
from hwqueue.statements import column_types

SECRET = "Node-Secret"
"""The header with the secret of the node's registration."""
LONGEST_WAIT_SECONDS = 20.0
OF_THE_NODE = ("p_node", "p_epoch")
_MOST_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A call that a worker may make for its node.

    Attributes:
        call: The function.
        says: What it does, for the reference.
        needs: Optional arguments of the function that the route needs.
        lacks: Arguments that the route has not.
    """

    call: Call
    says: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    @property
    def arguments(self) -> Mapping[str, str]:
        """The arguments of a request, without `p_`, and their SQL types."""
        return {
            name.removeprefix("p_"): sql_type
            for name, sql_type in self.call.arguments.items()
            if name not in OF_THE_NODE and name not in self.lacks
        }

    def is_needed(self, name: str) -> bool:
        """Whether a request must have this argument."""
        return f"p_{name}" in self.call.required or f"p_{name}" in self.needs


NODE_CALLS: Mapping[str, NodeCall] = {
    "claim": NodeCall(calls.CLAIM_TASK, "Claim leases, best first."),
    "settle": NodeCall(
        calls.SETTLE_AND_CLAIM, "Settle claims and claim the next leases, in one transaction."
    ),
    "heartbeat": NodeCall(
        calls.HEARTBEAT_NODE,
        "Say that the node lives, and keep its claims: name all of them. Claims that are not named come with "
        "the verdict `unnamed`: the answer that granted them was lost; release them.",
    ),
    "progress": NodeCall(
        calls.REPORT_PROGRESS, "Say how far claims have come; returns how many are recorded."
    ),
    "logs": NodeCall(calls.APPEND_LOGS, "Keep what claims log; returns how many lines were added."),
    "checkpoints": NodeCall(calls.SAVE_CHECKPOINT, "Save a checkpoint of a claim; returns when it ends."),
    "saved": NodeCall(calls.CHECKPOINTS, "Read what the claims of the lease have saved."),
    "suspend": NodeCall(calls.SUSPEND_LEASE, "End a claim until a time, or until a signal comes."),
    "signal": NodeCall(calls.TAKE_SIGNAL, "Take a signal that was sent to the lease of a claim."),
    "extend": NodeCall(calls.EXTEND_CLAIM, "Move the end of a claim; returns the new one."),
    "gang": NodeCall(calls.GANG_STATUS, "Ask whether the gang of a claim is there, and who is in it."),
    "items": NodeCall(calls.ADD_ITEMS, "Add items to the step that a claim runs."),
    "steps": NodeCall(calls.ADD_STEPS, "Add steps to the step that a claim runs."),
    "results": NodeCall(calls.STEP_RESULTS, "Read results of a step of the run.", ("p_lease",)),
    "input": NodeCall(calls.RUN_INPUT, "Read what the run was submitted with.", ("p_lease",)),
    "throttle": NodeCall(
        calls.THROTTLE_LIMIT,
        "Close the lane of a limit in which a lease stands.",
        ("p_lease", "p_retry_after"),
        ("p_key", "p_until", "p_tenant"),
    ),
    "hint": NodeCall(calls.CLAIM_HINT, "After a claim that found nothing: when to ask again."),
    "outlook": NodeCall(calls.LEASE_OUTLOOK, "What comes of leases that the node runs or ran last."),
    "deaths": NodeCall(calls.TAKE_DEATHS, "Take leases that died without a handler."),
    "compare": NodeCall(calls.COMPARE_TASKS, "Compare defaults of tasks with those of the database."),
    "advance": NodeCall(calls.ADVANCE_WORKFLOWS, "Advance runs after steps were settled."),
    "reap": NodeCall(calls.REAP, "Bring back what nobody settles."),
    "prune": NodeCall(calls.PRUNE, "Delete what is kept no longer."),
    "leave": NodeCall(calls.DEREGISTER_OWN_NODE, "Take the node out of the fleet, if it holds no claims."),
}


def as_json(value: Any) -> Any:
    """A value in JSON: times in RFC 3339, spans in seconds, integers beyond 2^53 as text."""
    if isinstance(value, int) and abs(value) > _MOST_EXACT:
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value


def answer_of(call: Call, rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """The rows of a call as an answer: `items`, or the one `value`."""
    if not call.columns:
        [[value]] = rows
        return {"value": as_json(value)}
    return {"items": [dict(zip(call.columns, map(as_json, row), strict=True)) for row in rows]}


def rows_of(call: Call, answer: Mapping[str, Any]) -> Rows:
    """The rows of a call from its answer, as a connection would have them."""
    readers = _readers(call)
    if not call.columns:
        [read] = readers.values()
        return [[_read(read, answer["value"])]]
    return [[_read(read, item.get(name)) for name, read in readers.items()] for item in answer["items"]]


def _read(read: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if read is None or value is None else read(value)


@cache
def _readers(call: Call) -> Mapping[str, Callable[[Any], Any] | None]:
    """What makes of each column in JSON the value of a connection; None: it is that."""
    if not call.columns:
        return {"": int if call.kind is int else READERS.get(call.returns)}
    hints = get_type_hints(call.kind or types.Claim)
    return {
        name: int if hints.get(name) in (int, int | None) else READERS.get(sql_type)
        for name, sql_type in column_types(call).items()
    }


READERS: Mapping[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "uuid[]": lambda value: list(map(UUID, value)),
    "timestamp with time zone": datetime.fromisoformat,
    "interval": lambda value: timedelta(seconds=value),
}
"""By SQL type: what makes of a value in JSON that of a connection."""
