"""Methods about what the handler of a step adds to its step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.client._items import Named, items_of
from hwqueue.client._json import plain
from hwqueue.types import AddedItem, AsJson, SubmittedRun


class AsyncChildren(AsyncCaller):
    """Add work to a step that runs; the step ends when all of it has ended.

    In a handler call `context.add_items` and `context.add_steps`, which use these.
    """

    async def add_items(
        self,
        lease_id: UUID | str,
        claim_token: int,
        items: Iterable[Mapping[str, Any]],
        *,
        task: str | Named | None = None,
    ) -> list[AddedItem]:
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
            calls.ADD_ITEMS,
            p_lease=lease_id,
            p_token=claim_token,
            p_items=items_of(items, task),
        )

    async def add_steps(
        self, lease_id: UUID | str, claim_token: int, spec: Mapping[str, Any] | AsJson
    ) -> SubmittedRun:
        """Add steps to the step of a run whose lease this claim has: a run that is nested in it.

        Args:
            spec: A `Workflow`, or what `submit_spec` takes. Its name is unique within the step: one
                that is there already is not added again. It binds the input of the lease's run.

        Returns: The nested run; created: False if the step had one of this name already.
        Raises: As `add_items` and `submit_spec`; WrongRunState when the run of the lease stops.
        SQL: add_steps. Safe inside your transaction: as `add_items`.
        """
        return await self._row(
            calls.ADD_STEPS,
            p_lease=lease_id,
            p_token=claim_token,
            p_spec=plain(spec, "spec"),
        )
