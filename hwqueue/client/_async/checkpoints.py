"""Methods about what handlers do with their claim: checkpoints, suspensions, signals, added work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._items import Named, items_of
from hwqueue.client._json import plain


class AsyncCheckpoints(AsyncPart):
    """Save what a claim has done, suspend its lease, wake it with a signal, add work to its step.

    In a handler call `context.step`, `context.sleep`, `context.wait_for`, `context.add_items` and
    `context.add_steps`, which use these. A step ends when all that was added to it has ended.
    """

    async def save_checkpoint(
        self,
        lease_id: UUID | str,
        claim_token: int,
        name: str,
        state: types.Json = None,
        *,
        extend: timedelta | None = None,
    ) -> datetime:
        """Keep what a claim has done under a name, over what that name had.

        Args:
            name: 1 to 200 characters; a lease has 10,000 names at most.
            state: As large as the queue allows params to be.
            extend: The claim ends that long from now at the earliest; None: as before.

        Returns: When the claim ends.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            ClaimBusy, BadArgument, IsolationLevel.
        SQL: save_checkpoint. Safe inside your transaction: yes, it commits with what you do there;
            until then the claim can be neither settled nor heartbeated.
        """
        return await self._value(
            calls.SAVE_CHECKPOINT,
            p_lease=lease_id,
            p_token=claim_token,
            p_name=name,
            p_state=state,
            p_extend=extend,
        )

    async def checkpoints(self, lease_id: UUID | str, claim_token: int) -> list[types.Checkpoint]:
        """What the claims of a lease have saved, by name.

        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours.
        SQL: checkpoints. Safe inside your transaction: yes.
        """
        return await self._rows(calls.CHECKPOINTS, p_lease=lease_id, p_token=claim_token)

    async def take_signal(
        self, lease_id: UUID | str, claim_token: int, signal: str, *, name: str | None = None
    ) -> types.SignalTaken:
        """Take the oldest signal of a name that no wait of the lease has taken.

        Args:
            name: Of the checkpoint that keeps the payload; None: the signal's.

        Raises: As `save_checkpoint`.
        SQL: take_signal. Safe inside your transaction: yes, as `save_checkpoint`.
        """
        return await self._row(
            calls.TAKE_SIGNAL, p_lease=lease_id, p_token=claim_token, p_signal=signal, p_name=name
        )

    async def suspend_lease(
        self,
        lease_id: UUID | str,
        claim_token: int,
        *,
        until: datetime | None = None,
        signal: str | None = None,
        name: str | None = None,
        near: Literal["self"] | None = None,
    ) -> types.LeaseState:
        """End a claim until a time, or until the lease is sent a signal; no attempt is used up.

        Args:
            until: When the lease is claimable again; with `signal` its timeout, None: none.
            signal: What it waits for. If it is there already, the lease is claimable at once.
            name: Of the checkpoint that keeps the wait; None: the signal's, or `sleep`.
            near: `self`: its next claim prefers the node of this one.

        Returns: The new state: `scheduled`, `pending`, or `cancelled`.
        Raises: As `save_checkpoint`.
        SQL: suspend_lease. Safe inside your transaction: yes.
        """
        return await self._value(
            calls.SUSPEND_LEASE,
            p_lease=lease_id,
            p_token=claim_token,
            p_until=until,
            p_signal=signal,
            p_name=name,
            p_near=near,
        )

    async def signal_lease(
        self, lease_id: UUID | str, name: str, payload: types.Json = None, *, key: str | None = None
    ) -> types.SignalSent:
        """Send an open lease a signal; `context.wait_for(name)` of its handler returns the payload.

        A lease that is suspended until this signal becomes claimable at once. For any other the
        signal is kept.

        Args:
            name: 1 to 200 characters.
            payload: As large as the queue allows params to be.
            key: The same name and key reach the lease once, so that a sender may repeat the call.

        Raises: LeaseNotFound, LeaseFinished, BadArgument, IsolationLevel.
        SQL: signal_lease. Safe inside your transaction: yes, but the lease is neither claimable
            nor settled until it ends.
        """
        return await self._row(
            calls.SIGNAL_LEASE, p_lease=lease_id, p_name=name, p_payload=payload, p_key=key
        )

    async def lease_checkpoints(
        self, lease_id: UUID | str, *, limit: int = 100
    ) -> list[types.SavedCheckpoint]:
        """What the handler of a lease has saved, for people: names, times, sizes; the last first.

        Args:
            limit: 1 to 10,000.

        Raises: LeaseNotFound, BadArgument.
        SQL: lease_checkpoints. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LEASE_CHECKPOINTS, p_lease=lease_id, p_limit=limit)

    async def add_items(
        self,
        lease_id: UUID | str,
        claim_token: int,
        items: Iterable[Mapping[str, Any]],
        *,
        task: str | Named | None = None,
    ) -> list[types.AddedItem]:
        """Add items to the step of a run whose lease this claim has.

        Args:
            items: Mappings of `name`, `params` and `task`, 10,000 at most. A name is unique within
                the step, 1 to 200 characters: one that is there already is not added again.
            task: Of items that name none; None: the lease's own task.

        Returns: All of them with their numbers, in the order given.
        Raises: LeaseLost, LeaseCancelled, LeaseFinished, LeaseNotFound, BadToken, ClaimNotYours,
            ClaimBusy, StepUnknown for a lease of no run, IdempotencyMismatch for a name that has
            another content, WorkflowTooLarge, BadArgument, IsolationLevel.
        SQL: add_items. Safe inside your transaction: yes, it commits with what you do there; until
            then the claim can be neither settled nor heartbeated.
        """
        return await self._rows(
            calls.ADD_ITEMS, p_lease=lease_id, p_token=claim_token, p_items=items_of(items, task)
        )

    async def add_steps(
        self, lease_id: UUID | str, claim_token: int, spec: Mapping[str, Any] | types.AsJson
    ) -> types.SubmittedRun:
        """Add steps to the step of a run whose lease this claim has: a run that is nested in it.

        Args:
            spec: A `Workflow`, or what `submit_spec` takes. Its name is unique within the step: one
                that is there already is not added again. It binds the input of the lease's run.

        Returns: The nested run; created: False if the step had one of this name already.
        Raises: As `add_items` and `submit_spec`; WrongRunState when the run of the lease stops.
        SQL: add_steps. Safe inside your transaction: as `add_items`.
        """
        return await self._row(
            calls.ADD_STEPS, p_lease=lease_id, p_token=claim_token, p_spec=plain(spec, "spec")
        )
