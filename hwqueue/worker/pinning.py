"""Keeping a handler to the CPUs that were set aside for its lease."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from hwqueue.types import Claim


def pin(claim: Claim) -> None:
    """Let the calling thread, and what it starts, run on the CPUs of the claim alone.

    Nothing changes where the claim has none of its own, or the system cannot pin.

    Raises:
        OSError: This process may use none of these CPUs any more.
    """
    if cpus := _cpus_of(claim):
        os.sched_setaffinity(0, cpus)  # 0: this thread, not the whole process


@contextmanager
def pinned(claim: Claim) -> Iterator[None]:
    """The same for as long as it lasts; threads that are started meanwhile stay pinned."""
    if not _cpus_of(claim):
        yield
        return
    before = os.sched_getaffinity(0)
    pin(claim)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cpus_of(claim: Claim) -> Collection[int]:
    if claim.assignment is None or not hasattr(os, "sched_setaffinity"):
        return ()
    return claim.assignment.cpus or ()
