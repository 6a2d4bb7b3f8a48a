"""What a node remembers as blocked is forgotten as soon as it may be claimed; deadlines that have passed.

Time stands still here unless a test moves it: nothing is forgotten because it is old.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, completed, outlive

pytestmark = [pytest.mark.usefixtures("clock"), pytest.mark.thorough]


FREE = {"labels": {"app": "free"}}
AWAY = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
NO_WEB = {"leases": {"labels": {"app": "web"}}, "domain": "rack", "away": True}
ZONE_B = [{"weight": 100, "when": {"tags": {"zone": "b"}}}]
_racks = iter(range(1000, 9999))


class Scene:
    """Leases that may not come to a node now, each of a class of its own, before others.

    Attributes:
        node: Has claimed behind them, so that it remembers them.
        better: A node that some of them would rather have.
        held: What the node runs.
        blocked: In the order of the queue.
        free: What the node may run, behind those.
        web: The service of what may not come, where it keeps away from another one (db).
    """

    def __init__(self, api: Api, why: str, queues: int) -> None:
        api.leave_all()
        self.api, self.why = api, why
        self.web, self.db = str(uuid4()), str(uuid4())
        away = {"anti_affinity_services": [self.db]}
        api.rows("set_service_policy", service=self.web, policy=away)
        self.spec: Row = {"rack": next(_racks), "labels": {"zone": "a"}}
        if why == "capacity":
            self.spec["capacity"] = {"cpu_milli": 8000}
        self.node = api.node(**self.spec)
        self.better = api.node(labels={"zone": "b"}, rack=next(_racks))
        self.queues = [api.queue(patience=60) for _ in range(queues)]
        self.queue, other = self.queues[0], api.queue()
        api.spawn(other, "work", None, **self.holds())
        api.settle_terms()
        [self.held] = api.claim(self.node, other)
        self.blocked = [
            api.spawn(self.queue, "work", None, **self._blocked(number))
            for number in range(210 if why == "capacity" else 12)  # up to 200 have their row anyway
        ]
        self.free = [api.spawn(self.queue, **FREE) for _ in range(8)]
        api.settle_terms()
        outlive(api.conn)
        while self.take() not in self.free[2:]:  # at first they are tried one by one
            pass
        remembered = "select cardinality(classes) from hwqueue.node_candidates where node_id = %s"
        assert api.one(remembered, self.node.node_id) < 12
        self.free = [lease for lease in self.free if api.state(lease) == "pending"]

    def holds(self) -> Row:
        """The lease that is in the way."""
        needs = {"resources": {"cpu_milli": 4000}}
        by_reason: dict[str, Row] = {
            "away": {"labels": {"app": "db"}},
            "kept out": {"placement": {"require": [NO_WEB]}},
            "capacity": {"placement": needs},
            "patience": {},
            "service": {"service_id": self.db},
        }
        return by_reason[self.why]

    def _blocked(self, number: int) -> Row:
        labels = {str(number): "n"}
        by_reason: dict[str, Row] = {
            "away": {"labels": labels, "placement": {"require": [AWAY]}},
            "kept out": {"labels": labels | {"app": "web"}},
            "capacity": {"placement": {"resources": {"cpu_milli": 4001 + number}}},
            "patience": {"labels": labels, "placement": {"prefer": ZONE_B}},
            "service": {"labels": labels, "service_id": self.web},
        }
        return by_reason[self.why]

    def take(self, node: Node | None = None) -> UUID | None:
        """What a claim of one lease gets, which completes at once."""
        claims = self.api.claim(node or self.node, *self.queues)
        self.api.complete(*claims)
        return claims[0]["lease_id"] if claims else None


@pytest.fixture(params=[1, 2], ids=["one queue", "two"])
def queues(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("why", ["away", "kept out", "capacity", "patience", "service"])
def test_what_was_in_the_way_ends(api: Api, why: str, queues: int) -> None:
    """The better node goes; a service keeps away no more, whether upkeep has come by or not."""
    scene = Scene(api, why, queues)
    assert scene.take() == scene.free[0]
    if why == "patience":
        api.rows("deregister_node", node=scene.better.node_id)
    elif why == "service":
        api.rows("set_service_policy", service=scene.web, policy={"anti_affinity_services": []})
    else:
        api.complete(scene.held)
    assert [scene.take(), scene.take()] == scene.blocked[:2]


def test_patience_ends(api: Api, clock: Clock, queues: int) -> None:
    scene = Scene(api, "patience", queues)
    clock.advance(timedelta(seconds=59))
    for node in (scene.node, scene.better):
        api.rows("heartbeat_node", **node.who, claims=[])
    assert [scene.take(), scene.take()] == scene.free[:2]
    clock.advance(timedelta(seconds=1))
    assert scene.take() == scene.blocked[0]


def test_the_queue_has_less_patience(api: Api, queues: int) -> None:
    scene = Scene(api, "patience", queues)
    api.rows("set_queue_policy", queue=scene.queue, policy={"patience": 0})
    assert scene.take() == scene.blocked[0]


@pytest.mark.parametrize("why", ["away", "kept out"])
def test_the_node_moves_to_another_rack(api: Api, why: str, queues: int) -> None:
    """What runs on it goes along, so it ends first, after the look."""
    scene = Scene(api, why, queues)
    elsewhere, queue = api.node(rack=scene.spec["rack"]), api.queue()
    api.running(queue, elsewhere, **scene.holds())
    api.complete(scene.held)
    assert scene.take() == scene.free[0]
    moved = api.node(scene.node.node_id, name=scene.node.name, instance_id="second", rack=next(_racks))
    assert scene.take(moved) == scene.blocked[0]


@pytest.mark.parametrize("why", ["away", "kept out", "capacity", "patience"])
def test_a_new_class_comes_first(api: Api, why: str, queues: int) -> None:
    scene = Scene(api, why, queues)
    assert scene.take() == scene.free[0]
    sooner = api.spawn(scene.queue, labels={"app": "new"}, priority=1)
    assert [scene.take(), scene.take()] == [sooner, scene.free[1]]


def test_what_is_left_is_asked_about_from_now_on(api: Api, queues: int) -> None:
    """A new group keeps the others out, where it runs."""
    scene = Scene(api, "away", queues)
    assert scene.take() == scene.free[0]
    away = {"leases": {"labels": {"app": "free"}}, "domain": "rack", "away": True}
    queue, beside = api.queue(), api.node(rack=scene.spec["rack"])
    keeper = api.spawn(queue, labels={"app": "keeper"}, placement={"require": [away]})
    api.settle_terms()
    claim = api.granted(keeper, beside, queue)
    assert scene.take() is None
    api.complete(claim)
    assert scene.take() == scene.free[1]
    assert api.rows("verify_invariants") == []


@pytest.mark.parametrize("why", ["away", "patience"])
def test_two_classes_that_are_left_keep_their_order(api: Api, dsn: str, why: str, queues: int) -> None:
    """Also where another session holds the first of them."""
    scene = Scene(api, why, queues)
    apps = ["other", "free", "other"]
    first, second, third = [api.spawn(scene.queue, labels={"app": app}) for app in apps]
    assert [scene.take() for _ in scene.free] == scene.free
    with psycopg.connect(dsn) as other:
        other.execute("select from hwqueue.ready where lease_id = %s for update", [first])
        assert scene.take() == second
    assert [scene.take(), scene.take()] == [first, third]


def test_what_is_left_is_counted_where_others_ask_about_it(api: Api, queues: int) -> None:
    scene = Scene(api, "away", queues)
    asked = api.spawn(scene.queue, labels={"app": "db"})
    assert [scene.take() for _ in scene.free] == scene.free
    claim = api.granted(asked, scene.node, *scene.queues)
    assert api.rows("verify_invariants") == []
    api.complete(scene.held)
    assert scene.take() is None
    api.complete(claim)
    assert scene.take() == scene.blocked[0]


@pytest.mark.parametrize("why", ["away", "patience"])
def test_in_the_call_that_settles_and_in_batches(api: Api, why: str) -> None:
    scene = Scene(api, why, 1)
    [claim] = api.claim(scene.node, scene.queue)
    call = {**scene.node.who, "settle": [], "queues": [scene.queue]}
    rows = api.rows("settle_and_claim", **call, **completed(claim))
    found = [row["lease_id"] for row in rows if row["kind"] == "claimed"]
    assert [claim["lease_id"], *found] == scene.free[:2]
    assert api.claimed(scene.node, scene.queue, qty=2) == scene.free[2:4]


def test_classes_that_one_claim_judges_in_two_batches(api: Api) -> None:
    """What is written down after the first batch does not speak for the second."""
    scene = Scene(api, "capacity", 1)
    assert [scene.take() for _ in scene.free] == scene.free
    leases: list[Row] = [
        {"task": "work", "options": {"placement": {"resources": {"cpu_milli": 5000 + number}}}}
        for number in range(500)  # as many as a batch has; they do not fit
    ]
    api.rows("spawn_leases", queue=scene.queue, leases=leases)
    last = api.spawn(scene.queue, labels={"app": "new"})
    outlive(api.conn)
    assert scene.take() == last


def test_classes_that_claims_of_one_transaction_judge(api: Api) -> None:
    scene = Scene(api, "away", 1)
    assert [scene.take() for _ in scene.free] == scene.free
    with api.conn.transaction():
        for app in ("new", "newer"):
            last = api.spawn(scene.queue, labels={"app": app})
            assert scene.take() == last


MINUTE = timedelta(minutes=1)
CAPACITY = {"cpu_milli": 1_000_000}


def accustomed(api: Api, queue: str, node: Node, tasks: list[str]) -> None:
    """Let the node claim leases of all these tasks: each is a class that it then knows."""
    for _ in range(4):
        for task in tasks:
            api.spawn(queue, task)
        claims = api.claim(node, queue, qty=len(tasks))
        assert len(claims) == len(tasks)
        api.complete(*claims)


@pytest.mark.parametrize("qty", [1, 5])
@pytest.mark.parametrize("spec", [{}, {"capacity": CAPACITY}], ids=["uncounted", "counted"])
@pytest.mark.parametrize("classes", [1, 2, 65, 201])
def test_of_classes_that_the_node_knows(api: Api, clock: Clock, classes: int, spec: Row, qty: int) -> None:
    """At the head of the queue, however many classes the node may run."""
    queue, node = api.queue(tuning={"window_size": 10_000}), api.node(**spec)
    tasks = [f"task-{number}" for number in range(classes)]
    accustomed(api, queue, node, tasks)
    late = api.spawn(queue, tasks[0], deadline=(clock.now() + MINUTE).isoformat())
    good = api.spawn(queue, tasks[-1])
    clock.advance(MINUTE)
    assert api.claimed(node, queue, qty=qty) == [good]
    assert api.claimed(node, queue, qty=qty) == []
    assert api.lease(late)["state"] != "claimed"


@pytest.mark.parametrize("classes", [1, 2])
def test_far_behind_the_head(api: Api, queue: str, node: Node, clock: Clock, classes: int) -> None:
    """Where the classes' oldest leases are looked up one class at a time."""
    tasks = [f"task-{number}" for number in range(classes)]
    accustomed(api, queue, node, tasks)
    other = api.queue()
    stopper = api.spawn(queue, "stopper", placement={"require": [{"tags": {"no": "where"}}]})
    fill = [{"task": "fill", "options": {}}] * 1000
    for _ in range(3):  # positions are of all queues: they lie between
        api.rows("spawn_leases", queue=other, leases=fill)
    api.spawn(queue, tasks[0], deadline=(clock.now() + MINUTE).isoformat())
    good = api.spawn(queue, tasks[-1])
    clock.advance(MINUTE)
    assert api.claimed(node, queue) == [good]
    assert api.claimed(node, queue) == []
    assert api.state(stopper) == "pending"


def test_behind_a_lease_that_waits_for_a_better_node(api: Api, clock: Clock) -> None:
    """Of two behind it that have waited long enough, the older one is too late."""
    queue = api.queue(patience=60)
    api.node(labels={"zone": "a"}, heartbeat_timeout=3600)
    worse = api.node(labels={"zone": "b"}, heartbeat_timeout=3600)
    placement = {"prefer": [{"weight": 100, "when": {"tags": {"zone": "a"}}}]}
    deadline = (clock.now() + timedelta(seconds=70)).isoformat()
    late = api.spawn(queue, priority=1, placement=placement, deadline=deadline)
    good = api.spawn(queue, priority=1, placement=placement)
    clock.advance(timedelta(seconds=70))
    first = api.spawn(queue, priority=2, placement=placement)
    assert api.claimed(worse, queue) == [good]
    assert api.claimed(worse, queue) == []
    assert api.state(first) == "pending"
    assert api.state(late) in ("pending", "failed")
