"""Labels that no term names yet are hidden in classes; sql/constraints/labels.sql.

Whatever a lease of order=7 does while another one first asks to be away from it: nobody is granted
beside it, now or later.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.flows import broken
from tests.races.cluster import OTHER, QUEUE, Node
from tests.races.interleave import Actors
from tests.races.marks import Line, position
from tests.races.terms import ids, never, place, publish, unpublished

SEVEN: dict[str, Any] = {"labels": {"order": "7", "app": "db"}}
_ORDER_7 = {"leases": {"labels": {"order": "7"}}, "domain": "rack", "away": True}
AWAY = {"placement": {"require": [_ORDER_7]}}


def hidden(direct: Direct, lease: UUID) -> list[str]:
    """The keys that the class of a lease hides."""
    return [
        key
        for (key,) in direct.conn.execute(
            "select e.key from hwqueue.lease l join hwqueue.placement_class c using (class_id),"
            " jsonb_each(c.labels) e where l.lease_id = %s and e.value = 'null' order by 1",
            [lease],
        )
    ]


def waits(direct: Direct, node: Node, clock: Clock) -> UUID:
    lease: UUID = direct.spawn(QUEUE, SEVEN)["lease_id"]
    return lease


def is_delayed(direct: Direct, node: Node, clock: Clock) -> UUID:
    lease: UUID = direct.spawn(QUEUE, {**SEVEN, "delay": 3600})["lease_id"]
    return lease


def runs(direct: Direct, node: Node, clock: Clock) -> UUID:
    lease = waits(direct, node, clock)
    assert ids(direct.claim(QUEUE, *node)) == [lease]
    return lease


def has_failed(direct: Direct, node: Node, clock: Clock) -> UUID:
    lease = waits(direct, node, clock)
    [claim] = direct.claim(QUEUE, *node)
    direct.rows("fail_lease", lease=lease, token=claim["claim_token"], error={}, retry=False)
    return lease


@pytest.mark.parametrize("state", [waits, is_delayed, runs, has_failed])
def test_a_selector_that_comes_later_counts_it(
    direct: Direct, clock: Clock, state: Callable[[Direct, Node, Clock], UUID]
) -> None:
    one, two, elsewhere = place(direct, 1, 1), place(direct, 2, 1), place(direct, 3, 2)
    lease = state(direct, one, clock)
    assert hidden(direct, lease) == ["app", "order"]
    if state is runs:  # a term that is written nowhere counts it, too
        told = direct.rows("match_nodes", **AWAY)
        assert [row["node_id"] for row in told if row["eligible"]] == [elsewhere[0]]
    asker = direct.spawn(OTHER, AWAY)["lease_id"]
    publish(direct)
    assert hidden(direct, lease) == (["app", "order"] if state is has_failed else ["app"])
    if state is has_failed:
        direct.rows("requeue_lease", lease=lease)
        assert hidden(direct, lease) == ["app"]
    if state is is_delayed:
        clock.advance(timedelta(hours=1, seconds=1))
        direct.reap()
    if state is not runs:
        assert ids(direct.claim(QUEUE, *one)) == [lease]
    assert direct.claim(OTHER, *two) == []
    assert ids(direct.claim(OTHER, *elsewhere)) == [asker]
    assert broken(direct) == []


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_spawn_in_flight(direct: Direct, actor: Actors, *, is_batch: bool) -> None:
    """It looked for terms before there was one: the publication waits for its end."""
    one_node, two_node = place(direct, 1, 1), place(direct, 2, 1)
    one = actor().begin()
    lease = (one.direct.spawn_many(QUEUE, [SEVEN])[0] if is_batch else one.direct.spawn(QUEUE, SEVEN))[
        "lease_id"
    ]
    direct.spawn(OTHER, AWAY)
    never(direct, two_node)
    assert unpublished(direct) == 1
    one.end(commits=True)
    publish(direct)
    assert ids(direct.claim(QUEUE, *one_node)) == [lease]
    assert direct.claim(OTHER, *two_node) == []
    assert broken(direct) == []


def test_an_entry_that_somebody_holds_is_moved_later(direct: Direct, actor: Actors) -> None:
    """Without it nothing is published, be it that whoever holds it has begun after the term was written."""
    node, other_node = place(direct, 1, 1), place(direct, 2, 1)
    lease = direct.spawn(QUEUE, SEVEN)["lease_id"]
    one = actor().begin()
    one.conn.execute("select from hwqueue.ready where lease_id = %s for update", [lease])
    direct.spawn(OTHER, AWAY)
    never(direct, other_node)
    one.end(commits=False)
    one.begin()
    assert ids(one.direct.claim(QUEUE, *node)) == [lease]
    never(direct, other_node)
    assert (hidden(direct, lease), unpublished(direct)) == (["app", "order"], 1)
    one.end(commits=True)
    publish(direct)
    assert hidden(direct, lease) == ["app"]
    assert direct.claim(OTHER, *other_node) == []
    assert broken(direct) == []


def test_a_term_selects_nothing_by_what_is_hidden(direct: Direct) -> None:
    """A claim that counts for a term without the label would count it wrongly for good."""
    one, two = place(direct, 1, 1), place(direct, 2, 1)
    lease = direct.spawn(QUEUE, SEVEN)["lease_id"]
    not_7 = {"exprs": [{"label": "order", "op": "not_in", "values": ["7"]}]}
    asker = direct.spawn(OTHER, {"placement": {"require": [_ORDER_7 | {"leases": not_7}]}})["lease_id"]
    assert direct.claim(OTHER, *two) == []  # writes the term
    assert ids(direct.claim(QUEUE, *one)) == [lease]
    publish(direct)
    assert broken(direct) == []
    assert ids(direct.claim(OTHER, *two)) == [asker]


def test_above_read_committed_nothing_is_hidden(direct: Direct, actor: Actors) -> None:
    """Its snapshot may be older than the term."""
    one = actor().begin("repeatable read")
    one.conn.execute("select from hwqueue.queue")
    direct.spawn(OTHER, AWAY)
    publish(direct)
    assert hidden(one.direct, one.direct.spawn(QUEUE, SEVEN)["lease_id"]) == []


def test_no_mark_goes_past_an_entry_that_is_moved(direct: Direct, actor: Actors) -> None:
    """It comes into the middle of the line of a class that is older than its move."""
    line = Line(direct, stands=True)
    node = place(direct, 2, 2)
    kept = line.spawn(**SEVEN)
    holder = actor().begin()
    holder.conn.execute("select from hwqueue.ready where lease_id = %s for update", [kept])
    direct.spawn(OTHER, AWAY)
    assert direct.claim(OTHER, *node) == []  # writes the term, and leaves the rest to reap
    shown = line.class_of(line.work(**SEVEN))
    assert shown != line.class_of(kept)
    line.work_past(position(direct, kept), shown, **SEVEN)
    holder.end(commits=False)
    publish(direct)
    assert line.class_of(kept) == shown
    line.spawn(**SEVEN)
    assert line.take(1) == [kept]


def test_classes_that_later_leases_get_hide_nothing(direct: Direct) -> None:
    """Those of an everywhere task are spawned when a node comes, those of steps when others have ended."""
    direct.row("spawn_everywhere", queue=QUEUE, task="t", options=SEVEN)
    flow = {"name": "flow", "queue": QUEUE, "labels": SEVEN["labels"]}
    direct.rows("define_workflow", spec={**flow, "steps": [{"name": "a", "task": "t"}]})
    direct.rows("submit_workflow", workflow="flow")
    place(direct, 1, 1)
    direct.reap()
    leases = [row["lease_id"] for row in direct.rows("list_leases", filter={"labels": SEVEN["labels"]})]
    assert len(leases) == 2
    assert [hidden(direct, lease) for lease in leases] == [[], []]


@pytest.mark.parametrize("tenants", [None, ["acme"], "*"])
def test_of_which_tenants_a_term_shows_the_key(direct: Direct, tenants: Any) -> None:
    place(direct, 1, 1)
    ours, theirs, nobodys = ({**SEVEN, **who} for who in ({"tenant": "acme"}, {"tenant": "other"}, {}))
    before = direct.spawn(QUEUE, theirs)["lease_id"]
    more = {} if tenants is None else {"tenants": tenants}
    direct.spawn(OTHER, {"placement": {"require": [_ORDER_7 | more]}, "tenant": "acme"})
    publish(direct)
    found = [hidden(direct, direct.spawn(QUEUE, options)["lease_id"]) for options in (ours, theirs, nobodys)]
    rest = [["app"], ["app"]] if tenants == "*" else [["app", "order"]] * 2
    assert found == [["app"], *rest]
    assert [hidden(direct, row["lease_id"]) for row in direct.spawn_many(QUEUE, [theirs])] == rest[:1]
    assert hidden(direct, before) == rest[0]


def test_leases_share_a_class_and_keep_their_labels(direct: Direct) -> None:
    orders = [{"labels": {"order": str(number), "app": "db"}} for number in range(4)]
    leases = [direct.spawn(QUEUE, orders[0])["lease_id"], direct.spawn(QUEUE, orders[1])["lease_id"]]
    leases += [row["lease_id"] for row in direct.spawn_many(QUEUE, orders[2:])]
    told = [direct.row("get_lease", lease=lease)["labels"] for lease in leases]
    assert told == [each["labels"] for each in orders]
    [(classes,)] = direct.conn.execute(
        "select count(distinct class_id) from hwqueue.lease where lease_id = any(%s)", [leases]
    )
    assert classes == 1
    # by the one that is shown and those that are not
    for labels in ({"order": "2"}, {"order": "2", "app": "db"}):
        assert ids(direct.rows("list_leases", filter={"labels": labels})) == [leases[2]]
    direct.rows("update_lease", lease=leases[0], changes={"labels": {"order": "9"}})
    assert direct.row("get_lease", lease=leases[0])["labels"] == {"order": "9"}
    direct.rows("update_lease", lease=leases[1], changes=AWAY)
    assert direct.row("get_lease", lease=leases[1])["labels"] == orders[1]["labels"]
    assert hidden(direct, leases[1]) == ["app"]  # its own placement names the other one
