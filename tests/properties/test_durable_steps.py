"""Durable steps of a handler whose workers are killed: nothing saved is done again, none is lost.

A program of steps and waits is run by workers, of which any may vanish with a transaction open,
while senders commit signals or roll them back. A model says what is saved, sent and taken.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.calls import Calls, Row
from tests.fix_db import fresh_database
from tests.sql.api import Api, Node, token

pytestmark = pytest.mark.thorough

LOCKED = ("55P03", "QHL09")  # another session's transaction is open
LOST = "QHL01"
LONGEST = 120  # claims after which a program must have ended


class World:
    """A lease, the worker that may have it, and a sender."""

    def __init__(self, dsn: str, api: Api, sender: psycopg.Connection, chance: Random) -> None:
        self.dsn, self.api, self.sender, self.chance = dsn, api, sender, chance
        sender.rollback()  # what a failed example left open
        self.program = [f"{chance.choice(['step', 'step', 'wait'])}-{n}" for n in range(chance.randint(1, 6))]
        retry = {"kind": "fixed", "base": 0, "jitter": 0}
        self.queue = api.queue(retry=retry, max_attempts=1000)
        self.lease = api.spawn(self.queue)
        self.node = api.node()
        self.saved: dict[str, int] = {}  # by name, what a committed transaction has kept
        self.runs = dict.fromkeys(self.program, 0)
        self.open: list[int] = []  # sent, not yet committed
        self.sent: list[int] = []
        self.tokens: list[Row] = []  # of claims that are over

    def send(self) -> None:
        """Send a signal, or end the transaction of those that were sent."""
        if self.open and self.chance.random() < 0.5:
            self.end_sender()
            return
        number = len(self.sent) + len(self.open)
        arguments = {"lease": self.lease, "name": "go", "payload": Jsonb(number)}
        try:
            Calls(self.sender).rows("signal_lease", **arguments)
        except psycopg.DatabaseError as error:
            if error.sqlstate not in LOCKED:
                raise
            self.sender.rollback()
            self.open.clear()
        else:
            self.open.append(number)

    def end_sender(self) -> None:
        """Commit what was sent, or roll it back."""
        if self.chance.random() < 0.7:
            self.sender.commit()
            self.sent += self.open
        else:
            self.sender.rollback()
        self.open.clear()

    def claim(self) -> Row | None:
        """The lease, unless it waits; what is over with the last claim saves nothing more."""
        rows = self.api.claim(self.node, self.queue)
        if not rows:
            return None
        [claim] = rows
        for stale in self.tokens:
            with pytest.raises(psycopg.Error) as caught:
                self.api.rows("save_checkpoint", **stale, name="stale")
            assert caught.value.sqlstate == LOST
        self.tokens.append(token(claim))
        found = self.api.rows("checkpoints", **token(claim))
        kept = {row["name"]: row["state"] for row in found if row["status"] != "open"}
        assert kept == self.saved
        return claim

    def handle(self, claim: Row) -> bool:
        """Run the handler on a session of its own; whether the lease has ended."""
        with psycopg.connect(self.dsn) as conn:
            conn.execute("set lock_timeout = '100ms'")
            conn.commit()
            calls = Calls(conn)
            for name in self.program:
                if name in self.saved:
                    continue
                if self.chance.random() < 0.4:
                    self.send()
                try:
                    state = self.one(calls, claim, name)
                except psycopg.DatabaseError as error:
                    if error.sqlstate not in LOCKED:
                        raise
                    conn.rollback()
                    return self.die()
                if state is None:  # suspended
                    conn.commit()
                    return False
                if self.chance.random() < 0.25:  # killed before it commits
                    conn.close()
                    return self.die()
                conn.commit()
                self.saved[name] = state
                if self.chance.random() < 0.15:  # killed after it
                    return self.die()
            self.end_sender()  # a settlement waits for it
            calls.rows("complete_lease", **token(claim))
            conn.commit()
        return True

    def one(self, calls: Calls, claim: Row, name: str) -> int | None:
        """Run a step, or take a signal; its state, or null if the lease is suspended."""
        if name.startswith("step"):
            assert name not in self.saved
            self.runs[name] += 1
            state = Jsonb(self.runs[name])
            calls.value("save_checkpoint", **token(claim), name=name, state=state)
            return self.runs[name]
        row = calls.row("take_signal", **token(claim), signal="go", name=name)
        if row["verdict"] == "taken":
            assert row["payload"] == self.sent[self.taken()]
            return int(row["payload"])
        assert len(self.sent) == self.taken(), "a signal that was sent is lost"
        calls.value("suspend_lease", **token(claim), signal="go", name=name)
        return None

    def taken(self) -> int:
        """How many signals have been taken."""
        return sum(name.startswith("wait") for name in self.saved)

    def die(self) -> bool:
        """The worker has gone, and starts again: its claims are over."""
        self.end_sender()
        spec = {"name": self.node.name, "instance_id": str(uuid4())}
        epoch = self.api.value("register_node", node=self.node.node_id, spec=spec)
        self.node = Node(self.node.node_id, epoch, self.node.name)
        self.api.rows("reap")
        return False


@pytest.fixture(scope="module")
def sessions(server_dsn: str, template: str) -> Iterator[tuple[str, Api, psycopg.Connection]]:
    """A database, a session that looks, and one that sends."""
    with fresh_database(server_dsn, template) as dsn, ExitStack() as stack:
        looks = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        sender = stack.enter_context(psycopg.connect(dsn))
        sender.execute("set lock_timeout = '100ms'")  # of a worker that has the claim
        sender.commit()
        yield dsn, Api(looks), sender


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_what_is_saved_is_done_once_and_no_signal_is_lost(
    sessions: tuple[str, Api, psycopg.Connection], seed: int
) -> None:
    world = World(*sessions, Random(seed))
    for _ in range(LONGEST):
        claim = world.claim()
        if claim is None:
            assert len(world.sent) == world.taken(), "a signal is there, and the lease waits"
            world.send()
        elif world.handle(claim):
            break
    world.end_sender()
    assert world.api.state(world.lease) == "completed"
    assert list(world.saved) == world.program
    steps = [name for name in world.program if name.startswith("step")]
    assert [world.saved[name] for name in steps] == [world.runs[name] for name in steps]
