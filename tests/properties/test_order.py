"""The documented order of claims, of one claimer and of several at once."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import uuid4

import psycopg
from hypothesis import event, given
from hypothesis import strategies as st

from tests.calls import Row
from tests.oracle.order import Entry, acceptable
from tests.races.marks import FAR
from tests.sql.api import Api, Node

PASSED = "2020-01-01T00:00:00Z"
ZONE = "a"
PLACEMENTS: list[Row] = [
    {},
    {"require": [{"label": "zone", "op": "in", "values": ["a"]}]},
    {"require": [{"label": "zone", "op": "in", "values": ["b"]}]},
    {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}]},
    {"prefer": [{"weight": -50, "when": {"tags": {"zone": "a"}}}]},
    {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}], "strength": 7},
    {"resources": {"cpu_milli": 1000}},
    {"resources": {"cpu_milli": 3000}},
    {"resources": {"gpu": 1}},
    {"resources": {"gpu": 2, "cpu_milli": 500}},
    {"resources": {"gpu_milli": 300}},
]
TASKS = ("one", "two")
STEPS = 8  # leases claimed in an example


@dataclass(frozen=True)
class Ask:
    """A lease to spawn; `label` makes classes of one placement differ."""

    queue: int
    task: str
    placement: int
    label: int
    priority: int
    passed: bool

    def options(self) -> Row:
        """As spawn_leases takes them."""
        options = {"placement": PLACEMENTS[self.placement], "priority": self.priority}
        options["labels"] = {str(self.label): "n"}
        return options | ({"deadline": PASSED} if self.passed else {})


def asks(labels: int) -> st.SearchStrategy[Ask]:
    """Leases of up to so many classes of each placement."""
    return st.builds(
        Ask,
        queue=st.integers(0, 1),
        task=st.sampled_from(TASKS),
        placement=st.integers(0, len(PLACEMENTS) - 1),
        label=st.integers(0, labels - 1),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        passed=st.sampled_from([False] * 7 + [True]),
    )


@st.composite
def many(draw: st.DrawFn) -> list[Ask]:
    """Hundreds of classes, hundreds of leases before and behind them."""
    random = draw(st.randoms(use_true_random=False))
    labels = draw(st.sampled_from([5, 60]))
    return [
        Ask(
            queue=random.choice([0, 0, 1]),
            task=random.choice(TASKS),
            placement=random.choice([0, 0, 1, 2, 2, 3, 4, 5, 6]),
            label=random.randrange(labels),
            priority=random.choice([0, 0, 1, -1]),
            passed=random.random() < 0.1,
        )
        for _ in range(300)
    ]


few = st.lists(asks(3), min_size=1, max_size=25)
leases = st.one_of(few, few, few, st.lists(asks(30), min_size=20, max_size=60), many())
devices = st.lists(st.just(0), max_size=2).map(
    lambda drawn: [{"resource_id": str(uuid4()), "model": "T4"} for _ in drawn]
)
specs: st.SearchStrategy[Row] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"capacity": st.just({"cpu_milli": 5000})}),
    st.fixed_dictionaries({"slots": st.integers(1, 6)}),
    st.fixed_dictionaries({"capacity": st.just({"cpu_milli": 9000})}, optional={"gpus": devices}),
)
sizes = {"window_size": st.sampled_from([1, 2, 10]), "probe_size": st.sampled_from([0, 1, 3, 20])}
policies = st.fixed_dictionaries({"tuning": st.fixed_dictionaries({}, optional=sizes)})


@dataclass(frozen=True)
class Asking:
    """What the node claims, every time.

    far: The first leases stand far before the rest, so that the front stands still if the node may
        not run them.
    """

    tasks: list[str] | None
    queues: list[int]
    qty: int
    far: bool


askings = st.builds(
    Asking,
    tasks=st.sampled_from([None, None, None, ["one"], ["two", "three"]]),
    queues=st.sampled_from([[0], [1], [0, 1]]),
    qty=st.integers(1, 5),
    far=st.booleans(),
)


@given(asked=leases, spec=specs, policy=policies, asking=askings)
def test_the_documented_order(
    conn: psycopg.Connection, asked: list[Ask], spec: Row, policy: Row, asking: Asking
) -> None:
    """Lease by lease; and a batch is what as many single claims give."""
    api = Api(conn)
    with line(api, asked, spec, policy, asking.far) as shown:
        named = [shown.queues[number] for number in asking.queues]
        tasks, qty = asking.tasks, asking.qty
        tuning = policy["tuning"]
        window, probe = tuning.get("window_size", 100), tuning.get("probe_size", 1000)
        with conn.transaction(force_rollback=True):
            batch = api.claim(shown.node, *named, qty=qty, tasks=tasks)
        got: list[Row] = []
        for step in range(STEPS):
            if not got or spec:  # on a node that counts nothing a claim changes no score
                scores = shown.scores(api, named, tasks)
            waiting = [entry for entry in shown.entries(api) if entry.queue in named]
            expected = acceptable(waiting, scores, window, probe)
            rows = api.claim(shown.node, *named, tasks=tasks)
            got += rows
            assert (rows[0]["lease_id"] if rows else None) in expected, f"step {step}"
            for row in rows:
                assert row["score"] == scores[shown.classes[row["lease_id"]]]
            if not rows:
                break
        event(f"{min(len(got), 3)} or more claimed")
        if window > qty:
            assert [row["lease_id"] for row in batch] == [row["lease_id"] for row in got[:qty]]


@dataclass(frozen=True)
class Line:
    """What was spawned for an example, and the node that claims."""

    queues: list[str]
    node: Node
    asked: Sequence[Ask]
    leases: list[Any]

    @property
    def classes(self) -> dict[Any, Hashable]:
        """The class of each lease, as far as this test tells classes apart."""
        return {lease: self.key(ask) for lease, ask in zip(self.leases, self.asked, strict=True)}

    def key(self, ask: Ask) -> Hashable:
        return (ask.queue, ask.task, ask.placement, ask.label)

    def entries(self, api: Api) -> list[Entry]:
        """What is ready now; the order of spawning is the order of positions."""
        rows = api.conn.execute("select lease_id from hwqueue.ready").fetchall()
        ready = {lease for (lease,) in rows}
        return [
            Entry(lease, self.queues[ask.queue], self.key(ask), -ask.priority, n, ask.passed)
            for n, (lease, ask) in enumerate(zip(self.leases, self.asked, strict=True))
            if lease in ready
        ]

    def scores(self, api: Api, named: list[str], tasks: list[str] | None) -> dict[Hashable, float]:
        """The classes that the node may run now, and how they score: match_nodes knows."""
        asked = [
            ask
            for ask in self.asked
            if self.queues[ask.queue] in named and (tasks is None or ask.task in tasks)
        ]
        found: dict[tuple[int, int], float] = {}
        for queue, placement in {(ask.queue, ask.placement) for ask in asked}:
            options = {"queue": self.queues[queue]}
            rows = api.rows("match_nodes", placement=PLACEMENTS[placement], options=options)
            for row in rows:
                if row["node_id"] == self.node.node_id and row["eligible"]:
                    found[queue, placement] = row["score"]
        return {
            self.key(ask): found[ask.queue, ask.placement]
            for ask in asked
            if (ask.queue, ask.placement) in found
        }


@contextmanager
def line(api: Api, asked: list[Ask], spec: Row, policy: Row, far: bool) -> Iterator[Line]:
    """Spawn an example's leases and register its node; take both away at the end."""
    queues = [api.queue(**policy) for _ in range(2)]
    node = api.node(labels={"zone": ZONE}, **spec)
    spawned = []
    for queue, group in groupby(asked, key=lambda ask: ask.queue):
        batch = [{"task": ask.task, "options": ask.options()} for ask in group]
        for part in (batch[:1], batch[1:]) if far else (batch,):
            spawned += api.rows("spawn_leases", queue=queues[queue], leases=part)
            if far:
                api.conn.execute(FAR)
    try:
        yield Line(queues, node, asked, [row["lease_id"] for row in spawned])
    finally:
        for queue_name in queues:
            api.rows("drop_queue", queue=queue_name, force=True)
        api.rows("deregister_node", node=node.node_id)
