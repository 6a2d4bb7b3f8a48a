"""The documented order of claims, of one claimer and of several at once."""

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from threading import Lock
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import event, given, settings
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
        options["labels"] = {"n": str(self.label)}
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


CLAIMERS = 4
LEASES = 60


class Counter:
    """How many claims had ended when each claim began: what it may have missed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.taken: list[UUID] = []

    def now(self) -> set[UUID]:
        """What has been given out by now."""
        with self._lock:
            return set(self.taken)

    def add(self, leases: list[UUID]) -> None:
        """Note what a claim gave."""
        with self._lock:
            self.taken += leases


@pytest.mark.parametrize("capacity", [{}, {"cpu_milli": 10**6}], ids=["plain", "counted"])
@given(
    priorities=st.lists(st.integers(-2, 2), min_size=LEASES, max_size=LEASES),
    shape=st.tuples(st.sampled_from([1, 3, 40]), st.integers(1, 5)),
)
@settings(max_examples=10)
def test_each_gets_one_of_the_best(
    dsn: str, capacity: dict[str, int], priorities: list[int], shape: tuple[int, int]
) -> None:
    """A claim passes by what the others hold at that moment, and nothing else."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        drain_at_once(Api(conn), dsn, capacity, priorities, shape)


def drain_at_once(
    api: Api, dsn: str, capacity: dict[str, int], priorities: list[int], shape: tuple[int, int]
) -> None:
    """Spawn the leases and let all claimers loose on them."""
    classes, qty = shape
    queue = api.queue()
    nodes = [api.node(capacity=capacity) for _ in range(CLAIMERS)]
    batch: list[Row] = [
        {"task": "t", "options": {"priority": p, "labels": {"n": str(n % classes)}}}
        for n, p in enumerate(priorities)
    ]
    rows = api.rows("spawn_leases", queue=queue, leases=batch)
    leases = [row["lease_id"] for row in rows]
    order = sorted(range(LEASES), key=lambda n: (-priorities[n], n))
    best = [leases[n] for n in order]
    counter = Counter()

    def drain(node: Any) -> list[str]:
        late: list[str] = []
        with psycopg.connect(dsn, autocommit=True) as own:
            while True:
                before = counter.now()
                got = Api(own).claimed(node, queue, qty=qty)
                open_then = [lease for lease in best if lease not in before]
                # others hold up to a batch each, and finish some more before this one looks
                ended = counter.now() - before
                reach = qty * CLAIMERS + len(ended)
                late += [str(lease) for lease in got if lease not in open_then[:reach]]
                counter.add(got)
                if not got:
                    return late

    with ThreadPoolExecutor(CLAIMERS) as pool:
        assert [late for found in pool.map(drain, nodes) for late in found] == []
    rest = [lease for node in nodes for lease in api.claimed(node, queue, qty=LEASES)]
    assert sorted(counter.taken + rest) == sorted(leases)
    api.rows("drop_queue", queue=queue, force=True)
    for node in nodes:
        api.rows("deregister_node", node=node.node_id)
