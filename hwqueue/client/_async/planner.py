"""Methods that a planner calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import given, plain


class AsyncPlanning(AsyncPart):
    """Read what waits and what is free, price room, propose places. For planners."""

    async def lead_planner(self, holder: str, *, ttl: timedelta = timedelta(seconds=10)) -> int | None:
        """Lead the planning, or go on leading.

        Args:
            holder: A name of the process' own.
            ttl: When another process may lead, unless this is called again; 0 to 1 hour, 0: at
                once.

        Returns: The epoch to call `set_prices` with; None while another holder leads.
        Raises: BadArgument, IsolationLevel.
        SQL: lead_planner. Safe inside your transaction: no, others cannot lead until it ends.
        """
        return await self._value(calls.LEAD_PLANNER, p_holder=holder, p_ttl=ttl)

    async def planner_view(
        self,
        part: Literal["queues", "classes", "nodes", "gangs", "matches"],
        queue: str | None = None,
        *,
        after: str | None = None,
        limit: int = 1000,
        most: int = 10_000,
    ) -> list[types.PlannerRow]:
        """A page of what a planner reads; docs/reference/sql.md has the keys of the items.

        Args:
            part: `classes` and `matches` want a queue, the others none.
            after: What the last row of the page before says in `next`.
            limit: Queues, classes, nodes or gangs to look at, 1 to 10,000.
            most: Leases of a class to count; of `matches`, leases of a queue that is short.

        Raises: QueueUnknown, BadArgument.
        SQL: planner_view. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.PLANNER_VIEW, p_part=part, p_queue=queue, p_after=after, p_limit=limit, p_most=most
        )

    async def set_prices(
        self, queue: str, device_worth: Sequence[float], *, ttl: timedelta, round: int, epoch: int
    ) -> str:
        """Set what room on a device is worth to a queue.

        Args:
            device_worth: What a device with 0, 10, 20, ... 1000 thousandths left is worth, in
                devices: 101 numbers from 0 to 1 that never fall.
            ttl: How long claims use it, 0 to 1 hour.
            round: Grows with each round.
            epoch: As `lead_planner` returned it.

        Returns: `set`; `deposed`, `old_round` or `busy` where nothing was changed.
        Raises: QueueUnknown, BadArgument, IsolationLevel.
        SQL: set_prices. Safe inside your transaction: no, others cannot lead until it ends.
        """
        return await self._value(
            calls.SET_PRICES,
            p_queue=queue,
            p_prices=plain({"device_worth": list(device_worth)}, "prices"),
            p_ttl=ttl,
            p_round=round,
            p_epoch=epoch,
        )

    async def planner_rooms(self, gangs: Sequence[UUID]) -> list[types.PlaceRoom]:
        """Where gangs have room, by place and by how much.

        Args:
            gangs: 1 to 1,000 that wait; those that are together in another way than the first, or
                alike in another one, are left out.

        Raises: BadArgument.
        SQL: planner_rooms. Safe inside your transaction: yes.
        """
        return await self._rows(calls.PLANNER_ROOMS, p_gangs=list(gangs))

    async def reserve_gang(self, gang: UUID, place: str, *, round: int, epoch: int) -> str:
        """Reserve room for a gang that waits, beginning with a place.

        Args:
            place: As `planner_rooms` returned it.
            round: Grows with each round.
            epoch: As `lead_planner` returned it.

        Returns: `reserved`; `no_room`, `blocked`, `not_waiting`, `busy`, `deposed` or `old_round`
            where nothing was changed.
        Raises: BadArgument, IsolationLevel.
        SQL: reserve_gang. Safe inside your transaction: no, others cannot lead until it ends.
        """
        return await self._value(calls.RESERVE_GANG, p_gang=gang, p_place=place, p_round=round, p_epoch=epoch)

    async def reserve_leases(
        self, places: Mapping[UUID, UUID], *, hold: timedelta, round: int, epoch: int
    ) -> list[types.LeasePlace]:
        """Reserve pending leases on nodes, which fetch them with their next claims.

        Args:
            places: The node of each lease, 1 to 64.
            hold: How long a node has for it, 100 ms to 1 minute; then the lease is back where it
                was in line.
            round: Grows with each round.
            epoch: As `lead_planner` returned it.

        Raises: BadArgument, IsolationLevel.
        SQL: reserve_leases. Safe inside your transaction: no, others cannot lead until it ends.
        """
        return await self._rows(
            calls.RESERVE_LEASES,
            p_places=plain(_places(places), "places"),
            p_hold=hold,
            p_round=round,
            p_epoch=epoch,
        )

    async def assigned_leases(self, places: Mapping[UUID, UUID]) -> list[types.LeasePlace]:
        """What has become of leases that were reserved on nodes.

        Args:
            places: The node of each lease, 1 to 1,000.

        Raises: BadArgument.
        SQL: assigned_leases. Safe inside your transaction: yes.
        """
        return await self._rows(calls.ASSIGNED_LEASES, p_places=plain(_places(places), "places"))

    async def note_room(
        self,
        *,
        gpus: float,
        allocated: float,
        bound: float,
        ttl: timedelta,
        round: int,
        epoch: int,
        leases: Mapping[str, int] | None = None,
        seconds: Mapping[str, float] | None = None,
        resting: int | None = None,
    ) -> str:
        """Note how many GPUs there are, how many are in use, and how many could be.

        Args:
            ttl: How long `planner_status` and metrics show it, 0 to 1 hour.
            round: Grows with each round.
            epoch: As `lead_planner` returned it.
            leases: What became of how many single leases since this was said last; it is added up.
            seconds: How long the parts of the round took.
            resting: How many nodes get no leases, because they have not fetched some.

        Returns: `noted`; `deposed`, `old_round` or `busy` where nothing was changed.
        Raises: BadArgument, IsolationLevel.
        SQL: note_room. Safe inside your transaction: no, others cannot lead until it ends.
        """
        found = {
            "gpus": gpus,
            "allocated": allocated,
            "bound": bound,
            "leases": leases,
            "seconds": seconds,
            "resting": resting,
        }
        return await self._value(
            calls.NOTE_ROOM, p_room=plain(given(found), "room"), p_ttl=ttl, p_round=round, p_epoch=epoch
        )

    async def planner_status(self) -> types.PlannerStatus | None:
        """What the planner that leads has found; None: none does, and no prices are valid.

        SQL: planner_status. Safe inside your transaction: yes.
        """
        rows = await self._rows(calls.PLANNER_STATUS)
        return rows[0] if rows else None


def _places(places: Mapping[UUID, UUID]) -> list[dict[str, str]]:
    return [{"lease": str(lease), "node": str(node)} for lease, node in places.items()]
