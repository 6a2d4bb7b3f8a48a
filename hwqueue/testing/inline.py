"""Spawns that run at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hwqueue.app import App
from hwqueue.client import AsyncClient, Client
from hwqueue.testing._async.drain import run_gang as arun_gang
from hwqueue.testing._async.drain import run_lease as arun_lease
from hwqueue.testing._sync.drain import run_gang, run_lease
from hwqueue.types import SpawnedMember, SpawnResult

_SPAWNS = ("spawn_lease", "spawn_leases", "spawn_gang")


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
    undo: list[Callable[[], None]] = []
    for client, around in ((Client, _around), (AsyncClient, _aaround)):
        for name in _SPAWNS:
            original = getattr(client, name)
            undo.append(functools.partial(_restore, client, name, client.__dict__.get(name)))
            setattr(client, name, around(original, app, raises))
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _restore(client: type, name: str, before: Any) -> None:
    """Put back what the class had itself; None: it inherits it."""
    if before is None:
        delattr(client, name)
    else:
        setattr(client, name, before)


def _around(spawn: Callable[..., Any], app: App, raises: bool) -> Callable[..., Any]:
    @functools.wraps(spawn)
    def spawn_and_run(client: Client, *args: Any, **kwargs: Any) -> Any:
        spawned = spawn(client, *args, **kwargs)
        if members := _members(spawned):
            run_gang(client, app, members, raises=raises)
            return spawned
        for one in _created(spawned):
            run_lease(client, app, one.lease_id, raises=raises)
        return spawned

    return spawn_and_run


def _aaround(spawn: Callable[..., Any], app: App, raises: bool) -> Callable[..., Any]:
    @functools.wraps(spawn)
    async def spawn_and_run(client: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        spawned = await spawn(client, *args, **kwargs)
        if members := _members(spawned):
            await arun_gang(client, app, members, raises=raises)
            return spawned
        for one in _created(spawned):
            await arun_lease(client, app, one.lease_id, raises=raises)
        return spawned

    return spawn_and_run


def _members(spawned: SpawnResult | Sequence[SpawnResult | SpawnedMember]) -> list[SpawnedMember]:
    """Of a gang that was spawned."""
    every = [] if isinstance(spawned, SpawnResult) else spawned
    return [one for one in every if isinstance(one, SpawnedMember)]


def _created(spawned: SpawnResult | Sequence[SpawnResult]) -> list[SpawnResult]:
    """Those that an idempotency key had not spawned before."""
    every = [spawned] if isinstance(spawned, SpawnResult) else spawned
    return [one for one in every if one.created]
