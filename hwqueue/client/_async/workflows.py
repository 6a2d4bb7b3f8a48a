"""Methods about workflows and their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from hwqueue import calls, tracing, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import aware, given, plain
from hwqueue.client._spawn import with_headers


def _options(options: types.RunOptions, headers: Mapping[str, str]) -> dict[str, Any]:
    """The options of a submission as JSON, with the headers of its trace."""
    found = given(with_headers(options, headers))
    for name in ("deadline", "available_at", "delay"):
        if isinstance(moment := found.get(name), datetime):
            found[name] = aware(moment, name).isoformat()
        elif isinstance(moment, timedelta):
            found[name] = moment.total_seconds()
    if "run_id" in found:
        found["run_id"] = str(found["run_id"])
    return {name: plain(value, name) for name, value in found.items()}


class AsyncWorkflows(AsyncPart):
    """Define workflows, submit runs of them, look at them and change them."""

    async def define_workflow(self, spec: types.AsJson | Mapping[str, Any]) -> types.DefinedWorkflow:
        """Define a workflow; does nothing if the newest version means the same.

        Args:
            spec: A `hwqueue.Workflow`, or its JSON (docs/explanation/workflows.md).

        Raises: WorkflowInvalid, WorkflowTooLarge, PlacementInvalid, PlacementContradictory,
            WireInvalid, BadArgument, OtherTenant.
        SQL: define_workflow. Safe inside your transaction: yes.
        """
        return await self._row(calls.DEFINE_WORKFLOW, p_spec=plain(spec, "spec"))

    async def get_workflow(self, workflow: str, *, version: int | None = None) -> types.WorkflowDefinition:
        """A definition.

        Args:
            version: None: the newest.

        Raises: WorkflowUnknown, BadArgument, OtherTenant.
        SQL: get_workflow. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_WORKFLOW, p_workflow=workflow, p_version=version)

    async def list_workflows(
        self, *, after: str | None = None, limit: int = 100
    ) -> list[types.WorkflowSummary]:
        """Workflows by name, each with its newest version.

        Args:
            after: Only names behind this one: the last of the previous page.
            limit: Most to return.

        Raises: BadArgument, OtherTenant.
        SQL: list_workflows. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_WORKFLOWS, p_after=after, p_limit=limit)

    async def submit_workflow(
        self, workflow: str, input: types.Json = None, **options: Unpack[types.RunOptions]
    ) -> types.SubmittedRun:
        """Submit a run of a workflow, and spawn the leases of its first steps.

        Args:
            input: JSON that its steps bind with `$input`; None: an empty object.
            **options: See `hwqueue.types.RunOptions`.

        Raises: WorkflowUnknown, StepUnknown, QueueUnknown, BadArgument, PlacementInvalid,
            PlacementContradictory, WireInvalid, IdempotencyMismatch, UniqueConflict, OtherTenant.
        SQL: submit_workflow. Safe inside your transaction: yes, waits for nobody.
        """
        with tracing.submitting(workflow) as headers:
            return await self._row(
                calls.SUBMIT_WORKFLOW,
                p_workflow=workflow,
                p_input=input,
                p_options=_options(options, headers),
            )

    async def submit_workflows(
        self, workflow: str, runs: Iterable[types.RunSpec]
    ) -> list[types.SubmittedRun]:
        """Submit runs of a workflow, all or nothing; in the order given.

        Args:
            runs: At most 1000, each with an `input` and `options`, or with neither.

        Raises: As `submit_workflow`; `detail["index"]` says which run, from 0.
        SQL: submit_workflows. Safe inside your transaction: yes.
        """
        with tracing.submitting(workflow) as headers:
            given_runs = [
                {"input": one.get("input"), "options": _options(one.get("options", {}), headers)}
                for one in runs
            ]
            return await self._rows(
                calls.SUBMIT_WORKFLOWS, p_workflow=workflow, p_runs=plain(given_runs, "runs")
            )

    async def submit_spec(
        self,
        spec: types.AsJson | Mapping[str, Any],
        input: types.Json = None,
        **options: Unpack[types.RunOptions],
    ) -> types.SubmittedRun:
        """Submit a run of a specification that is not defined under its name.

        Args:
            spec: As `define_workflow` takes it.
            input: JSON that its steps bind with `$input`; None: an empty object.
            **options: See `hwqueue.types.RunOptions`; no `version`.

        Raises: As `define_workflow` and `submit_workflow`.
        SQL: submit_spec. Safe inside your transaction: yes, waits for nobody.
        """
        written = plain(spec, "spec")
        name = written.get("name") if isinstance(written, Mapping) else None
        with tracing.submitting(name) as headers:
            return await self._row(
                calls.SUBMIT_SPEC, p_spec=written, p_input=input, p_options=_options(options, headers)
            )

    async def check_workflow(
        self, workflow: str | types.AsJson | Mapping[str, Any], **options: Unpack[types.RunOptions]
    ) -> list[types.CheckedStep]:
        """Where each step could run if it were submitted now; changes nothing.

        Args:
            workflow: The name of a defined workflow, or a specification as `define_workflow` takes
                it.
            **options: Those of the submission; see `hwqueue.types.RunOptions`.

        Raises: As `submit_workflow` and `submit_spec`.
        SQL: check_workflow. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.CHECK_WORKFLOW,
            p_spec=workflow if isinstance(workflow, str) else plain(workflow, "workflow"),
            p_options=_options(options, {}),
        )

    async def get_workflow_run(self, run_id: UUID | str) -> types.WorkflowRun:
        """A run, and how many of its steps are in each state.

        Raises: RunNotFound.
        SQL: get_workflow_run. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_WORKFLOW_RUN, p_run=run_id)

    async def list_workflow_steps(self, run_id: UUID | str) -> list[types.WorkflowStep]:
        """The steps of a run in topological order.

        Raises: RunNotFound.
        SQL: list_workflow_steps. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_WORKFLOW_STEPS, p_run=run_id)

    async def step_results(
        self,
        run_id: UUID | str,
        step: str,
        *,
        after: int = -1,
        limit: int = 1000,
        state: types.StepState | None = None,
        lease_id: UUID | None = None,
    ) -> list[types.StepResult]:
        """What a step returned, and where: one row, or one for each item that is spawned.

        Args:
            after: Only items behind this one: the last of the previous page. -2: the step itself.
            limit: Most to return.
            state: Only those in this state; None: any.
            lease_id: Of a worker: the lease of the run that it has claimed.

        Raises: RunNotFound, StepUnknown, BadArgument; for a worker LeaseLost, NodeNotYours.
        SQL: step_results. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.STEP_RESULTS,
            p_run=run_id,
            p_step=step,
            p_after=after,
            p_limit=limit,
            p_state=state,
            p_lease=lease_id,
        )

    async def run_input(self, run_id: UUID | str, *, lease_id: UUID | None = None) -> types.Json:
        """What a run was submitted with.

        Args:
            lease_id: As for `step_results`.

        Raises: RunNotFound; for a worker LeaseLost, NodeNotYours.
        SQL: run_input. Safe inside your transaction: yes.
        """
        return await self._value(calls.RUN_INPUT, p_run=run_id, p_lease=lease_id)

    async def list_workflow_runs(
        self,
        *,
        workflow: str | None = None,
        state: types.RunState | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_from: datetime | timedelta | None = None,
        submitted_before: datetime | timedelta | None = None,
        parent_run_id: UUID | str | None = None,
        root_run_id: UUID | str | None = None,
        is_nested: bool | None = None,
        limit: int = 50,
        before: UUID | str | None = None,
    ) -> list[types.RunSummary]:
        """Runs, newest first.

        Args:
            workflow, state: Only these; None: any.
            tenant: "": those without one; None: any.
            labels: Those that have all of these.
            submitted_from, submitted_before: Only those from this time on, or before it; a
                timedelta below zero is how long ago, by the database's clock.
            parent_run_id: Those that are steps of this run.
            root_run_id: Those, and the ones below them.
            is_nested: Whether they are steps of other runs; None: any.
            limit: Most to return.
            before: Only runs older than this one: the last of the previous page.

        Raises: BadArgument, OtherTenant.
        SQL: list_workflow_runs. Safe inside your transaction: yes.
        """
        wanted = {
            "workflow": workflow,
            "state": state,
            "tenant": tenant,
            "labels": labels,
            "submitted_from": submitted_from,
            "submitted_before": submitted_before,
            "parent_run_id": parent_run_id,
            "root_run_id": root_run_id,
            "is_nested": is_nested,
        }
        return await self._rows(
            calls.LIST_WORKFLOW_RUNS, p_filter=plain(given(wanted), "filter"), p_limit=limit, p_before=before
        )

    async def get_run_workflow(self, run_id: UUID | str) -> types.WorkflowDefinition:
        """The definition that a run was submitted with; version: None if it has none.

        Raises: RunNotFound.
        SQL: get_run_workflow. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_RUN_WORKFLOW, p_run=run_id)

    async def list_step_details(self, run_id: UUID | str) -> list[types.StepDetail]:
        """When the steps of a run were released and claimed, in topological order.

        Raises: RunNotFound.
        SQL: list_step_details. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_STEP_DETAILS, p_run=run_id)

    async def list_run_signals(self, run_id: UUID | str, *, limit: int = 1000) -> list[types.RunSignal]:
        """The signals that a run was sent, oldest first, and which step took each.

        Raises: RunNotFound, BadArgument.
        SQL: list_run_signals. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_RUN_SIGNALS, p_run=run_id, p_limit=limit)

    async def summarise_runs(self, run_ids: Iterable[UUID | str]) -> list[types.RunProgress]:
        """How far runs are, by their ids; those that are gone are left out.

        Args:
            run_ids: 200 at most.

        Raises: BadArgument.
        SQL: summarise_runs. Safe inside your transaction: yes.
        """
        return await self._rows(calls.SUMMARISE_RUNS, p_run_ids=list(run_ids))

    async def preview_retry(
        self, run_id: UUID | str, *, mode: types.RetryMode | None = None, steps: Iterable[str] | None = None
    ) -> list[types.RetriedStep]:
        """The steps that `retry_workflow_run` would run again; nothing is changed.

        Raises: RunNotFound, WrongRunState, StepUnknown, BadArgument.
        SQL: preview_retry. Safe inside your transaction: yes.
        """
        options = {"mode": mode, "steps": None if steps is None else list(steps)}
        return await self._rows(calls.PREVIEW_RETRY, p_run=run_id, p_options=given(options))

    async def list_workflow_versions(self, workflows: Iterable[str]) -> list[types.WorkflowVersion]:
        """The newest 20 versions of each workflow, and how many runs of each are in each state.

        Args:
            workflows: Names, 100 at most.

        Raises: BadArgument, OtherTenant.
        SQL: list_workflow_versions. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_WORKFLOW_VERSIONS, p_workflows=list(workflows))

    async def cancel_workflow_run(self, run_id: UUID | str, *, reason: str | None = None) -> types.RunState:
        """Cancel a run: what waits ends, what runs is asked to stop, nothing is released.

        Returns: `cancelled`, or `cancelling` while something of it still runs.
        Raises: RunNotFound, WrongRunState, BadArgument, IsolationLevel.
        SQL: cancel_workflow_run. Safe inside your transaction: yes.
        """
        return await self._value(calls.CANCEL_WORKFLOW_RUN, p_run=run_id, p_reason=reason)

    async def pause_workflow_run(self, run_id: UUID | str) -> types.RunState:
        """Hold the steps of a run that become due; those that run go on.

        Raises: RunNotFound, WrongRunState, IsolationLevel.
        SQL: pause_workflow_run. Safe inside your transaction: yes.
        """
        return await self._value(calls.PAUSE_WORKFLOW_RUN, p_run=run_id)

    async def resume_workflow_run(self, run_id: UUID | str) -> types.RunState:
        """Let a paused run go on.

        Raises: RunNotFound, WrongRunState, IsolationLevel.
        SQL: resume_workflow_run. Safe inside your transaction: yes.
        """
        return await self._value(calls.RESUME_WORKFLOW_RUN, p_run=run_id)

    async def retry_workflow_run(
        self,
        run_id: UUID | str,
        *,
        mode: types.RetryMode | None = None,
        steps: Iterable[str] | None = None,
        input: types.Json = None,
    ) -> types.RunState:
        """Run steps of a run that has ended again, under the same lease ids.

        Args:
            mode: None: `failed`, see `RetryMode`.
            steps: Instead of a mode: these, those that have not completed, and all that come
                after them.
            input: A new one, with mode `all`; None: as it was.

        Raises: RunNotFound, WrongRunState, StepUnknown, BadArgument, IsolationLevel.
        SQL: retry_workflow_run. Safe inside your transaction: yes.
        """
        options = {"mode": mode, "steps": None if steps is None else list(steps), "input": input}
        return await self._value(calls.RETRY_WORKFLOW_RUN, p_run=run_id, p_options=given(options))

    async def skip_step(
        self, run_id: UUID | str, step: str, *, result: types.Json = None, reason: str | None = None
    ) -> types.RunState:
        """Declare a step completed that nobody has claimed; its reason is then `operator`.

        Args:
            result: What other steps that bind its result get.

        Raises: RunNotFound, WrongRunState, StepUnknown, LeaseClaimed, BadArgument, IsolationLevel.
        SQL: skip_step. Safe inside your transaction: yes.
        """
        return await self._value(calls.SKIP_STEP, p_run=run_id, p_step=step, p_result=result, p_reason=reason)

    async def signal_workflow_run(
        self, run_id: UUID | str, name: str, payload: types.Json = None, *, key: str | None = None
    ) -> types.RunSignalSent:
        """Send a run a signal; the step that waits for it takes it, now or when it is released.

        Args:
            name: What a step waits for, 1 to 200 characters.
            payload: JSON of at most 1 MiB; the result of the step that takes it.
            key: The same name and key reach the run once, so that a sender may repeat the call.

        Raises: RunNotFound, WrongRunState when it has ended, StepUnknown when no step waits for
            this name, BadArgument, IsolationLevel.
        SQL: signal_workflow_run. Safe inside your transaction: yes.
        """
        return await self._row(
            calls.SIGNAL_WORKFLOW_RUN, p_run=run_id, p_name=name, p_payload=payload, p_key=key
        )

    async def advance_workflows(self, *, limit: int = 200) -> types.AdvanceResult:
        """Do what settlements of steps had to leave; `reap` does it, too.

        Args:
            limit: Most joins, steps and runs to look at, 1 to 10,000.

        Raises: BadArgument, IsolationLevel.
        SQL: advance_workflows. Safe inside your transaction: no, it needs one of its own.
        """
        return await self._row(calls.ADVANCE_WORKFLOWS, p_limit=limit)

    async def take_ended_runs(self, *, limit: int = 100) -> list[types.EndedRun]:
        """Take ends of runs whose submission was traced, to send a span of each.

        Each is given once, to one caller, within an hour.

        Args:
            limit: At most 1,000.

        Raises: BadArgument, IsolationLevel.
        SQL: take_ended_runs. Safe inside your transaction: yes.
        """
        return await self._rows(calls.TAKE_ENDED_RUNS, p_limit=limit)

    async def update_steps(
        self, run_id: UUID | str, *, steps: Iterable[str] | None = None, **changes: Unpack[types.StepChanges]
    ) -> list[types.UpdatedStep]:
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
        self, run_id: UUID | str, *, steps: Iterable[str] | None = None, **changes: Unpack[types.StepChanges]
    ) -> list[types.PreviewedStep]:
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
