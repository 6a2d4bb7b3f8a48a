"""What was spawned: looked up, asserted, claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from hwqueue.app import Task
from hwqueue.client import AsyncClient
from hwqueue.testing.either import of_either
from hwqueue.types import Claim, Json, Lease, LeaseState, NodeSpec

State = LeaseState | str | None

_MOST = 1000
_MOST_SHOWN = 10
_MOST_CHARS = 200


@of_either
async def spawned(
    client: AsyncClient,
    task: Task[..., Any] | str | None = None,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> list[Lease]:
    """The leases that were spawned, newest first, whatever has become of them; at most 1,000.

    Args:
        task: A task or its name; None: any.
        queue: None: any.
        params: Only those with these params. An object may have more members than this one.
        state: Only those that are in this state now.
    """
    name = task.name if isinstance(task, Task) else task
    listed = await client.list_leases(queue=queue, task=name, state=state, limit=_MOST)
    leases = [await client.get_lease(lease.lease_id) for lease in listed]
    return [lease for lease in leases if params is None or _fits(lease.params, params)]


@of_either
async def assert_spawned(
    client: AsyncClient,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
    count: int = 1,
) -> list[Lease]:
    """Assert how many such leases were spawned, and return them, newest first.

    Args:
        task, queue, params, state: Which, as for `spawned`.
        count: Exactly this many.

    Raises: AssertionError, which says what was spawned instead.
    """
    task = task.name if isinstance(task, Task) else task
    found = await spawned(client, task, queue=queue, params=params, state=state)
    if len(found) == count:
        return found
    wanted = f"task {task!r}"
    wanted += "" if queue is None else f" in queue {queue!r}"
    wanted += "" if params is None else f" with params {params!r}"
    wanted += "" if state is None else f", {LeaseState(state).value}"
    lines = [f"{count} of {wanted} expected, {len(found)} spawned"]
    everything = await spawned(client, task)
    if everything:
        lines.append(f"all of task {task!r}, newest first:")
        lines += [_line(lease, queue, params) for lease in everything[:_MOST_SHOWN]]
        if len(everything) > _MOST_SHOWN:
            lines.append(f"  and {len(everything) - _MOST_SHOWN} more")
    else:
        others = Counter(lease.task_name for lease in await client.list_leases(limit=_MOST))
        named = ", ".join(f"{name!r} ({times})" for name, times in others.most_common(_MOST_SHOWN))
        lines.append(f"nothing of that task was spawned; spawned were: {named or 'no leases'}")
    raise AssertionError("\n".join(lines))


@of_either
async def assert_not_spawned(
    client: AsyncClient,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> list[Lease]:
    """Assert that no such lease was spawned: `assert_spawned` with a count of 0."""
    return await assert_spawned(client, task, queue=queue, params=params, state=state, count=0)


@of_either
async def claim_one(
    client: AsyncClient, queue: str, *, tasks: Sequence[str] | None = None, node: NodeSpec | None = None
) -> Claim:
    """Claim what a worker would get next, as a new node that nothing else runs on.

    Args:
        node: What the node is; None: no labels and nothing counted.

    Raises: AssertionError, with what the queue's leases wait for, when nothing can be claimed.
    """
    node_id = uuid4()
    spec = node or NodeSpec(name=f"test-{node_id}", instance_id=str(node_id))
    epoch = await client.register_node(node_id, spec)
    claims = await client.claim_task([queue], node_id, epoch, tasks=tasks)
    if not claims:
        hint = await client.claim_hint([queue], node_id)
        raise AssertionError(f"nothing to claim in queue {queue!r}; waiting for: {dict(hint.reasons)}")
    return claims[0]


def _fits(found: Json, wanted: Json) -> bool:
    """Whether it is the same; an object may have more members."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and not _differences(found, wanted)
    return bool(found == wanted)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    missing = [f"no {key!r}" for key in wanted if key not in found]
    return missing + [
        f"{key!r} is {found[key]!r}" for key, value in wanted.items() if key in found and found[key] != value
    ]


def _line(lease: Lease, queue: str | None, params: Json) -> str:
    """One lease, and what about it is not as expected."""
    but = [] if queue in (None, lease.queue) else [f"in queue {lease.queue!r}"]
    if params is not None and not _fits(lease.params, params):
        both = isinstance(params, Mapping) and isinstance(lease.params, Mapping)
        but += _differences(lease.params, params) if both else ["other params"]
    shown = repr(lease.params)
    shown = shown if len(shown) <= _MOST_CHARS else f"{shown[:_MOST_CHARS]}..."
    return f"  {shown}, {lease.state.value}" + (f": {', '.join(but)}" if but else "")
