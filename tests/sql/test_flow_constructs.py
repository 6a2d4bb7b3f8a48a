"""What Firmament draws as networks of flows, as one lease or one gang (placement.md lists it)."""

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api
from tests.sql.gangs import gang, nodes, reap
from tests.sql.test_earmarks import leave
from tests.sql.test_terms import WEB, capped, web

BESIDE: Row = {"require": [{"leases": WEB, "domain": "node"}]}


@pytest.fixture(autouse=True)
def _no_others(api: Api) -> None:
    """No gangs and nodes but those of a test."""
    leave(api)


def test_so_many_in_all_and_so_many_on_a_machine(api: Api) -> None:
    """The generalised "xor", p = 3 and r = 1, on one lease: each limit holds by itself."""
    queue, machines = api.queue(), [api.node() for _ in range(4)]
    rules = {"spread": capped(3, "fleet")["spread"] + capped(1, "node")["spread"]}
    leases = [web(api, queue, rules) for _ in range(5)]
    api.settle_terms()
    claims = [claim for node in machines for claim in api.claim(node, queue, qty=9)]
    assert [claim["lease_id"] for claim in claims] == leases[:3]
    api.complete(claims[0])
    assert api.claimed(machines[1], queue, qty=9) == []  # r: one runs there
    assert api.claimed(machines[3], queue, qty=9) == leases[3:4]
    assert api.claimed(machines[0], queue, qty=9) == []  # p: three run


def test_a_set_follows_the_first_of_it(api: Api) -> None:
    """What multi-round admission is for: one may start anywhere, the others go where it runs."""
    queue, machines = api.queue(), [api.node() for _ in range(3)]
    leases = [web(api, queue, BESIDE) for _ in range(3)]
    api.settle_terms()
    assert api.claimed(machines[1], queue) == leases[:1]
    assert [api.claimed(machines[other], queue, qty=9) for other in (0, 2)] == [[], []]
    assert api.claimed(machines[1], queue, qty=9) == leases[1:]


def test_both_on_one_machine_or_neither(api: Api, queue: str, clock: Clock) -> None:
    """The "and": two small machines have room for one of them each, and get none."""
    small = [api.node(capacity={"cpu_milli": 1000}) for _ in range(2)]
    members = [
        {"task": task, "options": {"placement": {"resources": {"cpu_milli": 1000}}}}
        for task in ("server", "sidecar")
    ]
    options = Jsonb({"together": "node"})
    [row, _] = api.rows("spawn_gang", queue=queue, members=Jsonb(members), options=options)
    reap(api)
    assert gang(api, row["gang_id"])["reason"] == "insufficient_capacity"
    assert [api.claimed(node, queue, qty=9) for node in small] == [[], []]
    large = api.node(name="large", capacity={"cpu_milli": 2000})
    clock.advance(timedelta(seconds=5))
    reap(api)
    assert nodes(api, row["gang_id"]) == {"large"}
    assert len(api.claimed(large, queue, qty=9)) == 2
