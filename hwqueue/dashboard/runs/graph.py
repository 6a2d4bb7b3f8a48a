"""A graph of steps to draw: what the boxes and edges say. Of a run, or of a definition alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hwqueue.types import StepDetail, StepResult, WorkflowStep

MOST_BOXES = 200  # more are a table: nobody follows the edges of more
_ENDED = ("completed", "failed", "cancelled", "skipped")
KINDS = {
    "task": "a task",
    "map": "a task for each item",
    "gang": "tasks that start together",
    "wait": "waits for a signal",
    "sleep": "waits for a time",
    "workflow": "a run of another workflow",
}


@dataclass(frozen=True, slots=True)
class Step:
    """A step as pages show it.

    Attributes:
        state: A word of `formatting.STATES`: a step whose lease waits for a node is `pending`; one
            whose lease is claimed is `running`. None: of a definition.
        parents: The steps it comes after, and how each must end.
        condition: What it asks besides, in words; empty for most.
        counts: Of its items, by state; None for a step without items.
        signal: What a wait waits for.
        layer: Of the graph, from 0.
    """

    no: int
    name: str
    kind: str
    task: str
    state: str | None
    parents: Mapping[str, str]
    condition: str
    at_end: str | None
    layer: int
    row: WorkflowStep | None = None
    detail: StepDetail | None = None
    counts: Mapping[str, int] | None = None
    signal: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will not change unless the run is retried."""
        return self.state in _ENDED

    @property
    def begun_at(self) -> datetime | None:
        """When its last claim was granted, or when a step without a lease began."""
        if self.detail is None:
            return None
        return self.detail.claimed_at if self.kind == "task" else self.detail.released_at

    @property
    def waits(self) -> tuple[str, datetime | None]:
        """What a step without a lease waits for, and until when: pages write times themselves."""
        words = self.row.headline if self.row and self.row.headline else ""
        until = self.row.due_at if self.row and self.kind in ("sleep", "wait") else None
        return (words.rpartition(" until ")[0] if until else words), until

    @property
    def has_sign(self) -> bool:
        """Whether there is a sign for its kind; another kind is said by its name."""
        return self.kind != "task" and self.kind in KINDS

    @property
    def words(self) -> str:
        """The name, the state, the parents and the conditions, for who cannot see the picture."""
        parts = [self.name]
        if self.kind != "task":
            parts.append(KINDS.get(self.kind, self.kind))
        if self.state:
            parts.append(self.state)
        if self.counts:
            told = ", ".join(f"{count} {state}" for state, count in self.counts.items())
            parts.append(f"items: {told}")
        if self.parents:
            parts.append("after " + ", ".join(_after(*each) for each in self.parents.items()))
        if self.condition:
            parts.append(self.condition)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Edge:
    """A line of the picture. wants: completed, failed or ended. holds: None until that is known."""

    source: str
    target: str
    wants: str
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps in topological order, and what leads from one to another; the page says where they go."""

    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]

    @property
    def is_drawn(self) -> bool:
        """Whether there is a picture of it."""
        return len(self.steps) <= MOST_BOXES

    def layers(self) -> list[list[Step]]:
        """The steps by layer."""
        rows: list[list[Step]] = [[] for _ in range(max(s.layer for s in self.steps) + 1)]
        for step in self.steps:
            rows[step.layer].append(step)
        return rows

    def counts(self) -> list[tuple[str, int]]:
        """How many steps are in each state, in the order of a life."""
        return count_states(step.state or "" for step in self.steps)


_LIFE = (*("completed", "running", "claimed", "pending", "scheduled"), *("failed", "cancelled"))


def count_states(states: Iterable[str] | Mapping[str, int]) -> list[tuple[str, int]]:
    """How many there are of each state, in the order in which bars show them."""
    found: dict[str, int] = {}
    for state in states:
        found[state] = found.get(state, 0) + (states[state] if isinstance(states, Mapping) else 1)
    order = {state: index for index, state in enumerate((*_LIFE, "skipped", "waiting"))}
    return sorted(found.items(), key=lambda each: order.get(each[0], len(order)))


def graph_of(
    spec: Mapping[str, Any], rows: Sequence[WorkflowStep] = (), details: Sequence[StepDetail] = ()
) -> Graph:
    """The graph of a specification in normal form, with the states of a run's steps if given."""
    by_no = {row.step_no: row for row in rows}
    detail_of = {detail.step_no: detail for detail in details}
    given = list(spec["steps"])
    layers = _layers(given)
    steps = tuple(
        _step(number, each, layers[each["name"]], by_no.get(number), detail_of.get(number))
        for number, each in enumerate(given, 1)
    )
    named = {step.name: step for step in steps}
    # what runs at the end comes after all others
    return Graph(
        steps,
        tuple(
            _edge(named[parent], step, wants)
            for step in steps
            if not step.at_end
            for parent, wants in step.parents.items()
        ),
    )


