"""What the pages of runs and the command line say of steps, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.dashboard.formatting import asked
from hwqueue.dashboard.runs.graph import Graph, count_states, graph_of
from hwqueue.dashboard.runs.says import says_of
from hwqueue.dashboard.runs.timeline import Timeline, timeline_of
from hwqueue.types import Attempt, StepDetail, WorkflowRun, WorkflowStep
from tests.unit.claims import bare

START = datetime(2030, 1, 31, 12, tzinfo=UTC)
NODE = uuid4()
SPEC: dict[str, Any] = {
    "name": "training",
    "steps": [
        {"name": "fetch", "task": "fetch"},
        {"name": "train", "task": "train", "after": {"fetch": "completed"}},
        {"name": "tell", "task": "tell", "after": {"train": "failed", "fetch": "ended"}},
        {"name": "remove", "task": "remove", "finally": "ended"},
    ],
}


def at(seconds: float) -> datetime:
    """A time of the run."""
    return START + timedelta(seconds=seconds)


def run(state: Any = "running", **more: Any) -> Any:
    given = {"run_id": uuid4(), "workflow": "training", "version": 1, "state": state, "tenant": ""}
    given |= {"input": {}, "attempt": 1, "submitted_at": START, "step_counts": {}, "root_run_id": uuid4()}
    return bare(WorkflowRun, **(given | {"labels": {}, "headers": {}} | more))


def row(number: int, state: Any = "waiting", lease_state: str | None = None, **more: Any) -> Any:
    name = SPEC["steps"][number - 1]["name"]
    given = {"step_no": number, "step": name, "state": state, "task_name": name, "queue": "q"}
    given |= {"lease_state": lease_state, "placement": {}, "waits_for": (), "kind": "task"}
    return bare(WorkflowStep, **(given | more))


def detail(number: int, *seconds: float | None, attempts: tuple[Attempt, ...] = ()) -> StepDetail:
    """When a step was released, due, claimed, ended."""
    times = [None if each is None else at(each) for each in (*seconds, *([None] * 4))][:4]
    return StepDetail(
        step_no=number,
        step=SPEC["steps"][number - 1]["name"],
        class_id=1,
        words="any node",
        released_at=times[0],
        available_at=times[1],
        claimed_at=times[2],
        ended_at=times[3],
        attempts=attempts,
    )


def graph(*rows: WorkflowStep) -> Graph:
    """The graph of a run with these steps."""
    return graph_of(SPEC, rows)


def says(given: WorkflowRun, *rows: WorkflowStep) -> tuple[str, str]:
    """The headline and the second line."""
    names: dict[UUID, str] = {NODE: "n-1"}
    told = says_of(given, graph(*rows).steps, names)
    return f"{told.text} {told.step.name}" if told.step else told.text, told.more


def test_a_definition_has_no_states() -> None:
    found = graph_of(SPEC)
    assert [step.state for step in found.steps] == [None] * 4
    assert [step.layer for step in found.steps] == [0, 1, 2, 3]
    assert [(edge.source, edge.target, edge.wants) for edge in found.edges] == [
        ("fetch", "train", "completed"),
        ("train", "tell", "failed"),
        ("fetch", "tell", "ended"),
    ]
    assert {edge.holds for edge in found.edges} == {None}


def test_states_of_steps_and_how_they_are_counted() -> None:
    rows = [row(1, "running", "pending"), row(2, "running", "claimed"), row(3), row(4, "skipped")]
    assert [step.state for step in graph(*rows).steps] == [*("pending", "running", "waiting", "skipped")]
    assert count_states(["waiting", "completed", "waiting"]) == [("completed", 1), ("waiting", 2)]
    assert count_states({"failed": 2, "completed": 3}) == [("completed", 3), ("failed", 2)]


@pytest.mark.parametrize(
    ("fetch", "train", "holds"),
    [
        ("completed", "waiting", [True, None, True]),
        ("completed", "completed", [True, False, True]),
        ("completed", "failed", [True, True, True]),
        ("completed", "cancelled", [True, True, True]),
        ("failed", "skipped", [False, False, True]),
    ],
)
def test_edges_say_whether_they_hold(fetch: str, train: str, holds: list[bool | None]) -> None:
    found = graph(row(1, fetch), row(2, train), row(3), row(4))
    assert [edge.holds for edge in found.edges] == holds


def test_words_for_who_cannot_see_the_picture() -> None:
    tell = graph(row(1), row(2), row(3), row(4)).steps[2]
    told = "tell; waiting; after train if that fails, fetch whether or not that fails"
    assert tell.words == told
    assert "runs when all else has ended, in any case" in graph_of(SPEC).steps[3].words
    items: dict[str, Any] = {"items": 1000, "items_done": 412, "items_failed": 3}
    first, second, *_ = graph(row(1, "running", **items), row(2)).steps
    assert first.counts == {"completed": 409, "failed": 3, "waiting": 588}
    assert "items: 409 completed, 3 failed, 588 waiting" in first.words
    assert second.counts is None


def lines(*details: StepDetail, ended: float | None = None, **states: Any) -> Timeline:
    """The times of a run that ends, or is looked at, after 100 s."""
    rows = [row(1), row(2), row(3), row(4)]
    for number, (state, lease_state) in enumerate(states.values()):
        rows[number] = replace(rows[number], state=state, lease_state=lease_state)
    given = run() if ended is None else run("failed", finished_at=at(ended))
    return timeline_of(given, graph_of(SPEC, rows, details).steps, at(100))


def spans(found: Timeline, number: int) -> list[tuple[str, float, float, bool]]:
    """Kind, begin and end in per cent, and whether it goes on."""
    return [
        (span.state, span.left, round(span.left + span.width, 3), span.open)
        for span in found.bars[number - 1].spans
    ]


def test_times_tell_the_wait_for_a_node_from_the_wait_for_parents() -> None:
    lost = Attempt(
        attempt=1, claim_token=1, node_id=NODE, outcome="failed", claimed_at=at(50),
        ended_at=at(60), error=None,
    )  # fmt: skip
    found = lines(
        detail(1, 0, 0, 10, 40),
        detail(2, 40, 70, 80, attempts=(lost,)),
        detail(3),
        detail(4),
        fetch=("completed", None),
        train=("running", "claimed"),
    )
    assert spans(found, 1) == [("pending", 0, 10, False), ("ran", 10, 40, False)]
    assert spans(found, 2) == [
        ("parents", 0, 40, False),
        ("pending", 40, 50, False),
        ("lost", 50, 60, False),
        ("pending", 70, 80, False),
        ("ran", 80, 100, True),
    ]
    assert spans(found, 3) == [("parents", 0, 100, True)]
    assert found.bars[1].total("ran") == timedelta(seconds=30)
    assert [round(place) for place, _ in found.ticks] == [0, 15, 30, 45, 60, 75, 90]


def test_a_completed_attempt_that_ran_again_is_no_lost_one() -> None:
    done = Attempt(
        attempt=1, claim_token=1, node_id=NODE, outcome="completed", claimed_at=at(10),
        ended_at=at(30), error=None,
    )  # fmt: skip
    found = lines(detail(1, 0, 50, 60, attempts=(done,)), fetch=("running", "claimed"))
    assert spans(found, 1) == [
        ("pending", 0, 10, False),
        ("ran", 10, 30, False),
        ("pending", 50, 60, False),
        ("ran", 60, 100, True),
    ]
    waits = lines(detail(1, 0, 20), fetch=("running", "pending"))
    assert spans(waits, 1) == [("pending", 20, 100, True)]


@pytest.mark.parametrize(
    ("kind", "state", "ended", "expected"),
    [
        ("sleep", "running", None, ("idle", 40, 100, True)),
        ("wait", "completed", 70, ("idle", 40, 70, False)),
        ("map", "running", None, ("ran", 40, 100, True)),
        ("map", "completed", 70, ("ran", 40, 70, False)),
        ("workflow", "failed", 70, ("lost", 40, 70, False)),
    ],
)
def test_a_step_without_a_lease_has_times(
    kind: str, state: str, ended: float | None, expected: tuple[Any, ...]
) -> None:
    spec = {"steps": [SPEC["steps"][0], SPEC["steps"][1] | {"kind": kind}]}
    rows = [row(1, "completed"), row(2, state, kind=kind)]
    times = [detail(1, 0, 0, 10, 40), detail(2, 40, None, None, ended)]
    found = timeline_of(run(), graph_of(spec, rows, times).steps, at(100))
    assert spans(found, 2) == [("parents", 0, 40, False), expected]
    assert found.has_idle == (expected[0] == "idle")
    assert graph_of(spec, rows, times).steps[1].begun_at == at(40)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("sleep", "1 other step waits for a signal or a time, too."),
        ("workflow", "1 other step goes on, too."),
        ("map", "1 other step goes on, too."),
    ],
)
def test_what_else_a_run_waits_for(kind: str, more: str) -> None:
    spec = {"steps": [SPEC["steps"][0] | {"kind": "wait"}, SPEC["steps"][1] | {"kind": kind}]}
    rows = [row(1, "running", headline="waits"), row(2, "running", headline="waits, too")]
    told = says_of(run(), graph_of(spec, rows).steps, {})
    assert (told.text, told.more) == ("Step fetch waits.", more)


def test_what_a_run_does() -> None:
    pending, going = row(1, "running", "pending"), row(1, "running", "claimed", node_id=NODE)
    assert says(run(), pending, row(2)) == ("Waits for step fetch", "")
    assert says(run(), pending, row(2, "running", "pending")) == (
        "Waits for step fetch",
        "1 other step waits for a node, too.",
    )
    assert says(run(), going, row(2, "running", "pending")) == (
        "Runs fetch on n-1.",
        "train waits for a node.",
    )
    assert says(run(), row(1, "running", "scheduled")) == ("Waits for its time: fetch.", "")
    assert says(run(), row(1)) == ("Waits for upkeep, which releases the steps that are due.", "")
    assert says(run("paused"), going, row(2, reason="run_paused")) == (
        "Paused: 1 step that is due is held.",
        "Runs fetch on n-1.",
    )
    by = {"detail": {"reason": "a mistake", "by": "ada"}}
    told = ("Is being cancelled: 1 step still to end.", "a mistake, by ada")
    assert says(run("cancelling", **by), going) == told
    assert says(run("failing", reason="step_failed"), going)[0] == "Fails: 1 step still to end."


def test_how_a_run_ended() -> None:
    over: dict[str, Any] = {"finished_at": at(90)}
    assert says(run("completed", **over), row(1, "completed")) == ("Completed in 1 min.", "")
    failed = row(1, "failed", error={"type": "OutOfMemory", "message": "killed"})
    assert says(run("failed", **over), failed) == ("Failed after 1 min at step fetch", "OutOfMemory: killed")
    assert says(run("failed", reason="deadline_exceeded", **over), row(1)) == (
        "Failed after 1 min.",
        "deadline exceeded",
    )
    assert says(run("cancelled", **over), row(1))[0] == "Cancelled after 1 min."


def test_until_when_a_run_waits_is_a_time() -> None:
    """The words of the step end with it, in UTC; the page has it in the viewer's zone."""
    spec = {"steps": [SPEC["steps"][0] | {"kind": "wait"}]}
    words = "waits for signal not until noon"  # the signal is any text
    waits = row(1, "running", headline=f"{words} until 2030-01-31T12:00:05Z", due_at=at(5))
    told = says_of(run(), graph_of(spec, [waits]).steps, {})
    assert (told.text, told.until) == (f"Step fetch {words}", at(5))


