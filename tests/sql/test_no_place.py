"""A node in no place of a domain, for lack of the label: nothing is near or spread by it there."""

from typing import Any
from uuid import UUID

import pytest

from tests.calls import Row
from tests.sql.api import Api, Node
from tests.sql.explained import class_of, clear, codes, explain, funnel, near, put_in_force

pytestmark = pytest.mark.thorough

WEB: Row = {"labels": {"app": "web"}}
SITE = "label:site"
NO_LABEL = 'the node has no label "site", so it is in no place of that domain'


@pytest.fixture
def fleet(api: Api) -> tuple[Node, Node]:
    """A node inside the domain and one outside; no other nodes live."""
    clear(api)
    return api.node(labels={"site": "a"}), api.node(labels={"zone": "a"})


def near_web(domain: str = SITE, **more: Any) -> Row:
    return {"require": [{"leases": WEB, "domain": domain, **more}]}


def spread(domain: str = SITE, **rule: Any) -> Row:
    """Must be spread over a domain."""
    return {"spread": [{"domain": domain, "select": WEB, **rule}]}


def web(api: Api, queue: str, placement: Row) -> UUID:
    """A web lease, when what it asks is in force."""
    lease = api.spawn(queue, placement=placement, labels=WEB["labels"])
    put_in_force(api)
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
    clear(api)
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
