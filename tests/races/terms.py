"""What leases ask about each other, for races: placements, terms brought into force, and pauses.

A pause parks one session in the middle of a function, where no lock of its own would stop it:

    with paused(direct, two, lambda d: d.claim(...), at=("admit_class", "v_locked := 0;")) as claimed:
        one.commit()
    claimed.result(TIMEOUT)
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import UUID

import pytest

from tests.calls import Row
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import OTHER, QUEUE, Node, completed, register
from tests.races.interleave import PAUSE, Actor, Result, kept

RACK = "rack"
ZONE = "label:zone"
FAR = 9  # claims while something is open: more than a term needs when nothing is


def leases(app: str, domain: str = RACK, **more: Any) -> dict[str, Any]:
    """An expression about leases with that label."""
    return {"leases": {"labels": {"app": app}}, "domain": domain} | more


def away(app: str, domain: str = RACK) -> dict[str, Any]:
    """A placement: where no such lease runs."""
    return {"require": [leases(app, domain, away=True)]}


def toward(app: str, domain: str = RACK) -> dict[str, Any]:
    """A placement: where such a lease runs."""
    return {"require": [leases(app, domain)]}


def with_lease(lease: UUID | str, domain: str = RACK, **more: Any) -> dict[str, Any]:
    """Options: where that lease runs; with `away`, where it does not."""
    return {"placement": {"require": [{"lease": str(lease), "domain": domain} | more]}}


def spread(app: str, domain: str = RACK, **limit: int) -> dict[str, Any]:
    """A placement: with max_skew or max_per_domain of such leases."""
    return {"spread": [{"domain": domain, "select": {"labels": {"app": app}}} | limit]}


def lease(app: str, placement: dict[str, Any] | None = None) -> dict[str, Any]:
    """Options of a lease with that label."""
    return {"labels": {"app": app}} | ({"placement": placement} if placement else {})


def place(direct: Direct, number: int, where: int) -> Node:
    """A new node in rack `where`, which is zone `where`, too."""
    return register(direct, number, rack=where, labels={"zone": str(where)})


def never(direct: Direct, node: Node) -> None:
    """Claims of the node get nothing, however often it asks."""
    for _ in range(FAR):
        assert direct.claim(OTHER, *node) == []
        direct.reap()


def known(direct: Direct, options: dict[str, Any], *nodes: Node, queue: str = QUEUE) -> None:
    """Let each of the nodes run such a lease, so that all that they must know of it is written."""
    for node in nodes:
        completed(direct, node, options, queue=queue)


def two_together(direct: Direct, **options: Any) -> tuple[UUID, UUID]:
    """A lease, and one in the other queue that must be where that runs."""
    first = direct.spawn(QUEUE, options)["lease_id"]
    second = direct.spawn(OTHER, with_lease(first))["lease_id"]
    publish(direct)
    return first, second


def soon_granted(claim: Callable[[], list[Row]]) -> list[UUID]:
    """What is granted at last; other sessions on the server may hold that up."""
    for _ in looks():
        if granted := ids(claim()):
            return granted
    raise AssertionError("some session on this server keeps a transaction open")


def publish(direct: Direct, how: LiteralString = "select hwqueue.reap()") -> None:
    """Bring all terms of committed classes into force."""
    for look in looks():
        direct.conn.execute(how)
        if look > 0 and unpublished(direct) == 0:
            return
    raise AssertionError("some session on this server keeps a transaction open")


def unpublished(direct: Direct) -> int:
    """How many terms of committed classes are not published yet."""
    [(number,)] = direct.conn.execute(
        "select count(*) from hwqueue.placement_class c, jsonb_array_elements(c.terms) s"
        " left join hwqueue.affinity_term t on t.digest = (s ->> 'digest')::bigint"
        " where t.published_at is null"
    ).fetchall()
    return int(number)


def counts(direct: Direct, use: str) -> dict[str, tuple[int, int]]:
    """What terms of that use have counted: by place, leases selected and leases that keep away."""
    rows = direct.conn.execute(
        "select k.place, sum(k.leases)::int, sum(k.holders)::int from hwqueue.term_counter k"
        " join hwqueue.affinity_term t using (term_id) where t.use = %s"
        " group by k.place having sum(k.leases) <> 0 or sum(k.holders) <> 0",
        [use],
    ).fetchall()
    return {place: (selected, holders) for place, selected, holders in rows}


def ids(rows: list[Row]) -> list[Any]:
    """The leases of some claims."""
    return [row["lease_id"] for row in rows]


@contextmanager
def paused(
    direct: Direct, actor: Actor, call: Callable[[Direct], Result], at: tuple[str, str]
) -> Iterator[Future[Result]]:
    """Start a call, and keep it in that function, before the line that begins so, until the block ends."""
    function, before = at
    [(source,)] = direct.conn.execute(
        "select pg_get_functiondef(oid) from pg_proc"
        " where pronamespace = 'hwqueue'::regnamespace and proname = %s",
        [function],
    ).fetchall()
    lines = source.split("\n")
    found = [n for n, line in enumerate(lines) if line.strip().startswith(before)]
    assert len(found) == 1, f"{function} has {len(found)} lines that begin with {before!r}"
    lines.insert(found[0], PAUSE)
    with kept(direct, actor, call, "\n".join(lines)) as started:
        yield started


domains = pytest.mark.parametrize("domain", [RACK, ZONE])
