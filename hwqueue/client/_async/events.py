"""Methods about events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import given, plain


class AsyncEvents(AsyncPart):
    """Look at what happened, and follow it."""

    async def list_events(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        code: str | Sequence[str] | None = None,
        queue: str | None = None,
        node_id: UUID | str | None = None,
        lease_id: UUID | str | None = None,
        class_id: int | None = None,
        actor: str | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        final: bool = False,
        limit: int = 100,
    ) -> list[types.Event]:
        """The newest events first, or with `after` those that follow it, oldest first.

        To follow, begin with `final=True`, which leaves out what an open transaction may still come
        before, and go on with the highest `event_id` seen as `after` (0 if there was none): nothing
        is missed and nothing comes twice.

        Args:
            after: An event's id.
            before: An event's id: for the next page of the newest first.
            code: One or several.
            since, until: Times; a timedelta below zero is how long ago, by the database's clock.
            limit: 1 to 10,000.

        Raises: BadArgument.
        SQL: list_events. Safe inside your transaction: yes.
        """
        wanted = given(
            {
                "code": code if code is None or isinstance(code, str) else list(code),
                "queue": queue,
                "node": node_id,
                "lease": lease_id,
                "class": class_id,
                "actor": actor,
                "since": since,
                "until": until,
                "before": before,
                "final": final or None,
            }
        )
        return await self._rows(
            calls.LIST_EVENTS, p_after=after, p_filter=plain(wanted, "filter"), p_limit=limit
        )

    async def set_event_retention(self, days: int) -> int:
        """Set for how many whole days events are kept, 1 to 14; returns what it was.

        For admins. Older events go when somebody next prunes.

        Raises: BadArgument.
        SQL: set_event_retention. Safe inside your transaction: yes.
        """
        return await self._value(calls.SET_EVENT_RETENTION, p_days=days)
