"""Random graphs with random outcomes, settled by several sessions, against a model in Python."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwqueue.testing import Clock, install_clock
from tests.calls import Calls, Row
from tests.fix_db import fresh_database
from tests.flows import Flow, broken, each, fail, finish, finish_all
from tests.patience import looks

pytestmark = pytest.mark.thorough

SESSIONS = 3
EFFORT = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@dataclass
class Graph:
    """A drawn workflow: of each step its edges, its kind, whether any suffices, if it may fail.

    A wait that is to fail times out after an hour, one that is to complete waits for ever.
    """

    edges: list[dict[int, str]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    any: list[bool] = field(default_factory=list)
    ignores: list[bool] = field(default_factory=list)

    def waits(self) -> set[int]:
        """The steps that wait for a signal of their own name."""
        return {number for number, kind in enumerate(self.kinds) if kind == "wait"}

    def drawn(self, outcomes: list[str]) -> list[str]:
        """The outcomes, where a sleep always completes."""
        return [
            "completed" if kind == "sleep" else outcome
            for kind, outcome in zip(self.kinds, outcomes, strict=True)
        ]

    def steps(self, outcomes: list[str]) -> list[Row]:
        """As a specification has them."""
        timeouts = [{"timeout": 3600} if o == "failed" else {} for o in outcomes]
        kinds: list[dict[str, Row]] = [
            {
                "task": {"task": "work"},
                "sleep": {"kind": "sleep", "for": 3600},
                "wait": {"kind": "wait", "signal": f"s{number}", **timeouts[number]},
            }
            for number in range(len(self.kinds))
        ]
        return [
            kinds[number][self.kinds[number]]
            | {
                "name": f"s{number}",
                "after": [{"step": f"s{p}", "on": wants} for p, wants in edges.items()],
                "join": "any" if self.any[number] else "all",
            }
            | ({"on_failure": "ignore"} if self.ignores[number] else {})
            for number, edges in enumerate(self.edges)
        ]

    def counts_as(self, number: int, state: str) -> str:
        """How a state counts for children."""
        return "completed" if state == "failed" and self.ignores[number] else state

    def final(self, outcomes: list[str], fixed: dict[int, str]) -> list[str]:
        """The state of every step in the end, where each branch goes on after failures."""
        states: list[str] = []
        for number, edges in enumerate(self.edges):
            holds = [
                wants == "ended" or self.counts_as(p, states[p]) == wants
                for p, wants in edges.items()
            ]
            due = (any(holds) if self.any[number] else all(holds)) or not edges
            states.append(fixed.get(number, outcomes[number] if due else "skipped"))
        return states

    def again(self, states: list[str]) -> set[int]:
        """What a retry of what failed runs again."""
        found: set[int] = set()
        for number, edges in enumerate(self.edges):
            follows = not self.any[number] and any(p in found for p in edges)
            if states[number] != "completed" or follows:
                found.add(number)
        return found


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    graph = Graph()
    for number in range(draw(st.integers(1, 8))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else set()
        wants = st.sampled_from(["completed", "completed", "completed", "failed", "ended"])
        graph.edges.append({p: draw(wants) for p in sorted(parents)})
        graph.any.append(draw(st.integers(0, 3)) == 0)
        graph.ignores.append(draw(st.integers(0, 5)) == 0)
        graph.kinds.append(draw(st.sampled_from(["task", "task", "task", "sleep", "wait"])))
    return graph


@pytest.fixture(scope="module")
def sessions(server_dsn: str, template: str) -> Iterator[list[Calls]]:
    """Sessions on one database; whoever waited for another would fail."""
    with fresh_database(server_dsn, template) as dsn, ExitStack() as stack:
        made = []
        for _ in range(SESSIONS):
            conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            conn.execute("set lock_timeout = '300ms'")
            made.append(Calls(conn))
        install_clock(made[0].conn)
        yield made


class Driver:
    """Settles what a run releases, in sessions whose transactions stay open for a while."""

    def __init__(
        self, sessions: list[Calls], flow: Flow, graph: Graph, data: st.DataObject
    ) -> None:
        self.looks, *self.others = sessions
        self.graph = graph
        self.clock = Clock(self.looks.conn)
        self.unsent: set[str] = set()
        self.flow = flow
        self.data = data
        self.claims: dict[str, Row] = {}
        self.open: dict[int, dict[str, Row | None]] = {}
        for calls in self.others:  # what a failed example left open
            calls.conn.rollback()

    def claim(self) -> None:
        """Claim what is released."""
        self.claims |= self.flow.claims()

    def run(self, outcomes: list[str]) -> None:
        """Until the run has ended."""
        self.unsent |= {f"s{n}" for n in self.graph.waits() if outcomes[n] == "completed"}
        for _ in range(400):
            self.claim()
            if not self.claims and not self.open:
                for _ in looks():
                    if self.looks.row("advance_workflows")["released"] == 0:
                        break
                if self.flow.get()["finished_at"] is not None:
                    return
                self.claim()
                if not self.claims:
                    self._pass_time()
            self._act(outcomes)
        raise AssertionError("the run does not end")

    def _pass_time(self) -> None:
        """Nothing runs: let an hour pass, unless a wait is to get its signal first."""
        open_steps = {n for n, row in self.flow.steps().items() if row["state"] == "running"}
        if awaited := sorted(self.unsent & open_steps):
            self._send(self.looks, awaited[0])
            return
        assert open_steps, "nothing is released, and the run has not ended"
        self.clock.advance(timedelta(hours=1))
        self.looks.rows("advance_workflows")

    def _send(self, calls: Calls, name: str) -> None:
        """Send a step its signal."""
        self.unsent.discard(name)
        calls.rows("signal_workflow_run", run=self.flow.run, name=name, payload=name)

    def cancel(self) -> None:
        """Cancel the run; an open settlement that ends it comes first."""
        try:
            self.looks.rows("cancel_workflow_run", run=self.flow.run)
        except psycopg.errors.LockNotAvailable:
            for who in list(self.open):
                self.open.pop(who)
                self.others[who].conn.execute("commit")
            if self.flow.get()["finished_at"] is None:
                self.looks.rows("cancel_workflow_run", run=self.flow.run)

    def _act(self, outcomes: list[str]) -> None:
        who = self.data.draw(st.integers(0, len(self.others)), label="who")
        if who == len(self.others):
            if self.data.draw(st.booleans(), label="advance"):
                self.looks.rows("advance_workflows")
            else:
                assert broken_of(self.flow) == []
        elif who in self.open:
            settled = self.open.pop(who)
            commits = self.data.draw(st.integers(0, 4), label="commits") > 0
            self.others[who].conn.execute("commit" if commits else "rollback")
            if not commits:
                self.unsent |= {n for n, claim in settled.items() if claim is None}
                self.claims |= {n: claim for n, claim in settled.items() if claim is not None}
        elif ends := sorted({*self.claims, *self._sendable()}):
            name = self.data.draw(st.sampled_from(ends), label="ends")
            calls = self.others[who]
            stays_open = self.data.draw(st.booleans(), label="stays open")
            if stays_open:
                calls.conn.execute("begin")
            if name in self.claims:
                done = self._settle(calls, name, outcomes, stays_open)
            else:
                self._send(calls, name)
                done = {name: None}
            if stays_open:
                self.open[who] = done

    def _settle(
        self, calls: Calls, name: str, outcomes: list[str], stays_open: bool
    ) -> dict[str, Row | None]:
        completes = outcomes[int(name[1:])] == "completed"
        names = [name]
        # a batch holds the node, so it does not stay open
        batch = completes and not stays_open
        if batch and self.data.draw(st.booleans(), label="with all others"):
            names = [n for n in self.claims if outcomes[int(n[1:])] == "completed"]
        settled = {n: self.claims.pop(n) for n in names}
        if len(settled) > 1:
            finish_all(calls, settled.values())
        elif completes:
            finish(calls, settled[name])
        else:
            fail(calls, settled[name])
        return {**settled}

    def _sendable(self) -> set[str]:
        return self.unsent if self.flow.get()["finished_at"] is None else set()


@EFFORT
@given(graph=graphs(), data=st.data())
def test_runs_end_as_the_model_says(
    sessions: list[Calls], graph: Graph, data: st.DataObject
) -> None:
    count = len(graph.edges)
    outcome = st.sampled_from(["completed", "completed", "failed"])
    outcomes = graph.drawn(
        data.draw(st.lists(outcome, min_size=count, max_size=count), label="outcomes")
    )
    flow = Flow(sessions[0], graph.steps(outcomes), on_failure="continue")
    driver = Driver(sessions, flow, graph, data)
    expected = graph.final(outcomes, {})
    driver.run(outcomes)
    assert states(flow, count) == expected
    failed = any(s == "failed" and not graph.ignores[n] for n, s in enumerate(expected))
    assert flow.state == ("failed" if failed else "completed")
    assert broken_of(flow) == []
    if failed and data.draw(st.booleans(), label="retry"):
        again = graph.again(expected)
        kept = {n: s for n, s in enumerate(expected) if n not in again}
        sessions[0].rows("retry_workflow_run", run=flow.run)
        driver.run(["completed"] * count)
        assert states(flow, count) == graph.final(["completed"] * count, kept)
        assert flow.state == "completed"
        assert broken_of(flow) == []


class MapDriver(Driver):
    """Settles the items of a map, and never sees more of them open than its window has."""

    def __init__(self, sessions: list[Calls], flow: Flow, data: st.DataObject, window: int) -> None:
        super().__init__(sessions, flow, Graph(), data)
        self.window = window
        self.ran: set[str] = set()

    def claim(self) -> None:
        """Claim what is released."""
        found = {f"s{number}": claim for number, claim in self.flow.items().items()}
        self.ran |= set(found)
        self.claims |= found
        assert len(self.claims) + len(self.open) <= self.window

    def _pass_time(self) -> None:
        raise AssertionError("nothing is released, and the run has not ended")


@EFFORT
@given(
    outcomes=st.lists(st.sampled_from(["completed", "completed", "failed"]), max_size=8),
    window=st.integers(1, 4),
    tolerate=st.integers(0, 3),
    data=st.data(),
)
def test_maps_end_as_the_model_says(
    sessions: list[Calls], outcomes: list[str], window: int, tolerate: int, data: st.DataObject
) -> None:
    """Any window, any failures, items that are settled while other settlements stay open."""
    count = len(outcomes)
    steps = [each("m", list(range(count)), max_parallel=window, tolerate=tolerate)]
    flow = Flow(sessions[0], steps)
    driver = MapDriver(sessions, flow, data, window)
    driver.run(outcomes)
    failed = outcomes.count("failed")
    row = flow.steps()["m"]
    assert flow.state == row["state"] == ("failed" if failed > tolerate else "completed")
    assert broken_of(flow) == []
    if failed <= tolerate:
        assert (row["items_done"], row["items_failed"]) == (count, failed)
        assert driver.ran == {f"s{number}" for number in range(count)}
        return
    assert row["items_failed"] > tolerate
    completed = {name for name in driver.ran if outcomes[int(name[1:])] == "completed"}
    again = MapDriver(sessions, flow, data, window)
    sessions[0].rows("retry_workflow_run", run=flow.run)
    again.run(["completed"] * count)
    assert again.ran == {f"s{number}" for number in range(count)} - completed
    assert flow.state == "completed"
    assert broken_of(flow) == []


@EFFORT
@given(graph=graphs(), data=st.data())
def test_a_run_that_stops_releases_nothing_more(
    sessions: list[Calls], graph: Graph, data: st.DataObject
) -> None:
    """By a cancel or a first failure, after some steps and with transactions open."""
    count = len(graph.edges)
    how = data.draw(st.sampled_from(["finish_running", "fail_fast", "cancel"]), label="how")
    policy = "continue" if how == "cancel" else how
    outcomes = graph.drawn(
        data.draw(
            st.lists(st.sampled_from(["completed", "failed"]), min_size=count, max_size=count)
        )
    )
    flow = Flow(sessions[0], graph.steps(outcomes), on_failure=policy)
    driver = Driver(sessions, flow, graph, data)
    for _ in range(data.draw(st.integers(0, 6), label="before")):
        driver.claims |= flow.claims()
        driver._act(outcomes)
    if how == "cancel" and flow.get()["finished_at"] is None:
        driver.cancel()
    driver.run(outcomes)
    run = flow.get()
    assert run["state"] in ("completed", "failed", "cancelled")
    ended = states(flow, count)
    assert set(ended) <= {"completed", "failed", "cancelled", "skipped"}
    assert broken_of(flow) == []
    if run["state"] == "failed":
        sessions[0].rows("retry_workflow_run", run=flow.run)
        driver.run(["completed"] * count)
        again = graph.again(ended)
        kept = {n: s for n, s in enumerate(ended) if n not in again}
        assert states(flow, count) == graph.final(["completed"] * count, kept)
        assert flow.state == "completed"


def broken_of(flow: Flow) -> list[Row]:
    """The invariants of the run that do not hold; failed examples leave runs of their own."""
    return [row for row in broken(flow.calls) if row["subject"] == str(flow.run)]


def states(flow: Flow, count: int) -> list[str]:
    """The states of the steps in the order of the model."""
    found = flow.states()
    return [found[f"s{number}"] for number in range(count)]
