"""Calls of workers and operators in any order, in transactions with savepoints that stay open."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.pq import TransactionStatus

from tests.calls import Calls, Row
from tests.fix_db import fresh_database
from tests.flows import Flow, broken, fail, finish, step

pytestmark = pytest.mark.thorough

SESSIONS = 4
LONGEST = 60  # rounds in which a world must end
LOCKED = "55P03"  # lock_timeout: operators wait for settlements, and for each other
ODD = ["completed", "completed", "failed", "ended"]  # what an edge wants
POLICIES = ["finish_running", "fail_fast", "continue"]
MODES = ["failed", "failed_and_downstream", "all"]


class Session:
    """A session whose transactions and savepoints come and go."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        self.calls = Calls(conn)
        self.savepoints = 0

    @property
    def is_open(self) -> bool:
        return self.conn.info.transaction_status is not TransactionStatus.IDLE

    def end(self, how: str) -> None:
        """Commit or roll back, if a transaction is open."""
        if self.is_open:
            self.conn.execute(how.encode())
        self.savepoints = 0

    def nest(self) -> None:
        """Begin a transaction, or set a savepoint in it."""
        self.savepoints += self.is_open
        self.conn.execute(f"savepoint s{self.savepoints}".encode() if self.is_open else b"begin")

    def undo(self) -> None:
        """Roll back to the last savepoint, or the whole transaction."""
        if self.savepoints:
            self.conn.execute(f"rollback to s{self.savepoints}".encode())
        else:
            self.end("rollback")


class World:
    """Two runs of drawn graphs, and the sessions that call for them."""

    def __init__(self, looks: Calls, sessions: list[Session], chance: Random) -> None:
        self.looks = looks
        self.sessions = sessions
        self.chance = chance
        for session in sessions:  # what a failed example left open
            session.end("rollback")
        policy = chance.choice(POLICIES)
        self.flows = [Flow(looks, self._graph(), on_failure=policy) for _ in range(2)]

    def _graph(self) -> list[Row]:
        steps = []
        for number in range(self.chance.randint(2, 8)):
            parents = [p for p in range(number) if self.chance.random() < 0.4]
            edges = [{"step": f"s{p}", "on": self.chance.choice(ODD)} for p in parents]
            join = {"join": self.chance.choice(["all", "all", "any"])} if edges else {}
            steps.append(step(f"s{number}", *edges, **join))
        last = step("last", **{"finally": self.chance.choice(["ended", "failed", "cancelled"])})
        return [*steps, last]

    def call(self) -> None:
        """One call of one session. A refusal, or a lock of another's, undoes the last part."""
        session, flow = self.chance.choice(self.sessions), self.chance.choice(self.flows)
        try:
            self.chance.choice(CALLS)(self, session, flow)
        except psycopg.DatabaseError as error:
            if error.sqlstate != LOCKED and not str(error.sqlstate).startswith("QH"):
                raise
            if session.is_open:
                session.undo()

    def running(self) -> list[Row]:
        """The claims of both runs as others see them."""
        return [row for f in self.flows for row in self.looks.rows("node_claims", node=f.node)]

    def settle(self, session: Session, how: Callable[[Calls, Row], None]) -> None:
        """Settle one of the claims, if there is one."""
        claims = self.running()
        if claims:
            try:
                how(session.calls, self.chance.choice(claims))
            except psycopg.errors.LockNotAvailable as error:
                raise AssertionError("a settlement waits") from error

    def finish(self) -> None:
        """End all transactions, then all steps."""
        for session in self.sessions:
            session.end(self.chance.choice(["commit", "rollback"]))
        assert broken_of(self.flows) == []
        for flow in self.flows:
            if flow.state == "paused":
                self.looks.rows("resume_workflow_run", run=flow.run)
        for _ in range(LONGEST):
            for flow in self.flows:
                flow.claims()
            for claim in self.running():
                finish(self.looks, claim)
            self.looks.rows("advance_workflows")
            self.looks.rows("reap")
            if all(flow.get()["finished_at"] for flow in self.flows):
                break
        assert [flow.state for flow in self.flows if flow.get()["finished_at"] is None] == []
        assert broken_of(self.flows) == []


Call = Callable[[World, Session, Flow], object]


def claim(world: World, session: Session, flow: Flow) -> None:
    flow.claims(session.calls)


def settle_all(world: World, session: Session, flow: Flow) -> None:
    claims = world.running()
    world.chance.shuffle(claims)
    session.calls.rows(
        "complete_leases",
        lease_ids=[c["lease_id"] for c in claims],
        tokens=[c["claim_token"] for c in claims],
    )


def release(calls: Calls, claim: Row) -> None:
    calls.rows("release_lease", lease=claim["lease_id"], token=claim["claim_token"])


def of_run(function: str) -> Call:
    return lambda _, session, flow: session.calls.rows(function, run=flow.run)


def retry(world: World, session: Session, flow: Flow) -> None:
    options = {"mode": world.chance.choice(MODES)}
    session.calls.rows("retry_workflow_run", run=flow.run, options=options)


def skip(world: World, session: Session, flow: Flow) -> None:
    session.calls.rows("skip_step", run=flow.run, step=f"s{world.chance.randrange(8)}")


def update(world: World, session: Session, flow: Flow) -> None:
    """It asks for what no node has, but does not require it."""
    when = {"rack": [world.chance.randrange(2)]}
    steps = {"steps": [f"s{world.chance.randrange(8)}"]} if world.chance.random() < 0.5 else {}
    changes = {"placement": {"prefer": [{"weight": 10, "when": when}]}}
    session.calls.rows("update_steps", run=flow.run, changes=changes, **steps)


def advance(world: World, session: Session, flow: Flow) -> None:
    session.calls.rows("advance_workflows", limit=world.chance.choice([1, 2, 200]))


CALLS: list[Call] = [
    *[lambda _w, session, _f: session.nest()] * 3,
    *[lambda _w, session, _f: session.undo()] * 2,
    *[lambda _w, session, _f: session.end("commit")] * 2,
    *[claim] * 3,
    *[lambda world, session, _: world.settle(session, finish)] * 4,
    *[lambda world, session, _: world.settle(session, fail)] * 2,
    lambda world, session, _: world.settle(session, release),
    settle_all,
    *[of_run(f"{name}_workflow_run") for name in ("pause", "resume", "cancel")],
    retry,
    skip,
    update,
    advance,
    lambda _w, session, _f: session.calls.rows("reap"),
]


@pytest.fixture(scope="module")
def sessions(server_dsn: str, template: str) -> Iterator[list[Session]]:
    """Sessions on one database, the first of which keeps no transaction open."""
    with fresh_database(server_dsn, template) as dsn, ExitStack() as stack:
        made = []
        for _ in range(SESSIONS + 1):
            conn = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            conn.execute("set lock_timeout = '100ms'")
            made.append(Session(conn))
        yield made


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), calls=st.integers(5, 45))
def test_any_order_of_calls_leaves_runs_that_end(sessions: list[Session], seed: int, calls: int) -> None:
    looks, *others = sessions
    world = World(looks.calls, others, Random(seed))
    for _ in range(calls):
        world.call()
    assert broken_of(world.flows) == []
    world.finish()


def broken_of(flows: list[Flow]) -> list[Row]:
    """The invariants of these runs that do not hold; failed examples leave runs of their own."""
    ids = {str(flow.run) for flow in flows}
    return [row for row in broken(flows[0].calls) if row["subject"] in ids]
