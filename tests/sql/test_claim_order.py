"""The order in which a node gets what it may run, and how far a claim looks for it."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, token
from tests.sql.warm import WarmApi

NOWHERE = {"require": [{"label": "gone", "op": "exists"}]}


@pytest.fixture(params=[pytest.param("cold", marks=pytest.mark.thorough), "warm"])
def api(request: pytest.FixtureRequest, conn: psycopg.Connection) -> Api:
    """Nodes at their first claim, and such as have claimed from the queue before."""
    return Api(conn) if request.param == "cold" else WarmApi(conn)


def gpus(count: int) -> list[Row]:
    """Devices of a spec."""
    return [{"resource_id": str(uuid4()), "model": "T4"} for _ in range(count)]


def preferring(weight: int, **tags: Any) -> Row:
    """A placement that prefers nodes with these tags."""
    return {"prefer": [{"weight": weight, "when": {"tags": tags}}]}


def test_priority_first_and_higher_is_sooner(api: Api, queue: str) -> None:
    leases = {priority: api.spawn(queue, priority=priority) for priority in (0, -32768, 5, 32767)}
    ordered = [leases[priority] for priority in (32767, 5, 0, -32768)]
    assert api.claimed(api.node(), queue, qty=4) == ordered
    leases_of_one_class = [api.spawn(queue) for _ in range(12)]  # by age
    assert [api.claimed(api.node(), queue)[0] for _ in range(12)] == leases_of_one_class


@pytest.mark.parametrize("tuning", [{}, {"window_size": 20, "probe_size": 1}], ids=["usual", "one probe"])
def test_priority_over_score(api: Api, tuning: Row) -> None:
    """The oldest entry of the lowest rank is always seen, even if its class is not probed."""
    queue, node = api.queue(patience=0, tuning=tuning), api.node(labels={"zone": "a"})
    liked = api.spawn(queue, placement=preferring(100, zone="a"))
    urgent = api.spawn(queue, priority=1, placement=preferring(-100, zone="a"))
    assert api.claimed(node, queue, qty=2) == [urgent, liked]


def test_affinity_over_age(api: Api) -> None:
    queue, node = api.queue(patience=0), api.node(labels={"zone": "a"})
    wanted = [("elsewhere", preferring(100, zone="b")), ("away", preferring(-100, zone="a"))]
    wanted += [("neutral", {}), ("here", preferring(1, zone="a"))]
    leases = {name: api.spawn(queue, placement=placement) for name, placement in wanted}
    rows = api.claim(node, queue, qty=4)
    expected = [leases[name] for name in ("here", "elsewhere", "neutral", "away")]
    assert [row["lease_id"] for row in rows] == expected
    assert [row["score"] for row in rows] == [1000, 0, 0, -1000]


def test_affinity_with_and_without_a_node(api: Api) -> None:
    queue, node, other = api.queue(patience=0), api.node(), api.node()
    away = api.spawn(queue, anti_affinity_with=str(node.node_id))
    neutral = api.spawn(queue)
    here = api.spawn(queue, affinity_with=str(node.node_id))
    assert api.claimed(node, queue, qty=3) == [here, away, neutral]
    again = [api.spawn(queue, affinity_with=str(node.node_id)), api.spawn(queue)]
    again.append(api.spawn(queue, anti_affinity_with=str(node.node_id)))
    assert api.claimed(other, queue, qty=3) == [again[2], again[0], again[1]]


def test_a_retry_goes_to_the_end_of_its_rank(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    first = api.running(queue, node)
    second = api.spawn(queue)
    api.rows("fail_lease", **token(first), error={})
    low = api.spawn(queue, priority=-1)
    assert api.claimed(node, queue, qty=3) == [second, first["lease_id"], low]


def test_waiting_is_worth_priority(api: Api, node: Node, clock: Clock) -> None:
    """With an ageing step, each step of waiting counts as one priority; without, none."""
    for step, expected in [(60, ["old", "new"]), (0, ["new", "old"])]:
        queue = api.queue(ageing_step=step)
        leases = {api.spawn(queue): "old"}
        clock.advance(timedelta(seconds=300))
        leases[api.spawn(queue, priority=3)] = "new"
        assert [leases[lease] for lease in api.claimed(node, queue, qty=2)] == expected


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_best_of_two_queues(api: Api, names: str) -> None:
    """Even if all score alike, and what heads the better queue is not for this node."""
    low, high = (f"{name}-of-{names}-{type(api).__name__}" for name in names)
    for name in (low, high):
        api.rows("create_queue", queue=name)
    node = api.node()
    waiting = [api.spawn(low) for _ in range(3)]
    batch = [{"task": "t", "options": {"priority": 10, "placement": NOWHERE}}] * 120
    api.rows("spawn_leases", queue=high, leases=batch)
    urgent = api.spawn(high, priority=10)
    for queues in ([low, high], [high, low]):
        claims = api.claim(node, *queues, qty=2)
        assert [row["lease_id"] for row in claims] == [urgent, waiting[0]]
        for row in reversed(claims):
            api.rows("release_lease", **token(row))
        waiting = [*waiting[1:], waiting[0]]


def test_a_batch_of_heads_of_several_ranks(api: Api) -> None:
    """Behind a front that is not for the node: by priority, not by age."""
    queue, node = api.queue(tuning={"window_size": 1}), api.node()
    api.spawn(queue, priority=9, placement=NOWHERE)
    assert api.claimed(node, queue) == []
    leases = {priority: api.spawn(queue, priority=priority) for priority in (0, 5, -5)}
    assert api.claimed(node, queue) == [leases.pop(5)]  # the class is known from here on
    leases[7] = api.spawn(queue, priority=7)
    assert api.claimed(node, queue, qty=3) == [leases[7], leases[0], leases[-5]]


@pytest.mark.parametrize("classes", [10, 20])
def test_the_best_of_two_queues_with_many_classes(api: Api, classes: int) -> None:
    """A head that one queue's window does not reach comes before another queue's front."""
    tuning = {"window_size": 5}
    low, high, node = api.queue(tuning=tuning), api.queue(tuning=tuning), api.node()
    usual = [{"task": "t", "options": {"labels": {str(n): "n"}}} for n in range(classes)]
    api.rows("spawn_leases", queue=low, leases=usual)
    batch = [{"task": "t", "options": {"priority": 10, "placement": NOWHERE}}] * 6
    api.rows("spawn_leases", queue=high, leases=batch)
    urgent = api.spawn(high, priority=5)
    assert api.claimed(node, low, high) == [urgent]


@pytest.mark.parametrize("qty", [1, 4])
@pytest.mark.parametrize("probe", [1, 3])
@pytest.mark.parametrize("window", [2, 5, 100])
@pytest.mark.thorough
def test_the_front_of_two_queues_with_more_classes_than_are_probed(
    api: Api, window: int, probe: int, qty: int
) -> None:
    """The head of a probed class takes nothing before what stands older at a front.

    Nor does a batch take what one front shows before what the other does not show yet.
    """
    tuning = {"probe_size": probe, "window_size": window}
    queues = [api.queue(tuning=tuning) for _ in range(2)]
    turns = [queues[n % 7 % 3 // 2] for n in range(20)]
    leases = [api.spawn(queue, labels={str(n * 7 % 5): "n"}) for n, queue in enumerate(turns)]
    node = api.node()
    assert [lease for _ in leases for lease in api.claimed(node, *queues, qty=qty)] == leases


class TestFit:
    """The recipe of sql/placement/judge.sql, on a node with GPUs."""

    def order(self, api: Api, spec: Row, needs: dict[str, Row], **policy: Any) -> list[str]:
        """The names in the order in which the node gets them."""
        queue, node = api.queue(**policy), api.node(**spec)
        names: dict[UUID, str] = {
            api.spawn(queue, placement={"resources": resources}): name for name, resources in needs.items()
        }
        api.rows("reap")  # reckons how many nodes could take each
        return [names[lease] for lease in api.claimed(node, queue, qty=10)]

    @pytest.mark.thorough
    def test_more_gpus_first_and_none_last(self, api: Api) -> None:
        needs: dict[str, Row] = {"cpu": {"cpu_milli": 1}, "one": {"gpu": 1}, "four": {"gpu": 4}}
        needs |= {"two": {"gpu": 2}, "share": {"gpu_milli": 500}}
        got = self.order(api, {"gpus": gpus(8)}, needs)
        assert (got[:2], got[-1]) == (["four", "two"], "cpu")

    def test_what_is_left_is_of_most_use(self, api: Api) -> None:
        """Least residue on the device, cpu that other GPUs need, and work that few nodes can take."""
        needs: dict[str, Row] = {"small": {"gpu_milli": 100}, "large": {"gpu_milli": 900}}
        assert self.order(api, {"gpus": gpus(4)}, needs) == ["large", "small"]
        spec = {"gpus": gpus(4), "capacity": {"cpu_milli": 8000}}
        needs = {"greedy": {"gpu": 1, "cpu_milli": 6000}, "modest": {"gpu": 1, "cpu_milli": 1000}}
        assert self.order(api, spec, needs) == ["modest", "greedy"]
        api.node(gpus=gpus(2))
        needs = {"anywhere": {"gpu": 1}, "here": {"gpu": 1, "license": 1}}
        spec = {"gpus": gpus(2), "capacity": {"license": 5}}
        assert self.order(api, spec, needs) == ["here", "anywhere"]

    @pytest.mark.thorough
    def test_what_few_can_take_comes_before_more_gpus(self, api: Api) -> None:
        """One node of five is worth more than 12 GPUs; with a quarter of the weight, 3."""
        api.leave_all()  # the fleet is what is asked of
        for _ in range(4):
            api.node(gpus=gpus(8))
        needs: dict[str, Row] = {"six": {"gpu": 6}, "here": {"gpu": 1, "license": 1}}
        spec = {"gpus": gpus(8), "capacity": {"license": 5}}
        assert self.order(api, spec, needs) == ["here", "six"]

    def test_without_weight_age_decides(self, api: Api) -> None:
        needs: dict[str, Row] = {"one": {"gpu": 1}, "four": {"gpu": 4}}
        spec = {"gpus": gpus(8)}
        assert self.order(api, spec, needs, tuning={"weight_fit": 0}) == ["one", "four"]

    def test_affinity_weighs_more(self, api: Api, queue: str) -> None:
        node = api.node(gpus=gpus(8), labels={"zone": "a"})
        api.needing(queue, gpu=8)
        liked = api.spawn(queue, placement=preferring(100, zone="a") | {"resources": {"gpu_milli": 1}})
        assert api.claimed(node, queue) == [liked]


class TestWindowAndProbe:
    """A claim walks `window_size` entries of the order and the heads of `probe_size` classes."""

    def backlog(self, api: Api, window: int, probe: int) -> str:
        """A queue whose front this zone may not run."""
        queue = api.queue(tuning={"window_size": window, "probe_size": probe})
        batch = [{"task": "t", "options": {"affinity_tags": {"zone": "b"}}}] * 60
        api.rows("spawn_leases", queue=queue, leases=batch)
        return queue

    def test_beyond_the_window_the_probe_finds_it(self, api: Api) -> None:
        """Without a probe the window is all."""
        node = api.node(labels={"zone": "a"})
        for window, probe, found in [(20, 1, 1), (20, 0, 0), (61, 0, 1)]:
            queue = self.backlog(api, window=window, probe=probe)
            api.spawn(queue)
            assert len(api.claim(node, queue)) == found
        queue = self.backlog(api, window=1, probe=1)  # probes go to the best classes
        api.spawn(queue)
        liked = api.spawn(queue, placement=preferring(100, zone="a"))
        assert api.claimed(node, queue) == [liked]
