"""A claim's cost has bounds that no backlog moves: rows of ready, rows of lease, pages."""

from typing import Any

import psycopg
import pytest

from tests.plans.backlog import BIG, FEW, READY, batch, multiply, warm
from tests.plans.explain import Work, explained
from tests.sql.api import Api

WINDOW, PROBE = 60, 20  # entries and classes that the queues below let a claim look at
CLASSES = 100  # eligible ones, where a queue has many
OF_EACH = 3  # rows of ready for a lease that is granted: seen, locked, deleted
READS = 1  # of a granted lease's own row
PAGES = 130  # touched by a claim of one lease; 50 to 120 seen
OF_CLASS = 6  # pages more for each eligible class; 3 to 4 seen
PAGES_EMPTY = 115  # by a claim that gives nothing; 45 to 111 seen

HERE, THERE = ({"tags": {"zone": zone}} for zone in "ab")
QUEUES: dict[str, tuple[list[dict[str, Any]], int]] = {
    # name: (what waits in it, copies of each)
    "one class": ([{}], READY),
    "many classes": ([{"labels": {str(n): "n"}} for n in range(CLASSES)], READY // CLASSES),
    "many scores": (
        [
            {"placement": {"prefer": [{"weight": n, "when": HERE}, {"weight": 50, "when": THERE}]}}
            for n in range(1, CLASSES)
        ],
        READY // CLASSES,
    ),
    "few for others": ([{"affinity_tags": {"other": n}} for n in range(50)], FEW // 50),
    "many for others": ([{"affinity_tags": {"other": n}} for n in range(50)], READY // 50),
}


@pytest.fixture(scope="module")
def database(database: str) -> str:
    """The large tables, and the queues above."""
    tuning = {"window_size": WINDOW, "probe_size": PROBE}
    with psycopg.connect(database, autocommit=True) as conn:
        api = Api(conn)
        for name, (options, copies) in QUEUES.items():
            api.rows("create_queue", queue=slug(name), policy={"tuning": tuning})
            batch(api, slug(name), options)
            multiply(conn, slug(name), copies)
        conn.execute("vacuum analyze")
    return database


def slug(name: str) -> str:
    """The queue of that name above."""
    return name.replace(" ", "-")


def claim(api: Api, name: str, capacity: dict[str, int] | None = None, qty: int = 1) -> Work:
    """What a claim does on a node that has been at work for a while."""
    node = api.node(labels={"zone": "a"}, capacity=capacity or {})
    warm(api, node, slug(name))
    with explained(api.conn) as work:
        rows = api.claim(node, slug(name), qty=qty)
    assert len(rows) == (0 if name.endswith("others") else qty)
    return work


CAPACITIES: list[dict[str, int]] = [{}, {"cpu_milli": 10**6}]


@pytest.mark.parametrize("capacity", CAPACITIES, ids=["not counted", "counted"])
@pytest.mark.parametrize("name", ["one class", "many classes", "many scores"])
def test_a_claim_reads_what_its_policy_allows(api: Api, name: str, capacity: dict[str, int]) -> None:
    work = claim(api, name, capacity)
    eligible = len(QUEUES[name][0])
    assert work.whole_table_scans(*BIG) == []
    assert work.rows_read("ready") <= WINDOW + PROBE + OF_EACH
    assert work.rows_read("lease") == READS
    assert work.rows_read("placement_class") <= eligible + 2  # of thousands
    assert work.buffers <= PAGES + OF_CLASS * eligible


@pytest.mark.parametrize("qty", [10, 50])
def test_a_batch_costs_no_more_than_its_leases(api: Api, qty: int) -> None:
    work = claim(api, "one class", qty=qty)
    assert work.whole_table_scans(*BIG) == []
    assert work.rows_read("ready") <= WINDOW + PROBE + OF_EACH * qty
    assert work.rows_read("lease") == READS * qty
    assert work.buffers <= PAGES + 40 * qty


def test_what_it_may_not_run_costs_a_claim_nothing(api: Api) -> None:
    """Nor when something waits behind it: the window is walked, the probe finds that.

    Neither depends on what lies between.
    """
    names = ("few for others", "many for others")
    for work in [claim(api, name) for name in names]:
        assert work.whole_table_scans(*BIG) == []
        assert {work.rows_read(table) for table in ("ready", "lease", "placement_class")} == {0}
        assert work.buffers <= PAGES_EMPTY
    node, read = api.node(labels={"zone": "a"}), []
    for name in names:
        api.spawn(slug(name), priority=-1)
        warm(api, node, slug(name))
        lease = api.spawn(slug(name), priority=-1)
        with explained(api.conn) as work:
            assert api.claimed(node, slug(name)) == [lease]
        assert work.buffers <= PAGES
        read.append((work.rows_read("ready"), work.rows_read("lease")))
    assert read[0] == read[1]
    assert read[1][0] <= WINDOW + PROBE + OF_EACH


def test_claims_elsewhere_cost_nothing(api: Api) -> None:
    """Thousands of running claims of other nodes are not looked at."""
    work = claim(api, "one class", {"cpu_milli": 10**6})
    assert api.one("select count(*) from hwqueue.claim") >= 5000
    assert work.rows_read("claim") <= 2
