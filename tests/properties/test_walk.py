"""A random walk: whatever the order of calls, promises hold and leases move only as declared.

It is steered by hypothesis and shrinks to the shortest failing story; test_storm.py has several sessions.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.oracle.tables import violations
from tests.properties.strategies import NODE_IDS, RESOURCE_IDS, STRANGER
from tests.transitions import transitions

WALK_CALLS = 2
SWEEPS = {"due", "expire", "deadline"}
QUEUE_POLICY = {"retry": {"kind": "fixed", "base": 1, "jitter": 0}, "max_attempts": 3, "claim_timeout": 30}
SPEC = {
    "instance_id": "first",
    "labels": {"zone": "a"},
    "capacity": {"cpu_milli": 4000, "license": 1},
    "gpus": [
        {"resource_id": RESOURCE_IDS[0], "model": "T4", "memory_mib": 16384},
        {"resource_id": RESOURCE_IDS[1], "model": "T4", "memory_mib": 16384},
    ],
    "slots": 4,
}
REQUESTS: list[dict[str, int]] = [
    *({}, {"cpu_milli": 1500}, {"gpu": 1}, {"gpu": 2}, {"gpu_milli": 400}, {"license": 1}),
    {"cpu_milli": 500, "gpu_milli": 700},
]
REQUIRE: list[list[dict[str, Any]]] = [
    *([], [{"label": "zone", "op": "in", "values": ["a"]}], [{"node": str(NODE_IDS[0])}]),
    [{"node": STRANGER, "away": True}],
]


def node_spec(node: UUID, **changes: Any) -> dict[str, Any]:
    """The spec of a walk's node; every node has two devices of its own."""
    gpus = [
        {"resource_id": str(UUID(int=node.int ^ index)), "model": "T4", "memory_mib": 16384}
        for index in (1, 2)
    ]
    return SPEC | {"name": f"node-{node}", "gpus": gpus} | changes


def sqlstate_of(call: Callable[[], object]) -> str | None:
    """The SQLSTATE with which the queue refuses the call, None if it does not."""
    try:
        call()
    except psycopg.DatabaseError as error:
        return error.sqlstate
    return None


