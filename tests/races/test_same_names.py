"""Two sessions that give one name at once: one has it, the other is told so by its own code."""

from uuid import uuid4

import psycopg

from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec, register
from tests.races.interleave import TIMEOUT, interleave


def test_two_nodes(conn: psycopg.Connection, dsn: str) -> None:
    """The later registration waits for the earlier one and is then refused."""
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        register(one.conn, 1, labels={"zone": "a"})
        second = two.start(lambda d: d.register(uuid4(), node_spec(1, labels={"zone": "b"})))
        two.wait_until_parked()
        one.commit()
        refused = second.exception(TIMEOUT)
        assert isinstance(refused, psycopg.Error)
        assert refused.sqlstate == "QHN02"


def test_two_nodes_of_which_the_first_gives_up(conn: psycopg.Connection, dsn: str) -> None:
    """Then the name is free for the one that waited."""
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        register(one.conn, 1)
        second = two.start(lambda d: d.register(uuid4(), node_spec(1)))
        two.wait_until_parked()
        one.rollback()
        assert second.result(TIMEOUT) == 1


def test_two_leases_with_an_id_of_the_callers(conn: psycopg.Connection, dsn: str) -> None:
    """The later spawn is refused and has written nothing; the id stands for the earlier lease."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    lease = uuid4()
    with interleave(dsn) as actor:
        one, two = actor(), actor()
        one.begin()
        one.direct.spawn(QUEUE, {"lease_id": str(lease)})
        second = two.start(lambda d: d.spawn(QUEUE, {"lease_id": str(lease)}))
        two.wait_until_parked()
        one.commit()
        refused = second.exception(TIMEOUT)
        assert isinstance(refused, psycopg.Error)
        assert refused.sqlstate == "QHL06"
    assert direct.states(QUEUE) == {lease: "pending"}
    node = register(conn)
    assert [row["lease_id"] for row in direct.claim(QUEUE, *node, qty=5)] == [lease]