def _layers(given: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The layer of each step: 0 without parents, else one below its lowest parent, or at the end."""
    layers: dict[str, int] = {}
    for each in given:
        if "finally" not in each:
            layers[each["name"]] = max((layers[parent] + 1 for parent in each.get("after", ())), default=0)
    last = max(layers.values(), default=-1) + 1
    return {each["name"]: layers.get(each["name"], last) for each in given}


def _step(
    number: int, given: Mapping[str, Any], layer: int, row: WorkflowStep | None, detail: StepDetail | None
) -> Step:
    return Step(
        no=number,
        name=given["name"],
        kind=given.get("kind", "task"),
        task=given.get("task", ""),
        state=None if row is None else state_word(row),
        parents=given.get("after", {}),
        condition=_condition(given),
        at_end=given.get("finally"),
        layer=layer,
        row=row,
        detail=detail,
        counts=None if row is None else _item_counts(row),
        signal=given.get("signal", ""),
    )


def _item_counts(row: WorkflowStep) -> dict[str, int] | None:
    """How many items have completed, failed and are left; None for a step without items."""
    if not row.items:
        return None
    done, failed = row.items_done or 0, row.items_failed or 0
    counts = {"completed": done - failed, "failed": failed, "waiting": row.items - done}
    return {state: count for state, count in counts.items() if count}


def state_word(row: WorkflowStep | StepResult) -> str:
    """The state of a step, or of an item: of a released one, that of its lease."""
    if row.state != "running":
        return row.state
    return row.lease_state if row.lease_state in ("pending", "scheduled") else "running"


def _edge(source: Step, target: Step, wants: str) -> Edge:
    if not source.has_ended:
        return Edge(source.name, target.name, wants, None)
    holds = wants == "ended" or (
        source.state in ("failed", "cancelled") if wants == "failed" else source.state == wants
    )
    return Edge(source.name, target.name, wants, holds)


def _after(parent: str, wants: str) -> str:
    return {
        "completed": parent,
        "failed": f"{parent} if that fails",
        "ended": f"{parent} whether or not that fails",
    }.get(wants, parent)


def _condition(given: Mapping[str, Any]) -> str:
    parts = []
    if given.get("join") == "any":
        parts.append("released by the first of its parents")
    if "finally" in given:
        when = {"ended": "in any case"}.get(given["finally"], f"if the run is {given['finally']}")
        parts.append(f"runs when all else has ended, {when}")
    if "run_if" in given:
        parts.append("skipped unless " + " and ".join(_holds(each) for each in given["run_if"]))
    return "; ".join(parts)


def _holds(condition: Mapping[str, Any]) -> str:
    """`input.size gte 10`: a condition of `run_if` in short."""
    start = "input" if "input" in condition else str(condition.get("step", ""))
    path = condition.get("input") if "input" in condition else condition.get("path")
    place = ".".join([start, *(str(part) for part in path or ())])
    values = ", ".join(str(value) for value in condition.get("values", ()))
    return f"{place} {condition.get('op', '')} {values}".strip()
