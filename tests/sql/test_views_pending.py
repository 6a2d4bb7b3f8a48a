"""Why leases are pending: nodes counted by class, and the one thing to say about each class."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api
from tests.sql.explained import class_of
from tests.sql.placed import spawn_placed

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("lone")]


def reason(api: Api, queue: str, **more: Any) -> Row:
    """The only pending class of the queue."""
    return api.row("pending_reasons", queue=queue, **more)


def counts(row: Row) -> tuple[int, int, int]:
    """Nodes that match, that are free, that are near."""
    return row["nodes_matching"], row["nodes_free"], row["nodes_near"]


def test_a_class_that_only_waits_for_its_turn(api: Api, queue: str, clock: Clock) -> None:
    since = clock.now()
    api.node(labels={"gpu": "A100"})
    api.node(labels={"gpu": "T4"})
    wanted = {"require": [{"label": "gpu", "op": "in", "values": ["A100"]}]}
    for _ in range(3):
        spawn_placed(api, queue, **wanted)
        clock.advance(timedelta(seconds=1))
    row = reason(api, queue)
    assert counts(row) == (1, 1, 0)
    assert (row["pending"], row["oldest_at"]) == (3, since)
    assert (row["queue"], row["task_name"], row["tenant"]) == (queue, "work", "")
    assert (row["code"], row["permanent"]) == (None, False)
    assert row["message"] == "1 node could take it now"
    assert "gpu" in row["words"]
    assert api.rows("pending_reasons", queue=queue, kind="no_match") == []
    assert api.rows("pending_reasons", queue=queue, kind="contended") == []


def test_the_one_thing_that_keeps_nodes_out_is_named(api: Api) -> None:
    """Two nodes lack the label alone; one lacks more, and so is not near, as none is if all lack more."""
    queue, other = api.queue(), api.queue()
    for zone, model in (("a", "T4"), ("a", "T4"), ("b", "T4")):
        api.node(labels={"zone": zone, "model": model})
    label = {"label": "model", "op": "in", "values": ["A100"]}
    spawn_placed(api, queue, require=[label, {"tags": {"zone": "a"}}])
    row = reason(api, queue)
    assert counts(row) == (0, 0, 2)
    assert (row["code"], row["permanent"]) == ("label_mismatch", True)
    assert "2 nodes would match but for model in A100" in row["message"]
    assert '"T4"' in row["message"]
    assert api.rows("pending_reasons", queue=queue, kind="no_match") == [row]
    spawn_placed(api, other, require=[{"tags": {"zone": "c"}}, {"label": "card", "op": "exists"}])
    row = reason(api, other)
    assert counts(row) == (0, 0, 0)
    assert row["code"] in ("label_missing", "label_mismatch")
    assert row["message"].startswith("no live node can run it: most lack ")


def test_capacity_that_no_node_has_is_permanent(api: Api) -> None:
    """Capacity in use is contention."""
    queue, other = api.queue(), api.queue()
    node = api.node(capacity={"cpu_milli": 4000, "memory_mib": 1024})
    api.needing(queue, cpu_milli=8000)
    row = reason(api, queue)
    assert counts(row) == (0, 0, 1)
    assert (row["code"], row["permanent"]) == ("insufficient_capacity", True)
    assert "cpu_milli" in row["message"]
    assert row["resources"] == {"cpu_milli": 8000}
    api.needing(other, cpu_milli=3000)
    api.claim(node, other)
    api.needing(other, cpu_milli=2000)
    row = reason(api, other)
    assert counts(row) == (1, 0, 0)
    assert (row["code"], row["permanent"]) == ("nodes_support_but_contended", False)
    assert api.rows("pending_reasons", queue=other, kind="contended") == [row]


def test_taints_that_are_not_tolerated(api: Api) -> None:
    """And isolation that no node honours."""
    queue, other = api.queue(), api.queue()
    api.node(taints=[{"key": "dedicated", "value": "film", "effect": "no_schedule"}])
    api.spawn(queue)
    row = reason(api, queue)
    assert (counts(row), row["code"]) == ((0, 0, 1), "untolerated_taint")
    assert "dedicated=film" in row["message"]
    tolerate = [{"key": "dedicated", "op": "exists"}]
    spawn_placed(api, queue, tolerate=tolerate)
    assert sorted(map(counts, api.rows("pending_reasons", queue=queue))) == [(0, 0, 1), (1, 1, 0)]
    spawn_placed(api, other, tolerate=tolerate, isolation={"cpu": "whole_core"})
    row = reason(api, other)
    assert (counts(row), row["code"]) == ((0, 0, 1), "no_node_supports_class")


def test_each_kind_of_node_honours_its_own(api: Api, queue: str) -> None:
    """A share of a GPU goes to nodes that share them, whatever other nodes there are."""
    for mode in ("exclusive", "fractional", "fractional"):
        api.node(gpus=[{"resource_id": str(uuid4())}], gpu_share_mode=mode)
    api.needing(queue, gpu_milli=500)
    assert counts(reason(api, queue)) == (2, 2, 0)


def test_whole_cores(api: Api, queue: str) -> None:
    cores = [{"core": number, "numa": number // 2} for number in range(4)]
    node = api.node(cores=cores, cpu_isolation=["whole_core", "strict_isolated"])
    strict = {"isolation": {"cpu": "strict_isolated"}}
    spawn_placed(api, queue, resources={"cpu_milli": 3000}, **strict)  # of one NUMA node: two
    assert counts(reason(api, queue)) == (0, 0, 1)
    other = api.queue()
    spawn_placed(api, other, resources={"cpu_milli": 2000}, **strict)
    assert counts(reason(api, other)) == (1, 1, 0)
    for _ in range(2):
        spawn_placed(api, other, resources={"cpu_milli": 1000}, isolation={"cpu": "whole_core"})
    assert len(api.claim(node, other, qty=3)) > 1
    third = api.queue()
    spawn_placed(api, third, resources={"cpu_milli": 3000}, isolation={"cpu": "whole_core"})
    assert counts(reason(api, third)) == (1, 0, 0)


def test_named_nodes_resources_and_devices(api: Api, queue: str) -> None:
    device, card = str(uuid4()), str(uuid4())
    node = api.node(gpus=[{"resource_id": device}])
    api.node(gpus=[{"resource_id": str(uuid4())}], resources=[card])
    api.node()
    for require, gpus, expected in (
        ([{"node": str(node.node_id)}], 0, 1),
        ([{"node": str(node.node_id), "away": True}], 0, 2),
        ([{"node": str(uuid4())}], 0, 0),
        ([{"resource": card}], 0, 1),
        ([{"resource": card, "away": True}], 0, 2),
        ([{"resource": card}], 1, 1),
        ([{"resource": device}], 1, 1),
        ([{"resource": device}], 2, 0),
        ([{"any": [[{"resource": card}], [{"node": str(node.node_id)}]]}], 0, 2),
    ):
        lease = spawn_placed(api, queue, require=require, resources={"gpu": gpus})
        assert counts(reason(api, queue))[:2] == (expected, expected), require
        api.rows("cancel_lease", lease=lease)
    spawn_placed(api, queue, require=[{"resource": device}], resources={"gpu_milli": 600})
    api.claim(node, queue)
    spawn_placed(api, queue, require=[{"resource": device}], resources={"gpu_milli": 600})
    assert counts(reason(api, queue)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("expr", "matching"),
    [
        ({"tags": {"net": {"speed": 100}}}, 1),
        ({"any": [[{"tags": {"net": {"speed": 100}}}], [{"rack": 2}]]}, 2),
        ({"label": "has", "op": "in", "other_label": "wants"}, 1),
        ({"any": [[{"label": "has", "op": "in", "other_label": "wants"}], [{"rack": 2}]]}, 2),
        ({"rack": [1]}, 2),
        ({"rack": [1], "away": True}, 1),
        ({"any": [[{"trust": "x"}], [{"rack": 2}]]}, 2),
    ],
)
def test_nodes_are_told_apart_by_all_that_is_asked(api: Api, expr: dict[str, Any], matching: int) -> None:
    queue = api.queue()
    node = api.node(labels={"net": {"speed": 100, "kind": "ib"}, "has": 1, "wants": 2}, rack=1)
    api.node(labels={"net": {"speed": 10}, "has": 1, "wants": 1}, rack=1)
    api.node(labels={"net": {"kind": "ib"}, "has": 2}, rack=2)
    api.rows("attest_node", node=node.node_id, domain="x")
    spawn_placed(api, queue, require=[expr])
    assert reason(api, queue)["nodes_matching"] == matching


def test_trust_that_expires(api: Api, queue: str, clock: Clock) -> None:
    node = api.node(heartbeat_timeout="1 hour")
    api.node(heartbeat_timeout="1 hour")
    spawn_placed(api, queue, require=[{"trust": "acme"}])
    assert reason(api, queue)["code"] == "trust_not_attested"
    until = clock.now() + timedelta(seconds=10)
    api.rows("attest_node", node=node.node_id, domain="acme", expires_at=until)
    assert counts(reason(api, queue)) == (1, 1, 0)
    clock.advance(timedelta(seconds=11))
    assert counts(reason(api, queue)) == (0, 0, 2)


def test_nodes_that_are_cordoned_or_silent(api: Api, queue: str, clock: Clock) -> None:
    node = api.node(labels={"zone": "a"})
    other = api.node(labels={"zone": "b"}, heartbeat_timeout="1 hour")
    spawn_placed(api, queue, require=[{"tags": {"zone": "a"}}])
    assert reason(api, queue)["nodes_matching"] == 1
    api.rows("cordon_node", node=node.node_id)
    row = reason(api, queue)
    assert counts(row) == (0, 0, 1)
    assert (row["code"], row["permanent"]) == ("node_draining", False)
    api.rows("uncordon_node", node=node.node_id)
    clock.advance(timedelta(minutes=2))
    row = reason(api, queue)
    assert (counts(row), row["code"], row["permanent"]) == ((0, 0, 1), "node_not_live", False)
    api.rows("cordon_node", node=other.node_id)
    row = reason(api, queue)
    assert (row["code"], row["nodes_near"]) == ("node_not_live", 0)
    assert row["message"] == "1 node matches, but it is silent"


def test_silent_and_cordoned_nodes_that_could_not_run_it(api: Api, queue: str, clock: Clock) -> None:
    """The headline says so, and that waiting will not help, as explain_lease does."""
    node = api.node(labels={"zone": "b"})
    lease = spawn_placed(api, queue, require=[{"tags": {"zone": "a"}}])
    api.rows("cordon_node", node=node.node_id)
    row = reason(api, queue)
    assert (row["code"], row["permanent"]) == ("node_draining", True)
    assert row["message"] == ("1 live node, all cordoned; without the cordons, none could run it either")
    clock.advance(timedelta(minutes=2))
    row = reason(api, queue)
    assert (row["code"], row["permanent"]) == ("node_not_live", True)
    assert row["message"] == (
        "the only node is silent: the last sign of life came 2 min ago; back again, none of them could run it"
        " either"
    )
    assert api.row("explain_lease", lease=lease)["permanent"]


def test_a_paused_queue_says_so_first(api: Api) -> None:
    """Without any node that is said; where nothing is pending there is no row."""
    queue, other = api.queue(), api.queue()
    spawn_placed(api, queue, require=[{"tags": {"zone": "a"}}])
    row = reason(api, queue)
    assert counts(row) == (0, 0, 0)
    assert (row["code"], row["message"]) == ("no_nodes", "no node is registered")
    api.rows("pause_queue", queue=queue)
    row = reason(api, queue)
    assert (row["code"], row["permanent"], row["nodes_matching"]) == ("queue_paused", False, 0)
    api.node()
    assert reason(api, queue)["code"] == "queue_paused"
    api.spawn(other, delay=60)
    assert api.rows("pending_reasons", queue=other) == []


def test_one_that_waits_for_a_better_node(api: Api, clock: Clock) -> None:
    queue = api.queue(patience=10)
    api.node(labels={"zone": "b"}, heartbeat_timeout="1 hour")
    better = {"tags": {"zone": "a"}}
    spawn_placed(api, queue, prefer=[{"weight": 1, "when": better}])
    assert reason(api, queue)["code"] == "waiting_for_preferred"
    clock.advance(timedelta(seconds=11))
    assert reason(api, queue)["code"] is None


def test_what_other_leases_do_takes_nodes_away(api: Api) -> None:
    """Away from others, both ways; at most so many; and with others that run somewhere."""
    queue = api.queue(patience=0)
    racks = [api.node(rack=rack) for rack in (1, 1, 2)]
    rows: list[Row] = []

    def free(app: str, **placement: Any) -> UUID:
        """Spawn the only lease that waits; it is noted how many of three matching nodes are free."""
        lease = api.spawn(queue, placement=placement, labels={"app": app})
        api.settle_terms()
        rows.append(api.row("pending_reasons", queue=queue))
        assert rows[-1]["nodes_matching"] == 3
        return lease

    def near(app: str, **more: Any) -> list[Row]:
        return [{"leases": {"labels": {"app": app}}, "domain": "rack", **more}]

    lease = free("db", require=near("db", away=True))
    assert api.claimed(racks[0], queue) == [lease]
    # the one that runs keeps away from the second one
    waits = [("db", near("db", away=True)), ("db", []), ("web", near("db")), ("web", near("nobody"))]
    for app, require in waits:
        api.rows("cancel_lease", lease=free(app, require=require))
    assert [row["nodes_free"] for row in rows] == [3, 1, 1, 2, 0]
    assert (rows[-1]["code"], rows[-1]["permanent"]) == ("required_affinity_unsatisfiable", False)
    cap = {"domain": "rack", "max_per_domain": 1, "select": {"labels": {"app": "web"}}}
    lease = free("web", spread=[cap])
    assert api.claimed(racks[2], queue) == [lease]
    free("web", spread=[cap])
    assert [row["nodes_free"] for row in rows[-2:]] == [3, 2]


def test_order_limit_and_one_class(api: Api, queue: str, clock: Clock) -> None:
    api.node()
    old = api.spawn(queue, patience=1)
    clock.advance(timedelta(seconds=1))
    many = api.spawn(queue, patience=2)
    api.spawn(queue, patience=2)
    first, second = class_of(api, old), class_of(api, many)
    assert [r["class_id"] for r in api.rows("pending_reasons", queue=queue)] == [first, second]
    by_count = api.rows("pending_reasons", queue=queue, order="pending", limit=1)
    assert [row["class_id"] for row in by_count] == [second]
    [only] = api.rows("pending_reasons", **{"class": second})
    assert (only["class_id"], only["pending"]) == (second, 2)


def test_the_views_are_the_functions(api: Api, queue: str) -> None:
    api.node(capacity={"cpu_milli": 1000})
    for cpu in (500, 2000):
        api.needing(queue, cpu_milli=cpu)
    wanted = {row["class_id"] for row in api.rows("pending_reasons", queue=queue)}
    views = {"pending_reasons": [0, 1], "pending_no_match": [0], "pending_contended": []}
    for view, matching in views.items():
        query = f"select class_id, nodes_matching from hwqueue.{view} where queue = %s"
        rows = api.conn.execute(query.encode(), [queue]).fetchall()
        assert sorted(row[1] for row in rows) == matching
        assert {row[0] for row in rows} <= wanted


def test_what_is_refused(api: Api) -> None:
    api.refused("QHQ01", "pending_reasons", queue="nobody-made-it")
    assert api.fault("pending_reasons", kind="x") == "p_kind"
    assert api.fault("pending_reasons", order="x") == "p_order"
