"""Methods about gangs: leases that start together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

from hwqueue import calls, tracing, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._spawn import gang_members, gang_options


class AsyncGangs(AsyncPart):
    """Spawn gangs, look at them and cancel them."""

    async def spawn_gang(
        self,
        queue: str,
        members: Iterable[types.AsMember | types.LeaseSpec | Mapping[str, Any]],
        **options: Unpack[types.GangOptions],
    ) -> list[types.SpawnedMember]:
        """Spawn a gang: none of its leases is claimed before there is room for all of them.

        The handlers begin once every member is claimed. `context.gang` has the others. With
        `min_size` that many start together, and the others join them when there is room.

        Args:
            members: 2 to 1,000 leases in all: `hwqueue.Member`s, `LeaseSpec`s, or mappings of
                `task`, `params`, `options`, `count`. They have options of `SpawnOptions`, but for
                keys, times and `patience`.
            **options: See `hwqueue.types.GangOptions`.

        Returns: The members by rank; each has the id of the gang.
        Raises: QueueUnknown, BadArgument, PlacementInvalid, PlacementContradictory, WireInvalid,
            GangExists, LeaseExists, OtherTenant.
        SQL: spawn_gang. Safe inside your transaction: yes, waits for nobody.
        """
        with tracing.spawning(queue, None) as headers:
            return await self._rows(
                calls.SPAWN_GANG,
                p_queue=queue,
                p_members=gang_members(members, options, headers),
                p_options=gang_options(options, headers),
            )

    async def get_gang(self, gang_id: UUID | str) -> types.Gang:
        """A gang, its members and where they are.

        Raises: GangNotFound.
        SQL: get_gang. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_GANG, p_gang=gang_id)

    async def list_gangs(
        self,
        *,
        state: types.GangState | None = None,
        limit: int = 50,
        before: datetime | None = None,
        before_gang: UUID | str | None = None,
    ) -> list[types.GangSummary]:
        """Gangs, newest first.

        Args:
            state: Only these; None: any.
            limit: Most to return, 1 to 1000.
            before: Only gangs that were spawned before: `created_at` of the last of a page.
            before_gang: And `gang_id` of it, or the page after lacks those of the same transaction.

        Raises: BadArgument.
        SQL: list_gangs. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.LIST_GANGS, p_state=state, p_limit=limit, p_before=before, p_before_gang=before_gang
        )

    async def explain_gang(self, gang_id: UUID | str) -> types.GangExplanation:
        """Why a gang is where it is; of one that waits, where it lacks room, and the ways out.

        Raises: GangNotFound.
        SQL: explain_gang. Safe inside your transaction: yes.
        """
        return await self._row(calls.EXPLAIN_GANG, p_gang=gang_id)

    async def what_if_gang(
        self,
        queue: str,
        members: Iterable[types.AsMember | types.LeaseSpec | Mapping[str, Any]],
        **options: Unpack[types.GangOptions],
    ) -> types.GangForecast:
        """Whether a gang would start now if it were spawned, and if not, why; nothing is written.

        Args:
            members: As of `spawn_gang`.
            **options: As of `spawn_gang`. Those that decide neither where nor whether members run
                are not read.

        Raises: QueueUnknown, BadArgument, PlacementInvalid, PlacementContradictory, WireInvalid,
            OtherTenant.
        SQL: what_if_gang. Safe inside your transaction: yes.
        """
        return await self._row(
            calls.WHAT_IF_GANG,
            p_queue=queue,
            p_members=gang_members(members, options, {}),
            p_options=gang_options(options, {}),
        )

    async def cancel_gang(self, gang_id: UUID | str, *, reason: str | None = None) -> types.GangState:
        """Cancel a gang: within about a second what waits ends, and what runs is asked to stop.

        Returns: `cancelling`, or how it has ended.
        Raises: GangNotFound, BadArgument, IsolationLevel.
        SQL: cancel_gang. Safe inside your transaction: yes.
        """
        return await self._value(calls.CANCEL_GANG, p_gang=gang_id, p_reason=reason)

    async def gang_status(self, lease_id: UUID | str, claim_token: int) -> types.GangStatus:
        """Whether all members of a claimed lease's gang are there; workers ask before it starts.

        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            GangNotFound: the lease is of no gang.
        SQL: gang_status. Safe inside your transaction: yes.
        """
        return await self._row(calls.GANG_STATUS, p_lease=lease_id, p_token=claim_token)
