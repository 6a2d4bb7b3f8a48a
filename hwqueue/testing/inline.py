"""Spawns that run at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction
from typing import Any
from unittest.mock import patch

from hwqueue.app import App
from hwqueue.client import AsyncClient, Client
from hwqueue.testing.bench import Bench
from hwqueue.testing.either import of_either
from hwqueue.testing.runs import raise_for
from hwqueue.types import Claim, SpawnedMember, SpawnResult

_SPAWNS = ("spawn_lease", "spawn_leases", "spawn_gang")
_Spawned = SpawnResult | Sequence[SpawnResult] | Sequence[SpawnedMember]


@contextmanager
def inline(app: App, *, raises: bool = True) -> Iterator[None]:
    """Run every lease of the app's tasks as soon as it is spawned, within the spawn.

    A gang runs as a whole, its members one after the other.

    It is a real lease: it is spawned, claimed by a made-up node that may run it, and settled, so
    what a spawn refuses is refused, and `get_lease` finds its result. One attempt is made; delays
    are not waited for. The spawn returns what it always returns. Clients of all threads do so
    until the block ends.

    Args:
        raises: Whether what the handler raises comes out of the spawn, once the attempt has failed
            in the database; else it is found there only.

    Raises: AssertionError, from the spawn: no made-up node may run the lease.
    """
    with ExitStack() as patches:
        for client in (Client, AsyncClient):
            for name in _SPAWNS:
                around = _around(getattr(client, name), app, raises)
                patches.enter_context(patch.object(client, name, around))
        yield


def _around(spawn: Callable[..., Any], app: App, raises: bool) -> Callable[..., Any]:
    @functools.wraps(spawn)
    def spawn_and_run(client: Client, *args: Any, **kwargs: Any) -> Any:
        spawned = spawn(client, *args, **kwargs)
        _run(client, app, spawned, raises)
        return spawned

    @functools.wraps(spawn)
    async def aspawn_and_run(client: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        spawned = await spawn(client, *args, **kwargs)
        await _run(client, app, spawned, raises)
        return spawned

    return aspawn_and_run if iscoroutinefunction(spawn) else spawn_and_run


@of_either
async def _run(client: AsyncClient, app: App, spawned: _Spawned, raises: bool) -> None:
    """Run what was spawned just now, as far as it is of the app's tasks."""
    every = [spawned] if isinstance(spawned, SpawnResult) else spawned
    gang = [one.lease_id for one in every if isinstance(one, SpawnedMember)]
    # an idempotency key may have spawned the others before
    alone = [[one.lease_id] for one in every if isinstance(one, SpawnResult) and one.created]
    for leases in [gang] if gang else alone:
        tasks = [(await client.get_lease(lease)).task_name for lease in leases]
        if app.tasks.keys().isdisjoint(tasks):
            continue
        async with Bench(client, app) as bench:
            claim: Claim | None = await bench.claim_lease(leases[0])
            while claim is not None:
                run = await bench.run(claim)
                if raises:
                    raise_for(run)
                claim = bench.next_of_gang()
