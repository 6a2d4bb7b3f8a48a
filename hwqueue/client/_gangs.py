"""Members and options of a gang as the SQL functions take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hwqueue.client._arguments import check_span
from hwqueue.client._json import given, plain
from hwqueue.client._spawn import spawn_item, with_headers
from hwqueue.errors import BadArgument
from hwqueue.types import AsMember, GangOptions, LeaseSpec


def gang_options(options: GangOptions, headers: Mapping[str, str]) -> dict[str, Any]:
    """The JSON form of the options of a gang, with the headers of its trace.

    Raises: BadArgument, for a span that is a plain number.
    """
    for name in ("hold", "claim_timeout", "max_run"):
        check_span(options.get(name), f"options.{name}")
    found: dict[str, Any] = plain(given(with_headers(options, headers)), "options")
    return found


def gang_members(
    members: Iterable[AsMember | LeaseSpec | Mapping[str, Any]],
    options: Mapping[str, Any],
    headers: Mapping[str, str],
) -> list[Any]:
    """The members of a gang that has these options, as JSON. Raises: BadArgument."""
    return [_member(member, f"members[{index}]", options, headers) for index, member in enumerate(members)]


def _member(
    member: AsMember | LeaseSpec | Mapping[str, Any],
    field: str,
    options: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Any:
    if not isinstance(member, LeaseSpec | Mapping) and hasattr(member, "as_member"):
        try:
            member = member.as_member(given(options).keys())
        except BadArgument as error:
            detail = {**error.detail, "field": _within(field, error.field)}
            raise BadArgument(f"{field}: {error}", detail=detail, hint=error.hint) from None
    own = member.options if isinstance(member, LeaseSpec) else _options_of(member)
    # headers of its own replace those of the gang, which have the trace
    traced = headers if isinstance(own, Mapping) and own.get("headers") else None
    return spawn_item(member, field, traced)  # type: ignore[arg-type]


def _options_of(member: Any) -> Any:
    return member.get("options") if isinstance(member, Mapping) else None


def _within(field: str, inner: str | None) -> str:
    return f"{field}.{inner}" if inner else field
