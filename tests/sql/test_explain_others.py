"""What is said of leases that others keep away, and of nodes that are in no place of a domain."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.counted import counting
from tests.patience import looks
from tests.sql.api import Api, Node
from tests.sql.explained import actions, class_of, codes, explain, funnel, label, near

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("lone")]


KEPT_OUT = """
  select hwqueue.recount_terms(k, null, clock_timestamp()) -> 'kept_out'
  from hwqueue.lease l join hwqueue.placement_class k using (class_id)
  where l.lease_id = %s
"""
WEB: Row = {"labels": {"app": "web"}}


@pytest.fixture
def racks(api: Api) -> list[Node]:
    """Two nodes in rack 1, one in rack 2."""
    return [api.node(rack=rack) for rack in (1, 1, 2)]


def leases(domain: str, **more: object) -> Row:
    """A requirement about leases with app=web."""
    return {"leases": WEB, "domain": domain} | more


def test_away_from_what_runs_there(api: Api, racks: list[Node]) -> None:
    """The lease in the way is named, with its service and its place."""
    queue, service = api.queue(), str(uuid4())
    held = api.running(queue, racks[0], labels=WEB["labels"], service_id=service)
    lease = api.spawn(queue, placement={"require": [leases("rack", away=True)]})
    api.settle_terms()
    found = explain(api, lease)
    assert (found["code"], found["nodes_matching"], found["nodes_free"]) == ("ready", 3, 1)
    assert codes(found, racks[2]) == []
    for node in racks[:2]:
        [reason] = near(found, node)["reasons"]
        assert (reason["code"], reason["stage"]) == ("anti_affinity_conflict", "away")
        assert (reason["place"], reason["has"]) == ("rack 1", "1 in rack 1")
        [holder] = reason["holders"]
        assert (holder["lease_id"], holder["node"]) == (str(held["lease_id"]), racks[0].name)
    api.running(api.queue(), racks[2], labels=WEB["labels"])
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("anti_affinity_conflict", False)
    assert found["headline"] == (
        '3 nodes match, none is free: 3 are kept out by "away from leases with app in web in the same rack"'
    )
    taken, other = found["help"]
    assert taken["words"] == f"rack 1 is taken by lease {held['lease_id']} of service {service}"
    assert taken["samples"] == sorted(node.name for node in racks[:2])
    assert other["words"].startswith("rack 2 is taken by lease ")
    assert (funnel(found)["free"], funnel(found)["away"]) == (3, 0)


def test_kept_out_by_one_that_keeps_away(api: Api, queue: str, racks: list[Node]) -> None:
    """Required away holds both ways."""
    kept = api.spawn(queue, placement={"require": [leases("rack", away=True)]})
    api.settle_terms()  # until then it is no candidate
    assert api.claimed(racks[0], queue) == [kept]
    lease = api.spawn(queue, labels=WEB["labels"])
    found = explain(api, lease)
    assert found["nodes_free"] == 1
    for node in racks[:2]:
        [reason] = near(found, node)["reasons"]
        assert (reason["code"], reason["place"]) == ("anti_affinity_conflict", "rack 1")
        assert [h["lease_id"] for h in reason["holders"]] == [str(kept)]
        assert reason["wanted"] == "no lease that keeps away from it"
    assert api.claimed(racks[1], queue) == []
    assert api.claimed(racks[2], queue) == [lease]


def test_who_keeps_away_is_asked_once_for_a_class(api: Api, queue: str, racks: list[Node]) -> None:
    """Not once more for each of its leases that run."""
    away = {"placement": {"require": [leases("rack", away=True)]}}
    kept = [api.spawn(queue, **away) for _ in range(10)]
    api.settle_terms()
    assert set(api.claimed(racks[0], queue, qty=10)) == set(kept)
    lease = api.spawn(api.queue(), labels=WEB["labels"])
    with counting(api.conn) as calls:
        assert api.one(KEPT_OUT, lease) == ["rack"]
    assert calls["term_domain"] == 1


def test_toward_a_group_that_nobody_starts(api: Api, queue: str, racks: list[Node]) -> None:
    lease = api.spawn(queue, placement={"require": [leases("rack")]})
    api.settle_terms()
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("required_affinity_unsatisfiable", False)
    assert found["headline"].endswith('kept out by "with leases with app in web in the same rack"')
    [reason] = near(found, racks[0])["reasons"]
    assert (reason["stage"], reason["has"]) == ("away", "none in rack 1")
    api.running(queue, racks[1], labels=WEB["labels"])
    found = explain(api, lease)
    assert (found["nodes_free"], codes(found, racks[0])) == (2, [])
    assert codes(found, racks[2]) == ["required_affinity_unsatisfiable"]


def test_the_first_of_its_own_group(api: Api, queue: str, racks: list[Node]) -> None:
    options = {"labels": WEB["labels"], "placement": {"require": [leases("rack")]}}
    first, second = (api.spawn(queue, **options) for _ in range(2))
    api.settle_terms()
    assert explain(api, first)["nodes_free"] == 3
    api.granted(first, racks[2], queue)
    found = explain(api, second)
    assert found["nodes_free"] == 1
    assert codes(found, racks[2]) == []


def test_with_a_lease_that_is_pending_itself(api: Api, queue: str, racks: list[Node]) -> None:
    target = api.spawn(queue, placement={"require": [label("gone", 1)]})
    lease = api.spawn(queue, placement={"require": [{"lease": str(target)}]})
    api.settle_terms()
    found = explain(api, lease)
    assert found["code"] == "required_affinity_unsatisfiable"
    assert found["headline"] == f"waits for lease {target}, which is pending itself"
    api.rows("update_lease", lease=target, changes={"placement": {}})
    claim = api.granted(target, racks[1], queue)
    found = explain(api, lease)
    assert (found["nodes_free"], codes(found, racks[1])) == (1, [])
    api.complete(claim)
    assert codes(explain(api, lease), racks[1]) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"max_per_domain": 1}, "at most 1 of leases with app in web in the same rack"),
        ({"max_skew": 1}, "spreads leases with app in web within 1 over rack"),
        ({"domain": "fleet", "max_per_domain": 1}, "at most 1 of leases with app in web in the whole fleet"),
    ],
)
def test_spread(api: Api, racks: list[Node], rule: Row, said: str) -> None:
    """In a rack, or in the whole fleet, of which no node is left then."""
    queue, fleet = api.queue(), "domain" in rule
    placement = {"spread": [{"domain": "rack", "select": WEB} | rule]}
    options = {"labels": WEB["labels"], "placement": placement}
    api.spawn(queue, **options)
    api.settle_terms()
    [claim] = api.claim(racks[0], queue)
    lease = api.spawn(queue, **options)
    found = explain(api, lease)
    code, place = ("spread_exceeded", "the fleet") if fleet else ("ready", "rack 1")
    assert (found["code"], found["nodes_free"]) == (code, 0 if fleet else 1)
    for node in racks if fleet else racks[:2]:
        [reason] = near(found, node)["reasons"]
        assert (reason["code"], reason["stage"]) == ("spread_exceeded", "spread")
        assert (reason["wanted"], reason["place"], reason["has"]) == (said, place, f"1 in {place}")
        assert [h["lease_id"] for h in reason["holders"]] == [str(claim["lease_id"])]
    assert api.claimed(racks[1], queue) == []
    assert api.claimed(racks[2], queue) == ([] if fleet else [lease])


def test_what_is_not_in_force_yet(api: Api, dsn: str, racks: list[Node]) -> None:
    """A session that has written something and stays open is named."""
    queue, labels = api.queue(), {"app": f"new-{uuid4().hex}"}
    away = {"leases": {"labels": labels}, "domain": "rack", "away": True}
    with psycopg.connect(dsn, application_name="slowcoach") as other:
        other.execute("select pg_current_xact_id()")
        held = api.running(queue, racks[0], labels=labels)
        lease = api.spawn(queue, placement={"require": [away]})
        assert api.claimed(racks[2], queue) == []
        found = explain(api, lease)
        assert (found["code"], found["permanent"]) == ("unpublished", False)
        assert "is not published yet: it waits for the transaction of session" in found["headline"]
        # those of other tests on the same server, anywhere, may be older: they end
        for _ in looks():
            found = explain(api, lease)
            if "slowcoach" in found["headline"]:
                break
        assert "slowcoach" in found["headline"]
        assert found["nodes_free"] == 1  # once it is: counted anew
        [reason] = near(found, racks[1])["reasons"]
        assert [h["lease_id"] for h in reason["holders"]] == [str(held["lease_id"])]
        other.rollback()
    api.settle_terms()
    assert explain(api, lease)["code"] == "ready"
    assert api.claimed(racks[2], queue) == [lease]


def test_one_that_was_asked_to_stop(api: Api, queue: str, racks: list[Node], clock: Clock) -> None:
    """It still counts for away, and is told; toward it does not count any more."""
    held = api.running(queue, racks[0], labels=WEB["labels"])
    away = api.spawn(queue, placement={"require": [leases("node", away=True)]})
    toward = api.spawn(queue, placement={"require": [leases("node")]})
    api.settle_terms()
    assert codes(explain(api, toward), racks[0]) == []
    api.rows("cancel_lease", lease=held["lease_id"])
    clock.advance(timedelta(seconds=1))
    [reason] = near(explain(api, away), racks[0])["reasons"]
    assert reason["holders"][0]["stopping"] is True
    found = explain(api, toward)
    assert found["nodes_free"] == 0
    assert codes(found, racks[0]) == ["required_affinity_unsatisfiable"]


def test_several_reasons_of_one_node(api: Api, queue: str, racks: list[Node]) -> None:
    api.running(queue, racks[2], labels=WEB["labels"])
    placement = {"require": [leases("rack", away=True), {"rack": 1}], "resources": {"gpu": 1}}
    lease = api.spawn(queue, placement=placement)
    api.settle_terms()
    found = explain(api, lease)
    assert codes(found, racks[2]) == [
        "required_affinity_unsatisfiable",
        "insufficient_capacity",
        "anti_affinity_conflict",
    ]
    assert codes(found, racks[0]) == ["insufficient_capacity"]
    assert actions(found) == ["resize", "add_node"]


SITE = "label:site"
NO_LABEL = 'the node has no label "site", so it is in no place of that domain'


@pytest.fixture
def fleet(api: Api) -> tuple[Node, Node]:
    """A node inside the domain and one outside; no other nodes live."""
    api.leave_all()
    return api.node(labels={"site": "a"}), api.node(labels={"zone": "a"})


def near_web(domain: str = SITE, **more: Any) -> Row:
    return {"require": [{"leases": WEB, "domain": domain, **more}]}


def spread(domain: str = SITE, **rule: Any) -> Row:
    """Must be spread over a domain."""
    return {"spread": [{"domain": domain, "select": WEB, **rule}]}


def web(api: Api, queue: str, placement: Row) -> UUID:
    """A web lease, when what it asks is in force."""
    lease = api.spawn(queue, placement=placement, labels=WEB["labels"])
    api.settle_terms()
    return lease


def claims_meet(api: Api, node: Node, lease: UUID) -> bool:
    """Whether the lease is among those that each claim of such a node decides about."""
    row = api.conn.execute(
        "select exists (select from hwqueue.eligibility e"
        " join hwqueue.node n on n.profile_id = e.profile_id"
        " where n.node_id = %s and e.class_id = %s)",
        [node.node_id, class_of(api, lease)],
    ).fetchone()
    return row == (True,)


NEEDS = [spread(max_per_domain=2), spread(max_skew=1), near_web(), near_web(away=True, unknown="fail")]


@pytest.mark.parametrize("placement", NEEDS)
def test_it_does_not_match(api: Api, fleet: tuple[Node, Node], placement: Row) -> None:
    """Claims, explanations and views say so."""
    inside, outside = fleet
    queue = api.queue()
    lease = web(api, queue, placement)
    found = explain(api, lease)
    assert (found["nodes_matching"], found["nodes_free"]) == (1, 1)
    assert funnel(found)["labels"] == 1
    [reason] = near(found, outside)["reasons"]
    assert (reason["stage"], reason["code"], reason["permanent"]) == ("labels", "label_missing", True)
    assert reason["message"] == NO_LABEL
    assert (reason["wanted"], reason["has"]) == ("a label site", "no site")
    assert codes(found, inside) == []
    options = {"queue": queue, "labels": WEB["labels"]}
    rows = api.rows("match_nodes", placement=placement, options=options)
    matches = {row["node_id"]: row for row in rows}
    assert matches[inside.node_id]["eligible"]
    assert [r["code"] for r in matches[outside.node_id]["reasons"]] == ["label_missing"]
    assert api.claimed(outside, queue) == []
    assert not claims_meet(api, outside, lease)
    assert api.claimed(inside, queue) == [lease]
    assert claims_meet(api, inside, lease)
    api.rows("deregister_node", node=inside.node_id)
    lease = web(api, queue := api.queue(), placement)
    found = explain(api, lease)
    assert (found["code"], found["permanent"], found["nodes_matching"]) == ("label_missing", True, 0)
    assert found["headline"] == "no live node can run it: 1 node would match but for a label site"
    [row] = [r for r in api.rows("pending_reasons") if r["queue"] == queue]
    assert (row["code"], row["nodes_matching"]) == ("label_missing", 0)
    assert NO_LABEL in row["message"]
    hint = api.row("claim_hint", queues=[queue], node=outside.node_id)
    assert hint["reasons"] == {"label_missing": 1}


def test_a_rack_is_such_a_label(api: Api) -> None:
    api.leave_all()
    node, queue = api.node(), api.queue()
    lease = web(api, queue, spread("rack", max_per_domain=1))
    found = explain(api, lease)
    [reason] = near(found, node)["reasons"]
    assert (reason["code"], found["nodes_matching"]) == ("label_missing", 0)
    assert reason["message"] == "the node has no rack, so it is in no place of that domain"
    assert (reason["wanted"], reason["has"]) == ("a rack", "no rack")


@pytest.mark.parametrize(
    "placement",
    [
        near_web(away=True),
        near_web(unknown="pass"),
        spread(max_skew=1, when="prefer"),
        {"spread": [{"domain": SITE, "targets": [], "select": WEB}]},
        {"require": [{"any": [near_web()["require"], [{"label": "zone", "op": "exists"}]]}]},
    ],
)
def test_what_needs_no_place(api: Api, queue: str, fleet: tuple[Node, Node], placement: Row) -> None:
    _, outside = fleet
    lease = web(api, queue, placement)
    assert explain(api, lease)["nodes_free"] == 2
    assert api.claimed(outside, queue) == [lease]


def test_a_relabelled_node_comes_in(api: Api, queue: str, fleet: tuple[Node, Node]) -> None:
    _, outside = fleet
    lease = web(api, queue, spread(max_per_domain=1))
    assert api.claimed(outside, queue) == []
    again = api.node(outside.node_id, name=outside.name, labels={"site": "b"})
    assert api.claimed(again, queue) == [lease]
