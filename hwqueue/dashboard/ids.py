"""Ids in addresses of pages."""

from __future__ import annotations

from uuid import UUID

from hwqueue.errors import BadArgument, GangNotFound, LeaseNotFound, RunNotFound

_UNKNOWN = {"lease": LeaseNotFound, "run": RunNotFound, "gang": GangNotFound}


def as_id(what: str, text: str) -> UUID:
    """The id that a text is. Raises: LeaseNotFound, RunNotFound or GangNotFound, if it is none."""
    found = uuid_or_none(text)
    if found is None:
        raise _UNKNOWN[what](f"{text[:60]!r} is no {what} id", hint=f"{what} ids are UUIDs")
    return found


def uuid_or_none(text: str | None) -> UUID | None:
    """The id in a text, if it is one."""
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def class_number(text: str) -> int:
    """The id of a placement class. Raises: BadArgument."""
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise BadArgument(f"{text[:30]!r} is no placement class", hint="see the list of classes")
    return int(text)
