"""Methods about limits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain


class AsyncLimits(AsyncPart):
    """Bound how many leases run at once or start in a time, and let keys take turns."""

    async def create_limit(self, name: str, spec: Mapping[str, Any]) -> bool:
        """Create a limit; one that is there with the same specification stays. For admins.

        Args:
            spec: One of `slots`, how many run at once; `rate`, `{"count": 600, "per": 60}`, in
                seconds or a timedelta, with `burst`, how many start at once after a pause; and
                `fair`, True, with `weights` by key. `by`: `key`, that leases name, or `tenant`:
                each has a lane of its own.

        Returns: Whether it is new.
        Raises: LimitExists, LimitInvalid, BadArgument.
        SQL: create_limit. Safe inside your transaction: yes.
        """
        return await self._value(calls.CREATE_LIMIT, p_name=name, p_spec=_in_seconds(spec, "spec"))

    async def set_limit(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change keys of a specification; None resets one. For admins.

        Of `weights` those that are given change. What kind it is and `by` stay as they are. Fewer
        slots stop nothing that runs.

        Returns: The whole specification.
        Raises: LimitUnknown, LimitInvalid, BadArgument.
        SQL: set_limit. Safe inside your transaction: yes.
        """
        return await self._value(calls.SET_LIMIT, p_name=name, p_changes=_in_seconds(changes, "changes"))

    async def drop_limit(self, name: str) -> bool:
        """Drop a limit; what waits for it goes on without. For admins.

        Returns: Whether it was there.
        Raises: LimitInvalid, while the policy of a queue names it.
        SQL: drop_limit. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_LIMIT, p_name=name)

    async def list_limits(self) -> list[types.Limit]:
        """The limits by name, and how much of each is in use.

        SQL: list_limits. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_LIMITS)

    async def limit_lanes(
        self, name: str, *, order: Literal["parked", "wait"] = "parked", limit: int = 100
    ) -> list[types.LimitLane]:
        """The lanes of a limit in which most leases wait.

        Args:
            order: `wait`: those first whose first lease was parked first.
            limit: 1 to 10,000.

        Raises: LimitUnknown, BadArgument.
        SQL: limit_lanes. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIMIT_LANES, p_name=name, p_order=order, p_limit=limit)

    async def throttle_limit(
        self,
        name: str,
        key: str | None = None,
        *,
        until: datetime | None = None,
        retry_after: timedelta | None = None,
        tenant: str | None = None,
        lease_id: UUID | str | None = None,
    ) -> datetime | None:
        """Let nothing pass a lane for a while, as when a service answers 429. For workers, too.

        What has passed may still start. It is closed no shorter than it was; with neither a time
        nor a span it is opened.

        Args:
            key, tenant: Which lane, of a limit by key or by tenant.
            until, retry_after: For how long; the earlier one.
            lease_id: The lane that this lease has of the limit, instead of a key.

        Returns: Until when it is closed.
        Raises: LimitUnknown, LimitInvalid, LeaseNotFound, BadArgument.
        SQL: throttle_limit. Safe inside your transaction: yes, but others wait for its lane.
        """
        return await self._value(
            calls.THROTTLE_LIMIT,
            p_name=name,
            p_key=key,
            p_until=until,
            p_retry_after=retry_after,
            p_tenant=tenant,
            p_lease=lease_id,
        )


def _in_seconds(spec: Mapping[str, Any], field: str) -> Any:
    """The specification, or a part of it, as JSON. Raises: BadArgument."""
    rate = spec.get("rate") if isinstance(spec, Mapping) else None
    if isinstance(rate, Mapping) and isinstance(per := rate.get("per"), timedelta):
        spec = {**spec, "rate": {**rate, "per": per.total_seconds()}}
    return plain(spec, field)
