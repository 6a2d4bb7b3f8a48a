"""Methods that change where steps of runs may run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack
from uuid import UUID

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.client._json import plain
from hwqueue.types import PreviewedStep, StepChanges, UpdatedStep


class AsyncRunUpdates(AsyncCaller):
    """Change where steps of a run may run that were not released, or look at that first."""

    async def update_steps(
        self,
        run_id: UUID | str,
        *,
        steps: Iterable[str] | None = None,
        **changes: Unpack[StepChanges],
    ) -> list[UpdatedStep]:
        """Change where steps of a run may run that were not released.

        Args:
            steps: Their names; None: all that were not released.
            **changes: See `hwqueue.types.StepChanges`; what is not given stays as it is.

        Returns: These steps, in topological order. A step that was released keeps its placement, as
            does an item that was spawned: of a map that has begun the other items change.
        Raises: RunNotFound, WrongRunState for a run that has ended or a step that is named and was
            released, StepUnknown, PlacementInvalid, PlacementContradictory, WorkflowInvalid,
            WireInvalid, QueueUnknown, LeaseBusy while another session holds a step, BadArgument,
            OtherTenant, IsolationLevel.
        SQL: update_steps. Safe inside your transaction: yes, but the steps are not released until
            it ends.
        """
        return await self._rows(
            calls.UPDATE_STEPS,
            p_run=run_id,
            p_changes=plain(changes, "changes"),
            p_steps=None if steps is None else list(steps),
        )

    async def preview_update(
        self,
        run_id: UUID | str,
        *,
        steps: Iterable[str] | None = None,
        **changes: Unpack[StepChanges],
    ) -> list[PreviewedStep]:
        """What `update_steps` would make of the steps, and where each could run; changes nothing.

        Args:
            steps: Their names; None: all that were not released.
            **changes: See `hwqueue.types.StepChanges`.

        Raises: As `update_steps`, but LeaseBusy and IsolationLevel.
        SQL: preview_update. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.PREVIEW_UPDATE,
            p_run=run_id,
            p_changes=plain(changes, "changes"),
            p_steps=None if steps is None else list(steps),
        )