class Walk(RuleBasedStateMachine):
    """Calls of every kind, one at a time, on two nodes."""

    conn: psycopg.Connection[Any]
    clock: Clock
    _queues = count()

    def __init__(self) -> None:
        super().__init__()
        self.direct = Direct(self.conn)
        self.queue = f"walk-{next(self._queues)}"
        self.direct.create_queue(self.queue, QUEUE_POLICY)
        self.epochs = {n: self.direct.register(n, node_spec(n)) for n in NODE_IDS[:2]}
        self.instances = dict.fromkeys(self.epochs, 0)
        self.states: dict[UUID, str] = {}
        self.claims: dict[UUID, int] = {}
        self.causes: set[str] = set()
        self.declared = transitions()

    def teardown(self) -> None:
        """Leave nothing that the next walk would find."""
        self.direct.drop_queue(self.queue)
        for node in self.epochs:
            self.direct.deregister(node)

    @rule(
        asked=st.sampled_from(REQUESTS),
        require=st.sampled_from(REQUIRE),
        options=st.sampled_from([{}, {"delay": 5}, {"priority": 3}, {"deadline_in": 20}]),
    )
    def spawn(self, asked: dict[str, int], require: list[Any], options: dict[str, Any]) -> None:
        options = dict(options)
        if "deadline_in" in options:
            after = timedelta(seconds=options.pop("deadline_in"))
            options["deadline"] = (self.clock.now() + after).isoformat()
        placement = {"require": require, "resources": asked}
        row = self.direct.spawn(self.queue, options | {"placement": placement})
        self.states[row["lease_id"]] = "none"
        self.causes = {"spawn"}

    @rule(node=st.sampled_from(NODE_IDS[:2]), qty=st.integers(1, 3))
    def claim(self, node: UUID, qty: int) -> None:
        """A node asks for work."""
        for row in self.direct.claim(self.queue, node, self.epochs[node], qty):
            self.claims[row["lease_id"]] = row["claim_token"]
        self.causes = {"claim"} | SWEEPS

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), outcome=st.sampled_from(["complete", "fail", "give up", "release"]))
    def settle(self, data: st.DataObject, outcome: str) -> None:
        """A worker reports; its claim may have been lost meanwhile."""
        lease = data.draw(st.sampled_from([x for x in self.states if x in self.claims]), label="lease")
        token = self.claims.pop(lease)
        cause = "fail" if outcome == "give up" else outcome
        self.causes = {cause} | SWEEPS
        calls = {
            "complete": lambda: self.direct.complete(lease, token),
            "release": lambda: self.direct.release(lease, token),
            "fail": lambda: self.direct.fail(lease, token),
            "give up": lambda: self.direct.fail(lease, token, retry=False),
        }
        running = self._holds(lease, token)
        refused = sqlstate_of(calls[outcome])
        assert (refused is None) == running, f"{refused} though running is {running}"
        assert refused in {None, "QHL01", "QHL02", "QHL03"}

    @rule(node=st.sampled_from(NODE_IDS[:2]))
    def heartbeat(self, node: UUID) -> None:
        """A node extends what it believes it holds, the other node's claims included."""
        rows = [{"lease_id": lease, "claim_token": t} for lease, t in self.claims.items()]
        verdicts = self.direct.heartbeat(node, self.epochs[node], rows)
        assert {row["lease_id"] for row in verdicts} == set(self.claims)
        self.causes = set(SWEEPS)

    @precondition(lambda self: self.states)
    @rule(data=st.data(), act=st.sampled_from(["cancel", "requeue"]))
    def operate(self, data: st.DataObject, act: str) -> None:
        """An operator cancels or requeues whatever state the lease is in."""
        lease = data.draw(st.sampled_from(list(self.states)), label="lease")
        self.causes = {act}
        call = self.direct.cancel if act == "cancel" else self.direct.requeue
        assert sqlstate_of(lambda: call(lease)) in {None, "QHL03", "QHL07"}

    @rule(seconds=st.sampled_from([2, 10, 40]))
    def reap(self, seconds: int) -> None:
        """Time passes, then a sweep."""
        self.clock.advance(timedelta(seconds=seconds))
        self.direct.reap()
        self.causes = set(SWEEPS)

    @rule(node=st.sampled_from(NODE_IDS[:2]), zone=st.sampled_from(["a", "b"]))
    def relabel(self, node: UUID, zone: str) -> None:
        """The same runtime registers again with other labels: nothing is evicted."""
        spec = node_spec(node, labels={"zone": zone}, instance_id=str(self.instances[node]))
        self.epochs[node] = self.direct.register(node, spec)
        self.causes = {"expire"}

    @rule(node=st.sampled_from(NODE_IDS[:2]))
    def restart(self, node: UUID) -> None:
        """A new runtime on the node: the claims of the old one end."""
        self.instances[node] += 1
        self.relabel(node, "a")

    @invariant()
    def promises_hold(self) -> None:
        """No node holds more than it has, and states moved only as declared."""
        assert violations(self.conn) == []
        now = self.direct.states(self.queue)
        assert now.keys() == self.states.keys()
        for lease, before in self.states.items():
            after = now[lease]
            assert after in self._reachable(before), f"{before} -> {after} by {self.causes}"
            self.states[lease] = after

    def _holds(self, lease: UUID, token: int) -> bool:
        """Whether this very grant of the lease is still running."""
        return any(
            claim == (lease, token)
            for claim in self.conn.execute("select lease_id, claim_token from hwqueue.claim")
        )

    def _reachable(self, state: str) -> set[str]:
        """States that one call may lead to; it may take several declared steps."""
        reached = {state}
        while (
            more := {
                to_state
                for from_state, to_state, cause in self.declared
                if from_state in reached and cause in self.causes
            }
            - reached
        ):
            reached |= more
        return reached


def test_walk(conn: psycopg.Connection, clock: Clock) -> None:
    """The steered walk."""
    clock.freeze()
    machine = type("WalkHere", (Walk,), {"conn": conn, "clock": clock})
    # a walk is many calls: fewer walks than the profile's examples
    walks = settings(max_examples=settings().max_examples // WALK_CALLS)
    run_state_machine_as_test(machine, settings=walks)
