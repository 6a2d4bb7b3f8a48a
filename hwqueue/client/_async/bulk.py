"""Methods about many leases at once: those of a queue that a filter means."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, Unpack

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain
from hwqueue.client._spawn import lease_filter
from hwqueue.errors import BadArgument
from hwqueue.types.base import Json

OnProgress = Callable[[types.BulkPage], object]
BulkAction = Literal["cancel", "requeue", "update", "delete"]
_CALLS = {
    "cancel": calls.CANCEL_LEASES,
    "requeue": calls.REQUEUE_LEASES,
    "update": calls.UPDATE_LEASES,
    "delete": calls.DELETE_LEASES,
}


class AsyncBulk(AsyncPart):
    """Cancel, requeue, update and delete by filter, a page of leases at a time.

    Each page is a transaction of its own, unless the client works on your connection. A lease that
    another session holds is skipped; call again for those.
    """

    async def count_leases(
        self,
        queue: str,
        *,
        states: Collection[types.LeaseState | str] | None = None,
        page_size: int = 10_000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> int:
        """How many leases of a queue a filter means.

        Args:
            states: Only in one of these; None: in any.
            page_size: How many rows a call reads, 1 to 10,000.
            **wanted: See `hwqueue.types.LeaseFilter`.

        Raises: QueueUnknown, BadArgument.
        SQL: count_leases, again until there are no more. Safe inside your transaction: yes.
        """
        count, cursor = 0, None
        while True:
            page = await self.count_page(queue, states=states, cursor=cursor, page_size=page_size, **wanted)
            count, cursor = count + page.lease_count, page.next_cursor
            if cursor is None:
                return count

    async def count_page(
        self,
        queue: str,
        *,
        states: Collection[types.LeaseState | str] | None = None,
        cursor: dict[str, Json] | None = None,
        page_size: int = 10_000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.LeaseCount:
        """One page of `count_leases`, for callers that go on themselves, or stop.

        Args:
            cursor: `next_cursor` of the page before; None: the first page.
            states, page_size, **wanted: As for `count_leases`, the same on all pages.

        Raises: QueueUnknown, BadArgument.
        SQL: count_leases. Safe inside your transaction: yes.
        """
        return await self._row(
            calls.COUNT_LEASES,
            p_filter=lease_filter(queue, wanted),
            p_states=None if states is None else [str(state) for state in states],
            p_limit=page_size,
            p_cursor=cursor,
        )

    async def change_page(
        self,
        action: BulkAction,
        queue: str,
        *,
        changes: types.LeaseChanges | None = None,
        reason: str | None = None,
        cursor: dict[str, Json] | None = None,
        page_size: int = 1000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.BulkPage:
        """One page of a bulk call, for callers that go on themselves, or stop.

        Args:
            action: `cancel` is `cancel_leases`, and so on.
            changes: Of `update`, as for `update_leases`.
            reason: Of `cancel`, as for `cancel_leases`.
            cursor: `next_cursor` of the page before; None: the first page.
            page_size: How many rows the call reads, 1 to 10,000.
            **wanted: As for the bulk call, the same on all pages.

        Raises: QueueUnknown, BadArgument; with changes as `update_leases`.
        SQL: cancel_leases, requeue_leases, update_leases or delete_leases. Safe inside your
            transaction: yes, but the leases are not claimable until it ends.
        """
        own: dict[str, Any] = {}
        if action == "update":
            own["p_changes"] = plain(changes, "changes")
        elif changes is not None:
            raise BadArgument("only update takes changes", detail={"field": "changes"})
        if action == "cancel":
            own["p_reason"] = reason
        elif reason is not None:
            raise BadArgument("only cancel takes a reason", detail={"field": "reason"})
        return await self._row(
            _CALLS[action], p_filter=lease_filter(queue, wanted), p_limit=page_size, p_cursor=cursor, **own
        )

    async def cancel_leases(
        self,
        queue: str,
        *,
        reason: str | None = None,
        on_progress: OnProgress | None = None,
        page_size: int = 1000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.BulkResult:
        """Cancel the leases of a queue that a filter means, as `cancel_lease` does each.

        Args:
            reason: Kept with each.
            on_progress: Called after each page with what became of it.
            page_size: How many rows a call reads, 1 to 10,000.
            **wanted: See `hwqueue.types.LeaseFilter`; without a state all that wait or run.

        Raises: QueueUnknown, BadArgument.
        SQL: cancel_leases, again until there are no more. Safe inside your transaction: yes, but
            the leases are not claimable until it ends.
        """
        return await self._pages("cancel", queue, on_progress, reason=reason, page_size=page_size, **wanted)

    async def requeue_leases(
        self,
        queue: str,
        *,
        on_progress: OnProgress | None = None,
        page_size: int = 1000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.BulkResult:
        """Requeue the failed leases of a queue that a filter means, those that failed first first.

        Args:
            on_progress: Called after each page with what became of it.
            page_size: How many rows a call reads, 1 to 10,000.
            **wanted: See `hwqueue.types.LeaseFilter`; state `cancelled` instead of `failed` is
                possible.

        Raises: QueueUnknown, BadArgument.
        SQL: requeue_leases, again until there are no more. Safe inside your transaction: yes.
        """
        return await self._pages("requeue", queue, on_progress, page_size=page_size, **wanted)

    async def update_leases(
        self,
        queue: str,
        changes: types.LeaseChanges,
        *,
        on_progress: OnProgress | None = None,
        page_size: int = 1000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.BulkResult:
        """Change the waiting leases of a queue that a filter means, as `update_lease` does each.

        Args:
            changes: What to change in each, such as `{"priority": 10}`. With a `queue`, leases that
                cannot move there are skipped: their params are too large, or their key is taken.
            on_progress: Called after each page with what became of it.
            page_size: How many rows a call reads, 1 to 10,000.
            **wanted: See `hwqueue.types.LeaseFilter`; without a state scheduled and pending.

        Raises: QueueUnknown, BadArgument, PlacementInvalid, PlacementContradictory, WireInvalid.
        SQL: update_leases, again until there are no more. Safe inside your transaction: yes, but
            the leases are not claimable until it ends.
        """
        return await self._pages("update", queue, on_progress, changes=changes, page_size=page_size, **wanted)

    async def delete_leases(
        self,
        queue: str,
        *,
        on_progress: OnProgress | None = None,
        page_size: int = 1000,
        **wanted: Unpack[types.LeaseFilter],
    ) -> types.BulkResult:
        """Delete the finished leases of a queue that a filter means, before their retention ends.

        Args:
            on_progress: Called after each page with what became of it.
            page_size: How many rows a call reads, 1 to 10,000.
            **wanted: See `hwqueue.types.LeaseFilter`; without a state all that have ended.

        Raises: QueueUnknown, BadArgument.
        SQL: delete_leases, again until there are no more. Safe inside your transaction: yes.
        """
        return await self._pages("delete", queue, on_progress, page_size=page_size, **wanted)

    async def _pages(
        self, action: BulkAction, queue: str, on_progress: OnProgress | None, **arguments: Any
    ) -> types.BulkResult:
        """Change page after page until there is no next one."""
        changed, skipped, cursor = 0, list[Any](), None
        while True:
            page = await self.change_page(action, queue, cursor=cursor, **arguments)
            changed += len(page.changed)
            skipped += page.skipped
            if on_progress is not None:
                on_progress(page)
            cursor = page.next_cursor
            if cursor is None:
                return types.BulkResult(changed=changed, skipped=tuple(skipped))
