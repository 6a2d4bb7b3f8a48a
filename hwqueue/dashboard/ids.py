"""Ids in addresses of pages."""

from __future__ import annotations

from uuid import UUID

from hwqueue.errors import GangNotFound, LeaseNotFound, RunNotFound


def as_lease_id(text: str) -> UUID:
    """The id that a text is. Raises: LeaseNotFound, if it is none."""
    found = uuid_or_none(text)
    if found is None:
        raise LeaseNotFound(f"{text[:60]!r} is no lease id", hint="lease ids are UUIDs")
    return found


def as_run_id(text: str) -> UUID:
    """The id that a text is. Raises: RunNotFound, if it is none."""
    found = uuid_or_none(text)
    if found is None:
        raise RunNotFound(f"{text[:60]!r} is no run id", hint="run ids are UUIDs")
    return found


def as_gang_id(text: str) -> UUID:
    """The id that a text is. Raises: GangNotFound, if it is none."""
    found = uuid_or_none(text)
    if found is None:
        raise GangNotFound(f"{text[:60]!r} is no gang id", hint="gang ids are UUIDs")
    return found


def uuid_or_none(text: str | None) -> UUID | None:
    """The id in a text, if it is one."""
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
