"""Runs of workflows: how each step must end, given how its leases and its parents have ended.

A run that goes on after failures leaves no choice: each step has one end. In a run that stops, a
step may have come to its own end before, or not have begun.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

End: TypeAlias = tuple[str, str | None]
"""How a step has ended: its state and the reason."""
Lease: TypeAlias = tuple[str, int | None]
"""The lease of a step, or of one of its items."""

ENDED = ("completed", "failed", "cancelled", "skipped")
COMPLETED: End = ("completed", None)


@dataclass(frozen=True)
class Step:
    """A step as its author writes it.

    Attributes:
        after: What is wanted of each parent: completed, failed or ended.
        any: Whether one edge that holds is enough.
        on_failure: continue or ignore; None: as the workflow says.
        holds: Whether its condition holds.
        at_end: Of a finally step: after which end of its run.
        items: How many a map has, or the members of a gang.
        at_once: How many of them are open at a time.
        tolerate: How many of them may fail.
        times_out: How a wait ends that gets no signal.
        runs: What a nested run consists of.
    """

    name: str
    kind: str = "task"
    after: Mapping[str, str] = field(default_factory=dict)
    any: bool = False
    on_failure: str | None = None
    holds: bool = True
    at_end: str | None = None
    items: int = 0
    at_once: int = 1
    tolerate: int = 0
    times_out: str | None = None
    runs: "Workflow | None" = None


@dataclass(frozen=True)
class Workflow:
    """Steps, parents before their children; finally steps last."""

    steps: Sequence[Step]
    on_failure: str = "continue"

    def fails_run(self, step: Step) -> bool:
        """Whether nothing more is released after the step has failed."""
        picked_up = any(child.after.get(step.name, "completed") != "completed" for child in self)
        return self.on_failure != "continue" and step.on_failure is None and not picked_up

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)


@dataclass(frozen=True)
class Told:
    """What has happened to a run, as far as it is decided outside of it.

    Attributes:
        leases: How those ended that have.
        added: How many items steps have added to themselves.
        runs: The states of the runs that steps wait for: nested ones, and added ones.
        declared: Steps that an operator has declared done.
        sent: Waits whose signals were sent.
        is_cancelled: Whether it was cancelled, by an operator or with the run above.
        is_failing: Whether it was known to fail when a step was declared done, maybe the one that failed.
    """

    leases: Mapping[Lease, str]
    added: Mapping[str, int]
    runs: Mapping[str, Sequence[str]]
    declared: Set[str]
    sent: Set[str]
    is_cancelled: bool
    is_failing: bool


def counts_as(step: Step, state: str) -> str:
    """What the state of a parent is for its children."""
    failed = state in ("failed", "cancelled")
    return "completed" if failed and step.on_failure == "ignore" else state


def edge_holds(wants: str, state: str) -> bool:
    """Whether a parent that ended like this is what an edge wants."""
    return wants in ("ended", state) or (wants, state) == ("failed", "cancelled")


def run_state(workflow: Workflow, told: Told, seen: Mapping[str, End]) -> str:
    """The state in which a run ends whose steps have ended like this."""
    if told.is_cancelled:
        return "cancelled"
    states = [counts_as(step, seen[step.name][0]) for step in workflow if step.name in seen]
    return "failed" if told.is_failing or {"failed", "cancelled"} & set(states) else "completed"


def ends(workflow: Workflow, told: Told, seen: Mapping[str, End]) -> dict[str, set[End]]:
    """How each step may have ended, where its parents have ended as it was seen."""
    by_name = {step.name: step for step in workflow}
    stops = {told.is_cancelled, told.is_failing} != {False} or any(
        seen[step.name][0] in ("failed", "cancelled") and workflow.fails_run(step)
        for step in workflow
        if step.at_end is None
    )
    found = {}
    for step in workflow:
        if step.at_end is not None:
            found[step.name] = _ends_at_end(step, workflow, told, seen)
            continue
        parents = {p: counts_as(by_name[p], seen[p][0]) for p in step.after}
        natural = _after_parents(step, told, parents)
        found[step.name] = natural | (_when_stopped(step, workflow, told, parents) if stops else set())
    return found


def _after_parents(step: Step, told: Told, parents: Mapping[str, str]) -> set[End]:
    """How a step may end in a run that does not stop."""
    if step.name in told.declared:
        return {("completed", "operator")}
    if not _is_due(step, parents):
        return {("skipped", _skip_reason(step, parents))}
    if not step.holds:
        return {("skipped", "condition")}
    return _gang_ends(step, told) if step.kind == "gang" else _own_ends(step, told)


def _is_due(step: Step, parents: Mapping[str, str]) -> bool:
    """Whether the step is released, now that its parents have ended."""
    holds = [edge_holds(wants, parents[p]) for p, wants in step.after.items()]
    return (any(holds) if step.any else all(holds)) or not holds


def _skip_reason(step: Step, parents: Mapping[str, str]) -> str:
    """The worst parent whose edge does not hold."""
    unmet = {parents[p] for p, wants in step.after.items() if not edge_holds(wants, parents[p])}
    if unmet & {"failed", "cancelled"}:
        return "parent_failed"
    return "parent_skipped" if "skipped" in unmet else "parent_completed"


def _own_ends(step: Step, told: Told) -> set[End]:
    """How a step may end that was released; none if something of it has not run."""
    if step.kind == "sleep":
        return {COMPLETED}
    if step.kind == "wait":
        late = step.times_out is not None and step.name not in told.sent
        return {(step.times_out or "", "timeout") if late else COMPLETED}
    if step.kind == "workflow":
        return {
            (state, None if state == "completed" else f"nested_{state}")
            for state in told.runs.get(step.name, ())
        }
    own = told.leases.get((step.name, None), "completed" if step.kind == "map" else None)
    if own != "completed":
        return {(own, None)} if own else set()
    count = step.items + told.added.get(step.name, 0)
    items = [told.leases.get((step.name, number)) for number in range(count)]
    runs = told.runs.get(step.name, ())
    failed = sum(state in ("failed", "cancelled") for state in (*items, *runs))
    if failed > step.tolerate:
        return {("failed", "items_failed")}
    return {COMPLETED} if None not in items else set()


def _gang_ends(step: Step, told: Told) -> set[End]:
    """How a gang may end; members that never ran again ended with it."""
    members = [told.leases.get((step.name, rank)) for rank in range(step.items)]
    if "failed" in members:
        return {("failed", "gang_failed")}
    if "cancelled" in members:
        return {("cancelled", "gang_cancelled")}
    return {COMPLETED} if None not in members else set()


def _when_stopped(step: Step, workflow: Workflow, told: Told, parents: Mapping[str, str]) -> set[End]:
    """How else a step may end in a run that stops before the step has ended by itself."""
    if step.name in told.declared:
        return set()
    found: set[End] = {("skipped", "cancelled" if told.is_cancelled else "run_failed")}
    if told.is_cancelled:
        found.add(("skipped", "run_failed"))  # it failed before
    if not _is_due(step, parents) or not step.holds:
        return found
    if step.kind != "task" or step.name in told.added or step.name in told.runs:
        found |= {("cancelled", "run_stopped"), ("cancelled", "nested_cancelled")}
        found |= {("cancelled", None), ("failed", "items_failed"), ("failed", "gang_failed")}
    elif told.is_cancelled or workflow.on_failure == "fail_fast":
        found |= {("cancelled", "run_stopped"), ("cancelled", None)}
    return found


def _ends_at_end(step: Step, workflow: Workflow, told: Told, seen: Mapping[str, End]) -> set[End]:
    """How a finally step may end."""
    others = {s.name: seen[s.name] for s in workflow if s.at_end is None}
    before = run_state(workflow, told, others)
    reasons = {"completed": "not_needed", "failed": "run_failed", "cancelled": "cancelled"}
    skipped: End = ("skipped", reasons[run_state(workflow, told, seen)])
    found = _own_ends(step, told) if step.at_end in ("ended", before) else {skipped}
    if told.is_cancelled:  # maybe while finally steps of another end ran
        found |= _own_ends(step, told) | {skipped, ("cancelled", "run_stopped")}
    return found


def runs_again(
    workflow: Workflow, seen: Mapping[str, End], mode: str, named: Set[str] = frozenset()
) -> set[str]:
    """The steps that a retry of a run runs again.

    All that has not completed, what comes after these, and the finally steps. With mode failed a
    join that any parent releases stays as it is, unless it has not completed itself.
    """
    found: set[str] = set()
    for step in workflow:
        own = mode == "all" or seen[step.name][0] != "completed" or step.name in named
        follows = bool(found & set(step.after)) and (mode != "failed" or not step.any)
        if own or follows or step.at_end is not None:
            found.add(step.name)
    return found
