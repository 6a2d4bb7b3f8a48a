"""Methods about claims: take work, keep it, settle it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._arguments import claim_keys
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain
from hwqueue.client._settle import Batch
from hwqueue.client._spawn import spawn_options


class AsyncClaims(AsyncPart):
    """Claim leases for a node and settle them.

    Let these calls end. One that is cut off (a lost connection, Ctrl-C) may have granted claims:
    nobody hears of them, and they come back after their claim timeout. Cancelling a task does not
    cut its call off: `CancelledError` comes once the statement has ended.
    """

    async def claim_task(
        self,
        queues: Sequence[str],
        node_id: UUID | str,
        node_epoch: int,
        *,
        qty: int = 1,
        tasks: Sequence[str] | None = None,
        claim_timeout: timedelta | None = None,
    ) -> list[types.Claim]:
        """Claim up to `qty` leases that the node may run, best first; nothing to claim is `[]`.

        Args:
            tasks: Only these; None: any.
            claim_timeout: The claims end after it unless heartbeated; None: the lease's, else the
                queue's.

        Raises: NodeUnknown, NodeSuperseded, NodeNotYours, QueueUnknown, BadArgument,
            IsolationLevel.
        SQL: claim_task. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._rows(
            calls.CLAIM_TASK,
            p_queues=queues,
            p_node=node_id,
            p_epoch=node_epoch,
            p_qty=qty,
            p_tasks=tasks,
            p_claim_timeout=claim_timeout,
        )

    async def settle_and_claim(
        self,
        node_id: UUID | str,
        node_epoch: int,
        settle: Iterable[types.Settlement | Mapping[str, Any]],
        queues: Sequence[str],
        *,
        qty: int = 1,
        tasks: Sequence[str] | None = None,
        claim_timeout: timedelta | None = None,
    ) -> types.SettledAndClaimed:
        """Settle a batch of claims and claim the next, in one round trip and one commit.

        A settlement that cannot be done gets its own verdict; it undoes neither the others nor the
        claim.

        Args:
            settle: `Settlement`s, or mappings in their JSON form.
            qty: 0 to settle only.

        Raises: NodeUnknown, NodeSuperseded, NodeNotYours, QueueUnknown, BadArgument,
            IsolationLevel.
        SQL: settle_and_claim. Safe inside your transaction: no, it locks the node until the end.
        """
        batch = Batch.of(settle)
        rows = await self._call(
            calls.SETTLE_AND_CLAIM,
            p_node=node_id,
            p_epoch=node_epoch,
            p_settle=batch.items,
            p_queues=queues,
            p_qty=qty,
            p_tasks=tasks,
            p_claim_timeout=claim_timeout,
            p_completed=batch.completed,
            p_completed_tokens=batch.tokens,
        )
        return batch.answer(rows)

    async def complete_lease(
        self, lease_id: UUID | str, claim_token: int, *, result: types.Json = None
    ) -> types.LeaseState:
        """The work is done.

        Args:
            result: JSON, kept with the lease.

        Returns: `completed`.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            BadArgument, IsolationLevel.
        SQL: complete_lease. Safe inside your transaction: yes: then the lease completes if and
            only if your work commits. It locks the node until the end.
        """
        return await self._value(calls.COMPLETE_LEASE, p_lease=lease_id, p_token=claim_token, p_result=result)

    async def complete_leases(self, claims: Iterable[tuple[UUID | str, int]]) -> list[types.Settled]:
        """The work of many claims is done, none with a result: one call, one commit.

        One that cannot be completed undoes none of the others.

        Args:
            claims: Each claim's `lease_id` and `claim_token`; at most 1,000.

        Returns: What could not be completed, in the order of `claims` (`ordinal` counts from 1),
            and why; `[]`: all is done. A lease that does not exist is `lost`.
        Raises: BadArgument, IsolationLevel.
        SQL: complete_leases. Safe inside your transaction: yes, like `complete_lease`; it locks the
            nodes of the claims until the end.
        """
        lease_ids, tokens = claim_keys(claims)
        return await self._rows(calls.COMPLETE_LEASES, p_lease_ids=lease_ids, p_tokens=tokens)

    async def fail_lease(
        self,
        lease_id: UUID | str,
        claim_token: int,
        *,
        error: Mapping[str, Any],
        retry: bool = True,
        retry_at: datetime | None = None,
    ) -> types.LeaseState:
        """The attempt failed.

        Args:
            error: A JSON object such as `{"message": ...}`, kept with the attempt.
            retry: False: the lease is dead at once.
            retry_at: When to try again; None: as its retry policy says.

        Returns: `pending`, `scheduled`, `failed`, or `cancelled` if a cancel was under way.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            BadArgument, IsolationLevel.
        SQL: fail_lease. Safe inside your transaction: yes, it locks the node until the end.
        """
        return await self._value(
            calls.FAIL_LEASE,
            p_lease=lease_id,
            p_token=claim_token,
            p_error=error,
            p_retry=retry,
            p_retry_at=retry_at,
        )

    async def release_lease(
        self, lease_id: UUID | str, claim_token: int, *, delay: timedelta | None = None
    ) -> types.LeaseState:
        """Hand the lease back; no attempt is used up.

        Args:
            delay: Not claimable before; None: at once.

        Returns: `pending`, `scheduled`, or `cancelled` if a cancel was under way.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            IsolationLevel.
        SQL: release_lease. Safe inside your transaction: yes, it locks the node until the end.
        """
        return await self._value(calls.RELEASE_LEASE, p_lease=lease_id, p_token=claim_token, p_delay=delay)

    async def extend_claim(self, lease_id: UUID | str, claim_token: int, *, extend: timedelta) -> datetime:
        """Move the end of a claim to `extend` from now.

        Returns: The new end.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            BadArgument.
        SQL: extend_claim. Safe inside your transaction: no, the node's heartbeat waits for it.
        """
        return await self._value(calls.EXTEND_CLAIM, p_lease=lease_id, p_token=claim_token, p_extend=extend)

    async def report_progress(self, reports: Sequence[Mapping[str, Any]]) -> int:
        """Record how far claims have come; the last report stays with the attempt.

        Args:
            reports: At most 1000 mappings of `lease_id`, `claim_token` and, as far as known,
                `fraction` (0 to 1), `done` and `total` (counts) and `message` (200 characters).

        Returns: How many were recorded; not those of claims that have ended or are another login's.
        Raises: BadArgument, IsolationLevel.
        SQL: report_progress. Safe inside your transaction: yes, but prune leaves out the leases
            until it ends.
        """
        items = [
            {name: str(value) if isinstance(value, UUID) else value for name, value in one.items()}
            for one in reports
        ]
        return await self._value(calls.REPORT_PROGRESS, p_reports=plain(items, "reports"))

    async def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> int:
        """Keep what claims log, the last 1000 lines of each.

        Args:
            logs: At most 1000 mappings of `lease_id`, `claim_token` and `lines`: at most 1000
                mappings of `line` (its number in the claim, from 1), `at` (a time, as text),
                `level` (`debug`, `info`, `warning`, `error`), `message` and `fields` (4096 bytes
                each).

        Returns: How many lines were added; not those of claims that have ended or are another
            login's, nor those that are there already.
        Raises: BadArgument, IsolationLevel.
        SQL: append_logs. Safe inside your transaction: yes, but prune leaves out the leases
            until it ends.
        """
        items = [{**one, "lease_id": str(one["lease_id"])} if "lease_id" in one else one for one in logs]
        return await self._value(calls.APPEND_LOGS, p_logs=items)

    async def heartbeat_node(
        self,
        node_id: UUID | str,
        node_epoch: int,
        *,
        claims: Iterable[tuple[UUID | str, int]] = (),
        extend: timedelta | None = None,
    ) -> list[types.Heartbeat]:
        """Say that the node lives, and keep its claims.

        Args:
            claims: (lease_id, claim_token) of every claim to keep.
            extend: From now; None: each claim's own timeout.

        Raises: NodeUnknown, NodeSuperseded, NodeNotYours, BadArgument, IsolationLevel.
        SQL: heartbeat_node. Safe inside your transaction: no.
        """
        items = [{"lease_id": str(lease_id), "claim_token": token} for lease_id, token in claims]
        return await self._rows(
            calls.HEARTBEAT_NODE, p_node=node_id, p_epoch=node_epoch, p_claims=items, p_extend=extend
        )

    async def claim_hint(self, queues: Sequence[str], node_id: UUID | str) -> types.ClaimHint:
        """After an empty claim: when to ask again, and what the node's queues wait for.

        Raises: NodeUnknown, NodeNotYours, QueueUnknown.
        SQL: claim_hint. Safe inside your transaction: yes.
        """
        return await self._row(calls.CLAIM_HINT, p_queues=queues, p_node=node_id)

    async def lease_outlook(
        self, node_id: UUID | str, lease_ids: Iterable[UUID | str]
    ) -> list[types.LeaseOutlook]:
        """What may become of leases that a node runs, or ran last; of others there is no row.

        Args:
            lease_ids: At most 1,000.

        Raises: BadArgument.
        SQL: lease_outlook. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.LEASE_OUTLOOK, p_node=node_id, p_lease_ids=[str(lease_id) for lease_id in lease_ids]
        )

    async def take_deaths(self, node_id: UUID | str, epoch: int, *, limit: int = 100) -> list[types.Death]:
        """Take leases that died without a handler, of what the node announced with `hears_deaths`.

        Each is given once, to one node, within an hour.

        Args:
            limit: At most 1,000.

        Raises: NodeUnknown, NodeSuperseded, NodeNotYours, BadArgument.
        SQL: take_deaths. Safe inside your transaction: yes.
        """
        return await self._rows(calls.TAKE_DEATHS, p_node=node_id, p_epoch=epoch, p_limit=limit)

    async def adopt_lease(
        self,
        queue: str,
        node_id: UUID | str,
        task: str,
        params: types.Json = None,
        **options: Unpack[types.SpawnOptions],
    ) -> types.Adopted:
        """Record work that already runs on a node; no filter is applied, it counts from now on.

        Raises: QueueUnknown, NodeUnknown, BadArgument, PlacementInvalid, LeaseExists,
            IsolationLevel.
        SQL: adopt_lease. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._row(
            calls.ADOPT_LEASE,
            p_queue=queue,
            p_node=node_id,
            p_task=task,
            p_params=params,
            p_options=spawn_options(options, "options"),
        )
