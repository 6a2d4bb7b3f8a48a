"""Leases that may not come here now stand before those that may."""

from uuid import UUID

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import QUEUE
from tests.races.terms import away, ids, lease, place, publish


def drained(direct: Direct, node: tuple[UUID, int]) -> list[UUID]:
    """What a node gets until there is nothing, in that order."""
    claimed = []
    while claims := direct.claim(QUEUE, *node):
        claimed += ids(claims)
    return claimed


@pytest.mark.parametrize("classes", [3, 10, 250])
def test_none_is_passed_by_for_those_that_are_blocked(conn: psycopg.Connection, classes: int) -> None:
    """However many classes there are: leases go in the order in which they came."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node = place(conn, 1, 1)
    for number in range(60):
        direct.spawn(QUEUE, lease(f"k{number}", away(f"k{number}")))
    publish(direct)
    assert len(drained(direct, node)) == 60
    for number in range(60):
        direct.spawn(QUEUE, lease(f"k{number}", away(f"k{number}")))
    free = [
        direct.spawn(QUEUE, lease(f"f{number % classes}"))["lease_id"] for number in range(max(20, classes))
    ]
    sooner = [
        direct.spawn(QUEUE, lease(f"f{number % 2}") | {"priority": 1})["lease_id"] for number in range(2)
    ]
    assert drained(direct, node) == sooner + free
