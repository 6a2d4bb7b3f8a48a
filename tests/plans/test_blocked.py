"""Many classes that may not come to a node now are asked about at once."""

import pytest

from tests.plans.backlog import batch
from tests.plans.explain import Work, explained
from tests.races.marks import FAR, NOWHERE
from tests.sql.api import Api, outlive

CLASSES = 30
MANY = 500


def test_while_somebody_is_about_to_leave(api: Api) -> None:
    """A lease elsewhere that is asked to stop makes no try of each class that is full here."""
    node, elsewhere = api.node(), api.node()
    queue, other = api.queue(), api.queue()
    for number in range(CLASSES):
        labels = {"app": f"app-{number}"}
        one = {"domain": "node", "max_per_domain": 1, "select": {"labels": labels}}
        batch(api, queue, [{"labels": labels, "placement": {"spread": [one]}}] * 2)
    api.settle_terms()
    while api.claim(node, queue):
        pass
    statements = []
    for cancels in (False, True):
        if cancels:
            api.spawn(other)
            [running] = api.claim(elsewhere, other)
            api.rows("cancel_lease", lease=running["lease_id"])
        assert api.claim(node, queue) == []
        with explained(api.conn) as claim:
            assert api.claim(node, queue) == []
        statements.append(len(claim.plans))
    assert statements[1] <= statements[0] + 5 * CLASSES


def test_what_classes_have_in_common_is_read_once(api: Api) -> None:
    """Of classes that keep away from the same leases; and nobody asks whether they wait, too."""
    node, queue, other = api.node(rack=1), api.queue(), api.queue()
    api.running(other, node, labels={"app": "db"})
    away = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
    blocked = {"placement": {"require": [away]}}
    batch(api, queue, [{"labels": {"app": f"app-{n}"}, **blocked} for n in range(CLASSES)])
    batch(api, queue, [{}] * 3)
    api.settle_terms()
    assert api.claim(node, queue)
    with explained(api.conn) as claim:
        assert api.claim(node, queue)
    assert claim.rows_read("class_term") >= CLASSES
    assert claim.rows_read("term_counter") < CLASSES
    assert claim.rows_read("placement_class") < CLASSES


def test_new_terms_find_their_classes_by_index(api: Api) -> None:
    """Not all classes there are, for each new term."""
    queue = api.queue()
    away = {"leases": {"labels": {"app": "none"}}, "domain": "rack", "away": True}
    batch(api, queue, [{"placement": {"require": [away]}}])
    api.settle_terms()  # from now on classes show the label
    batch(api, queue, [{"labels": {"app": f"app-{number}"}} for number in range(MANY)])
    away |= {"leases": {"labels": {"app": "app-7"}}}
    batch(api, queue, [{"placement": {"require": [away]}}])
    api.conn.execute("vacuum analyze hwqueue.placement_class")
    with explained(api.conn) as work:
        api.settle_terms()
    told = [plan for plan in work.plans if "labels @>" in plan["Query Text"]]
    told += [plan for plan in work.plans if "k.terms @>" in plan["Query Text"]]
    assert len(told) >= 2
    assert Work(told).rows_read("placement_class") < MANY


@pytest.mark.usefixtures("eager_marks")
def test_each_class_that_is_used_up_is_asked_once(api: Api) -> None:
    """By a claim that finds nothing behind a front that stands, and where no later rank was claimed."""
    queue, node = api.queue(patience=0), api.node(labels={"zone": "a"})
    here = {"tags": {"zone": "a"}}
    api.spawn(queue, **NOWHERE)
    api.conn.execute(FAR)
    batch(
        api,
        queue,
        [{"placement": {"prefer": [{"weight": n, "when": here}]}} for n in range(1, CLASSES + 1)],
    )
    outlive(api.conn)
    while api.claim(node, queue):
        pass
    assert api.one("select bool_or(version < blocked_to_version) from hwqueue.low_water")
    with explained(api.conn) as claim:
        assert api.claim(node, queue) == []
    heads = [scan for scan in claim.scans("ready") if scan.get("Index Name") == "ready_class"]
    assert sum(scan["Actual Loops"] for scan in heads) == CLASSES
