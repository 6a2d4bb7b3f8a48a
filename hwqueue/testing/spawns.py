"""What was spawned: looked up, asserted, claimed."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, overload

from hwqueue.app import Task
from hwqueue.client import AsyncClient, Client
from hwqueue.testing._async import spawned as _async
from hwqueue.testing._sync import spawned as _sync
from hwqueue.types import Claim, Json, Lease, LeaseState, NodeSpec

State = LeaseState | str | None


@overload
def spawned(
    client: AsyncClient,
    task: Task[..., Any] | str | None = None,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> Coroutine[Any, Any, list[Lease]]: ...


@overload
def spawned(
    client: Client,
    task: Task[..., Any] | str | None = None,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> list[Lease]: ...


def spawned(
    client: AsyncClient | Client,
    task: Task[..., Any] | str | None = None,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> Coroutine[Any, Any, list[Lease]] | list[Lease]:
    """The leases that were spawned, newest first, whatever has become of them; at most 1,000.

    Args:
        task: A task or its name; None: any.
        queue: None: any.
        params: Only those with these params. An object may have more members than this one.
        state: Only those that are in this state now.
    """
    name = task.name if isinstance(task, Task) else task
    if isinstance(client, AsyncClient):
        return _async.spawned(client, name, queue=queue, params=params, state=state)
    return _sync.spawned(client, name, queue=queue, params=params, state=state)


@overload
def assert_spawned(
    client: AsyncClient,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
    count: int = 1,
) -> Coroutine[Any, Any, list[Lease]]: ...


@overload
def assert_spawned(
    client: Client,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
    count: int = 1,
) -> list[Lease]: ...


def assert_spawned(
    client: AsyncClient | Client,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
    count: int = 1,
) -> Coroutine[Any, Any, list[Lease]] | list[Lease]:
    """Assert how many such leases were spawned, and return them, newest first.

    Args:
        task, queue, params, state: Which, as for `spawned`.
        count: Exactly this many.

    Raises: AssertionError, which says what was spawned instead.
    """
    name = task.name if isinstance(task, Task) else task
    if isinstance(client, AsyncClient):
        return _async.assert_spawned(client, name, queue=queue, params=params, state=state, count=count)
    return _sync.assert_spawned(client, name, queue=queue, params=params, state=state, count=count)


@overload
def assert_not_spawned(
    client: AsyncClient,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> Coroutine[Any, Any, list[Lease]]: ...


@overload
def assert_not_spawned(
    client: Client,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> list[Lease]: ...


def assert_not_spawned(
    client: AsyncClient | Client,
    task: Task[..., Any] | str,
    *,
    queue: str | None = None,
    params: Json = None,
    state: State = None,
) -> Coroutine[Any, Any, list[Lease]] | list[Lease]:
    """Assert that no such lease was spawned: `assert_spawned` with a count of 0."""
    return assert_spawned(client, task, queue=queue, params=params, state=state, count=0)


@overload
def claim_one(
    client: AsyncClient,
    queue: str,
    *,
    tasks: Sequence[str] | None = None,
    node: NodeSpec | None = None,
) -> Coroutine[Any, Any, Claim]: ...


@overload
def claim_one(
    client: Client,
    queue: str,
    *,
    tasks: Sequence[str] | None = None,
    node: NodeSpec | None = None,
) -> Claim: ...


def claim_one(
    client: AsyncClient | Client,
    queue: str,
    *,
    tasks: Sequence[str] | None = None,
    node: NodeSpec | None = None,
) -> Coroutine[Any, Any, Claim] | Claim:
    """Claim what a worker would get next, as a new node that nothing else runs on.

    Args:
        node: What the node is; None: no labels and nothing counted.

    Raises: AssertionError, with what the queue's leases wait for, when nothing can be claimed.
    """
    if isinstance(client, AsyncClient):
        return _async.claim_one(client, queue, tasks=tasks, node=node)
    return _sync.claim_one(client, queue, tasks=tasks, node=node)