def rule(label: str, op: str, *values: Any) -> dict[str, Any]:
    return {"label": label, "op": op, **({"values": list(values)} if values else {})}


def test_parts_are_under_those_who_ask_them() -> None:
    placement = {
        "require": [rule("kernel", "in", "6.8"), rule("nvlink", "exists"), rule("zone", "in", "b")],
        "resources": {"gpu": 4, "memory_mib": 4096},
        "isolation": {"gpu": "device_exclusive"},
        "prefer": [{"when": [{"rack": [7]}], "weight": 100}, {"when": [{"node": ["x"]}], "weight": -9}],
        "strength": 5,
    }
    came_from = {
        "require": [["workflow"], ["step"], ["workflow", "submission"]],
        "resources": {"gpu": ["step"], "memory_mib": ["task"]},
        "isolation": {"gpu": ["step"]},
        "prefer": [["near train -> rack 7"], ["away from fetch -> node box"]],
        "strength": ["task"],
    }
    assert asked(placement, came_from) == [
        ("workflow", ["kernel in 6.8"]),
        ("step", ["has nvlink", "4 GPU", "GPU device_exclusive"]),
        ("workflow and submission", ["zone in b"]),
        ("task", ["4 GiB", "strength 5"]),
        ("near train", ["prefers rack 7"]),
        ("away from fetch", ["prefers not node box"]),
    ]
