"""What both clients make of a lease that has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from uuid import UUID

from hwqueue.error_text import error_line
from hwqueue.errors import BadArgument, LeaseCancelled, LeaseFailed, WaitTimeout
from hwqueue.types import Json, Lease, LeaseState, WorkflowRun

ENDED = frozenset({LeaseState.COMPLETED, LeaseState.FAILED, LeaseState.CANCELLED})


def unique_ids(lease_ids: Iterable[UUID | str]) -> list[UUID]:
    """The ids, each once, in the order given. Raises: BadArgument."""
    try:
        return list(dict.fromkeys(i if isinstance(i, UUID) else UUID(i) for i in lease_ids))
    except (ValueError, AttributeError, TypeError) as error:
        raise BadArgument(
            "lease_ids holds what is not the id of a lease",
            detail={"field": "lease_ids"},
            hint="give what spawn_lease returned as lease_id",
        ) from error


def result_of(lease: Lease) -> Json:
    """The result of a lease that has ended. Raises: LeaseFailed, LeaseCancelled."""
    if lease.state is LeaseState.COMPLETED:
        return lease.result
    detail = {"lease_id": str(lease.lease_id), "state": lease.state, "error": lease.error}
    what = f"lease {lease.lease_id} of task {lease.task_name}"
    if lease.state is LeaseState.CANCELLED:
        why = error_line(lease.error).removeprefix("cancelled").removeprefix(": ")
        raise LeaseCancelled(f"{what} was cancelled{f': {why}' if why else ''}", detail=detail)
    raise LeaseFailed(
        f"{what} failed after attempt {lease.attempt} of {lease.max_attempts}: "
        f"{error_line(lease.error) or 'no error is known'}",
        detail=detail,
        hint="all its attempts: get_lease(lease_id).attempts; to run it again: requeue_lease",
    )


def timed_out(open_ids: Collection[UUID], timeout: timedelta | None) -> WaitTimeout:
    """What says that some have not ended."""
    first = next(iter(open_ids))
    which = f"lease {first} has" if len(open_ids) == 1 else f"{len(open_ids)} leases have"
    return WaitTimeout(
        f"{which} not ended within {timeout}",
        detail={"lease_ids": [str(lease_id) for lease_id in open_ids]},
        hint=f"wait again, or ask why it has not ended (as an operator): hwqueue lease explain {first}",
    )


def run_timed_out(run: WorkflowRun, timeout: timedelta | None) -> WaitTimeout:
    """What says that a run has not ended."""
    return WaitTimeout(
        f"run {run.run_id} of workflow {run.workflow} is {run.state}, it has not ended within {timeout}",
        detail={"run_id": str(run.run_id), "state": run.state},
        hint=f"wait again, or ask what it waits for: hwqueue workflow status {run.run_id}",
    )
