"""What leases ask about each other, for races: placements, terms brought into force, and pauses.

A pause parks one session in the middle of a function, where no lock of its own would stop it:

    pause_at(conn, "admit_class", "v_locked := 0;")
    pauses(two)
    with pause_closed(conn):
        claimed = two.start(lambda d: d.claim(...))
        two.wait_until_parked()
        one.commit()
    claimed.result(TIMEOUT)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import QUEUE, register
from tests.races.interleave import Actor

OTHER = "other"  # a queue for those who ask, beside QUEUE for those in flight
RACK = "rack"
ZONE = "label:zone"
FAR = 9  # claims while something is open: more than a term needs when nothing is
_PAUSE = 4711  # an advisory lock: whoever comes to a pause waits for it
_PAUSE_FUNCTION = """
create or replace function hwqueue.test_pause() returns void language plpgsql as $$
begin
  if current_setting('races.pauses', true) = 'yes' then
    perform set_config('races.pauses', 'no', false);
    perform pg_advisory_lock_shared(4711);
    perform pg_advisory_unlock_shared(4711);
  end if;
end $$
"""


def leases(app: str, domain: str = RACK, **more: Any) -> dict[str, Any]:
    """An expression about leases with that label."""
    return {"leases": {"labels": {"app": app}}, "domain": domain} | more


def away(app: str, domain: str = RACK) -> dict[str, Any]:
    """A placement: where no such lease runs."""
    return {"require": [leases(app, domain, away=True)]}


def toward(app: str, domain: str = RACK) -> dict[str, Any]:
    """A placement: where such a lease runs."""
    return {"require": [leases(app, domain)]}


def spread(app: str, domain: str = RACK, **limit: int) -> dict[str, Any]:
    """A placement: with max_skew or max_per_domain of such leases."""
    return {"spread": [{"domain": domain, "select": {"labels": {"app": app}}} | limit]}


def lease(app: str, placement: dict[str, Any] | None = None) -> dict[str, Any]:
    """Options of a lease with that label."""
    return {"labels": {"app": app}} | ({"placement": placement} if placement else {})


def place(conn: psycopg.Connection[Any], number: int, where: int) -> tuple[Any, int]:
    """A new node in rack `where`, which is zone `where`, too."""
    return register(conn, number, rack=where, labels={"zone": str(where)})


def queues(direct: Direct) -> None:
    """Two queues: for those in flight, and for those who ask."""
    direct.create_queue(QUEUE)
    direct.create_queue(OTHER)


def never(direct: Direct, node: tuple[UUID, int]) -> None:
    """Claims of the node get nothing, however often it asks."""
    for _ in range(FAR):
        assert direct.claim(OTHER, *node) == []
        direct.reap()


def known(direct: Direct, options: dict[str, Any], *nodes: tuple[UUID, int], queue: str = QUEUE) -> None:
    """Let each of the nodes run such a lease, so that all that they must know of it is written."""
    for node in nodes:
        spawned = direct.spawn(queue, options)["lease_id"]
        [claim] = direct.claim(queue, *node)
        assert claim["lease_id"] == spawned
        direct.complete(spawned, claim["claim_token"])


def publish(direct: Direct, how: LiteralString = "select hwqueue.reap()") -> None:
    """Bring all terms of committed classes into force."""
    for look in looks():
        direct.conn.execute(how)
        if look > 0 and unpublished(direct.conn) == 0:
            return
    raise AssertionError("some session on this server keeps a transaction open")


def unpublished(conn: psycopg.Connection[Any]) -> int:
    """How many terms of committed classes are not published yet."""
    row = conn.execute(
        "select count(*) from hwqueue.placement_class c, jsonb_array_elements(c.terms) s"
        " left join hwqueue.affinity_term t on t.digest = (s ->> 'digest')::bigint"
        " where t.published_at is null"
    ).fetchone()
    assert row is not None
    return int(row[0])


def counts(conn: psycopg.Connection[Any], use: str) -> dict[str, tuple[int, int]]:
    """What terms of that use have counted: by place, leases selected and leases that keep away."""
    rows = conn.execute(
        "select k.place, sum(k.leases)::int, sum(k.holders)::int from hwqueue.term_counter k"
        " join hwqueue.affinity_term t using (term_id) where t.use = %s"
        " group by k.place having sum(k.leases) <> 0 or sum(k.holders) <> 0",
        [use],
    ).fetchall()
    return {place: (selected, holders) for place, selected, holders in rows}


def broken(conn: psycopg.Connection[Any]) -> list[Any]:
    """The rules that are broken now."""
    return conn.execute("select * from hwqueue.verify_invariants()").fetchall()


def ids(rows: list[Row]) -> list[Any]:
    """The leases of some claims."""
    return [row["lease_id"] for row in rows]


def pause_at(conn: psycopg.Connection[Any], function: str, before: str) -> None:
    """Put a pause into a function, before the line that begins with `before`."""
    conn.execute(_PAUSE_FUNCTION)
    row = conn.execute(
        "select pg_get_functiondef(oid) from pg_proc"
        " where pronamespace = 'hwqueue'::regnamespace and proname = %s",
        [function],
    ).fetchone()
    assert row is not None
    lines = row[0].split("\n")
    found = [n for n, line in enumerate(lines) if line.strip().startswith(before)]
    assert len(found) == 1, f"{function} has {len(found)} lines that begin with {before!r}"
    lines.insert(found[0], "perform hwqueue.test_pause();")
    conn.execute("\n".join(lines).encode())


def pauses(actor: Actor) -> None:
    """Let this session, and no other, stop at the next pause that it comes to."""
    actor.conn.execute("select set_config('races.pauses', 'yes', false)")


@contextmanager
def pause_closed(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Keep whoever comes to a pause there until the end of the block."""
    conn.execute("select pg_advisory_lock(%s)", [_PAUSE])
    try:
        yield
    finally:
        conn.execute("select pg_advisory_unlock(%s)", [_PAUSE])


domains = pytest.mark.parametrize("domain", [RACK, ZONE])
