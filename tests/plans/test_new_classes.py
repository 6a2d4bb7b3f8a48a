"""New classes cost later claims nothing, whoever has a transaction open, in whatever database."""

import psycopg
import pytest

from tests.plans.backlog import batch
from tests.plans.explain import Work, explained
from tests.sql.api import Api, Node

MORE = 1.5  # times the pages of a claim with nothing new
PROBE = 4  # pages for each transaction that ran when classes were judged


def claimed(api: Api, node: Node, queue: str) -> Work:
    """What a claim of one lease does."""
    with explained(api.conn) as work:
        assert len(api.claim(node, queue)) == 1
    return work


def beside(api: Api, node: Node) -> int:
    """How many transactions of others ran when the node's classes were judged."""
    read = "select cardinality(classes_unseen) from hwqueue.node_state where node_id = %s"
    return max(0, int(api.one(read, node.node_id)) - 2)  # this test's own writer, and the spawn itself


@pytest.mark.parametrize("classes", [1, 100, 1_000])
@pytest.mark.parametrize("ahead", [False, True], ids=["by claims", "by reap"])
def test_beside_an_idle_writer(api: Api, server_dsn: str, classes: int, ahead: bool) -> None:
    """The claims that meet the new classes judge them; with reap even they do not."""
    queue, other, node = api.queue(), api.queue(), api.node(labels={"pool": f"{classes}-{ahead}"})
    batch(api, queue, [{}] * 60)
    for _ in range(10):
        plain = claimed(api, node, queue)
    with psycopg.connect(server_dsn) as idle:  # of another database
        idle.execute("select pg_current_xact_id()")
        batch(api, other, [{"labels": {f"{classes}-{n}": "n"}} for n in range(classes)])
        if ahead:
            while api.row("reap")["more"]:
                pass
        else:
            for _ in range(classes // 500 + 1):
                assert api.claim(node, queue)
        met = claimed(api, node, queue)
        work = claimed(api, node, queue)
    assert len(work.plans) == len(plain.plans)
    # other tests have transactions open on this server, too: those that were seen, not more
    assert work.buffers <= MORE * plain.buffers + PROBE * beside(api, node)
    assert work.rows_read("placement_class") == 0
    # a node looks once whether any of the new ones is judged per node
    assert met.rows_read("placement_class") <= classes + 6


def test_beside_many_idle_writers(api: Api, server_dsn: str) -> None:
    """A claim asks for the classes of each; it judges nothing again."""
    queue, node = api.queue(), api.node(labels={"pool": "many"})
    batch(api, queue, [{}, {"labels": {"writers": "none"}}] * 30)
    for _ in range(10):
        plain = claimed(api, node, queue)
    writers = [psycopg.connect(server_dsn) for _ in range(20)]
    try:
        for writer in writers:
            writer.execute("select pg_current_xact_id()")
        for number in range(10):
            batch(api, queue, [{"labels": {str(number): "writers"}}])
            assert api.claim(node, queue)
        work = claimed(api, node, queue)
    finally:
        for writer in writers:
            writer.close()
    assert len(work.plans) == len(plain.plans)
    assert work.buffers <= MORE * plain.buffers + PROBE * 2 * len(writers)


def test_new_classes_are_found_by_index(api: Api) -> None:
    """Of thousands, those of the unseen transactions; a full batch goes on where it ended."""
    queue, node = api.queue(), api.node(labels={"pool": "index"})
    while api.row("reap")["more"]:
        pass
    assert api.claim(node, queue) == []
    batch(api, queue, [{"labels": {str(n): "index"}} for n in range(800)])
    read = []
    for looks in (2, 1):  # of the node, which goes first, and of its profile
        with explained(api.conn) as work:
            assert len(api.claim(node, queue)) == 1
        assert work.whole_table_scans("placement_class") == []
        found = [plan for plan in work.plans if "from hwqueue.visible_now() s" in plan["Query Text"]]
        assert len(found) == looks
        read.append(sum(Work([plan]).rows_read("placement_class") for plan in found))
    assert read == [800 + 500, 300]


def test_the_warnings_of_a_spawn_read_its_own_class(api: Api) -> None:
    queue, _ = api.queue(), api.node()
    batch(api, queue, [{"labels": {f"warned-{n}": "n"}} for n in range(3_000)])
    api.conn.execute("analyze hwqueue.placement_class")
    lease = api.spawn(queue, placement={"require": [{"label": "warned", "op": "exists"}]})
    for _ in range(7):  # planned for each call at first
        with explained(api.conn) as work:
            assert api.rows("spawn_warnings", id=lease)
        assert work.rows_read("placement_class") < 20
