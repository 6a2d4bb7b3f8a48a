"""How many statements calls run in the server: each costs microseconds, whatever it does."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL

from tests.calls import Row
from tests.flows import Flow, each, finish, step
from tests.plans.backlog import batch
from tests.plans.conftest import MARKS_STAY, NO_DUE_LOOKS
from tests.plans.explain import explained
from tests.races.marks import FAR, NOWHERE
from tests.sql.api import Api, Node, completed, outlive

AWAY = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "away": {"labels": {"app": "web"}, "placement": {"require": [AWAY]}},
    "counted": {"placement": {"resources": {"cpu_milli": 1}}},
    "devices": {"placement": {"resources": {"gpu": 1}}},
}


pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def api(api: Api) -> Api:
    """Where chance decides nothing, nor what another test has left."""
    for command in (MARKS_STAY, NO_DUE_LOOKS):
        api.conn.execute(command)
    return api


def statements(api: Api, call: Callable[[], Any]) -> tuple[int, Any]:
    """How many the call runs, itself left out, and what it gives."""
    with explained(api.conn) as work:
        given = call()
    return len(work.plans) - 1, given


def at_work(api: Api, kind: str, queues: int, **policy: Any) -> tuple[Node, list[str]]:
    """A node that has claimed and completed there before, and work for it."""
    names = [api.queue(**policy) for _ in range(queues)]
    gpus = [{"resource_id": str(uuid4())} for _ in range(16)] if kind == "devices" else []
    node = api.node(rack=1, gpus=gpus, capacity={"cpu_milli": 10**6} if kind == "counted" else {})
    for name in names:
        batch(api, name, [KINDS[kind]] * 40)
    api.conn.execute("analyze")
    while not api.claim(node, *names):  # terms come into force
        api.row("reap")
    for _ in range(8):
        for name in names:
            claims = api.claim(node, name)
            api.rows("settle_and_claim", **node.who, **completed(*claims), settle=[], queues=names)
    return node, names


@pytest.mark.parametrize("retain", [86400, 0])
@pytest.mark.parametrize(
    ("kind", "queues", "expected"),
    [
        ("plain", 1, [4, 2, 6]),
        ("plain", 2, [4, 2, 6]),
        ("plain", 16, [4, 2, 6]),
        ("counted", 1, [6, 4, 9]),
        ("devices", 1, [6, 7, 12]),
        ("away", 1, [14, 3, 17]),
    ],
)
def test_statements(api: Api, kind: str, queues: int, expected: list[int], retain: int) -> None:
    """Of a claim, a completion, and settle_and_claim, which does both.

    A lease that goes when it completes costs the completion one more, and the claim none.
    """
    node, names = at_work(api, kind, queues, retain_completed=retain)
    count, [row] = statements(api, lambda: api.claim(node, *names))
    found = [count]
    found.append(statements(api, partial(api.complete, row))[0])
    call = {**node.who, **completed(*api.claim(node, *names)), "settle": [], "queues": names}
    found.append(statements(api, lambda: api.rows("settle_and_claim", **call))[0])
    more = 0 if retain else 1
    assert found == [expected[0], expected[1] + more, expected[2] + more]


def test_functions_in_sql_are_inlined(api: Api) -> None:
    """One that is not is parsed and planned by each statement that calls it: 50 us before version 18.

    So it is in PL/pgSQL. A wrong volatility, too, keeps one from being inlined. What people call is exempt.
    """
    made = api.conn.execute(
        "select proname, proretset or proargmodes is not null, proargtypes::regtype[]::text[] from pg_proc p"
        " where pronamespace = 'hwqueue'::regnamespace and not prosecdef"
        " and prolang = (select oid from pg_language where lanname = 'sql')"
    ).fetchall()
    parsed = set()
    for name, is_set, types in made:
        columns = ", ".join(f"null::{kind} as a{number}" for number, kind in enumerate(types)) or "1"
        call = f"hwqueue.{name}({', '.join(f'x.a{number}' for number in range(len(types)))})"
        query = f"(select {columns} offset 0) x"
        query = f"{query} cross join lateral {call} f" if is_set else query
        plan = api.conn.execute(
            SQL("explain (verbose, costs off) select {} from {}").format(
                SQL("f" if is_set else call), SQL(query)
            )
        ).fetchall()
        if any(re.search(rf"\b{name}\(", line) for [line] in plan):
            parsed.add(name)
    assert len(made) > 100
    assert parsed == {"set_stops"}  # an update whose rows are told: perform cannot begin with one


@pytest.mark.parametrize(("retain", "expected"), [(86400, 6), (0, 7)])
def test_statements_of_a_batch(api: Api, retain: int, expected: int) -> None:
    """However many there are, all that go cost one statement more."""
    node, [name] = at_work(api, "plain", 1, retain_completed=retain)
    for size in (2, 10):
        claims = api.claim(node, name, qty=size)
        leases = [claim["lease_id"] for claim in claims]
        tokens = [claim["claim_token"] for claim in claims]
        call = partial(api.rows, "complete_leases", lease_ids=leases, tokens=tokens)
        assert statements(api, call) == (expected, [])


@pytest.mark.parametrize("queues", [1, 2])
def test_statements_of_a_claim_of_several(api: Api, queues: int) -> None:
    """However many wait; where nothing else does, no class is compared."""
    node, names = at_work(api, "plain", queues)
    last = names[-1]
    for name in names:
        while api.claim(node, name, qty=99):
            pass
    found = []
    for waiting in (0, 2, 8):
        batch(api, last, [{}] * waiting)
        count, rows = statements(api, lambda: api.claim(node, *names, qty=8))
        assert len(rows) == waiting
        found.append(count)
    assert found == [12 - queues, 8, 6]


# Settled second in its run: a link of a chain, a parent of a join, the last step of a run.
SECOND: dict[str, list[Row]] = {
    "link": [step("a"), step("b", "a"), step("c", "b")],
    "parent": [step("a"), step("b"), step("c"), step("d", "a", "b", "c")],
    "last": [step("a"), step("b", "a")],
}


@pytest.mark.parametrize(
    ("place", "expected"), [("link", [11, 14]), ("parent", [14, 17]), ("last", [14, 17])]
)
def test_statements_of_steps(api: Api, place: str, expected: list[int]) -> None:
    """Of a completion, and of a settlement as workers make it, which claims nothing."""
    found = []
    for as_worker in (False, True):
        for _ in range(2):  # plans are made, and marks moved, in the first run
            flow = Flow(api, SECOND[place])
            claims = flow.claims()
            finish(api, claims.pop("a"))
            claim = (claims | flow.claims())["b"]
            settle = partial(flow.settle, claim) if as_worker else partial(finish, api, claim)
            count, _ = statements(api, settle)
        found.append(count)
    assert found == expected


def test_statements_of_an_item_of_a_map(api: Api, dsn: str) -> None:
    """Alone, beside a session that counts another one, and of one that lets the next ones in."""
    flow = Flow(api, [each("m", list(range(400)), max_parallel=320)])
    claims = flow.items()
    for number in range(3):
        flow.settle(claims[number])
    alone, _ = statements(api, partial(flow.settle, claims[3]))
    with psycopg.connect(dsn) as other:
        other.execute(
            "select from hwqueue.tally where run_id = %s and part > 0 for no key update", [flow.run]
        )
        beside, _ = statements(api, partial(flow.settle, claims[4]))
    assert beside == alone + 1  # what it leaves


BLOCKED: dict[str, dict[str, Any]] = {
    "away": {"placement": {"require": [AWAY]}},
    "patience": {"placement": {"prefer": [{"weight": 1, "when": {"tags": {"zone": "b"}}}]}},
}


def claim_statements(api: Api, node: Node, queue: str, times: int) -> list[int]:
    """Of that many claims of one lease each, every one completed."""
    counts = []
    for _ in range(times):
        count, [row] = statements(api, lambda: api.claim(node, queue))
        counts.append(count)
        api.complete(row)
    return counts


@pytest.mark.parametrize(("why", "expected", "alone"), [("away", 7, 9), ("patience", 8, 9)])
def test_behind_what_is_blocked(api: Api, why: str, expected: int, alone: int) -> None:
    """Not more with more of it, nor for longer than it stands in front."""
    queue, other = api.queue(patience=86_400), api.queue()
    node = api.node(rack=len(why), labels={"zone": "a"})  # others keep rack 1
    api.node(labels={"zone": "b"}, heartbeat_timeout=86_400)
    api.running(other, node, labels={"app": "db"})
    blocked = [BLOCKED[why] | {"labels": {str(number % 3): "n"}} for number in range(300)]
    leases = batch(api, queue, blocked)
    batch(api, queue, [{"placement": {"resources": {"cpu_milli": 1}}}] * 40)
    api.conn.execute("analyze")
    api.settle_terms()
    claim_statements(api, node, queue, 8)
    found = claim_statements(api, node, queue, 4)
    for lease in leases:
        api.rows("cancel_lease", lease=lease)
    claim_statements(api, node, queue, 4)
    assert (max(found), max(claim_statements(api, node, queue, 4))) == (expected, alone)


def test_behind_what_others_run(api: Api) -> None:
    """A claim looks for its only class from that one's low-water mark on: one statement more."""
    queue, node = api.queue(), api.node()
    api.spawn(queue, **NOWHERE)
    for _ in range(2):
        api.conn.execute(FAR)
    batch(api, queue, [{}] * 40)
    outlive(api.conn)
    api.conn.execute(MARKS_STAY.replace("false", "true"))
    claim_statements(api, node, queue, 4)
    api.conn.execute(MARKS_STAY)
    assert claim_statements(api, node, queue, 2) == [5, 5]


def test_a_registration_without_everywhere_tasks(api: Api) -> None:
    """One look into an index; a claim has none."""
    with explained(api.conn) as work:
        node = api.node()
    assert len(work.scans("everywhere", "everywhere_node")) == 1
    assert work.rows_read("everywhere") == 0
    with explained(api.conn) as work:
        api.claim(node, api.queue())
    assert work.scans("everywhere", "everywhere_node") == []


def test_a_scrape_reads_what_everywhere_tasks_have_by_key(api: Api) -> None:
    """And where there is none, nothing but one look into an index."""
    with explained(api.conn) as work:
        api.rows("metrics")
    assert work.rows_read("everywhere") == work.rows_read("everywhere_node") == 0
    nodes = [api.node(labels={"of": "scrape"}) for _ in range(3)]
    tasks = {"task": "agent", "options": {"affinity_tags": {"of": "scrape"}}}
    ids = [api.row("spawn_everywhere", queue=api.queue(), **tasks) for _ in range(3)]
    for made in ids[:2]:
        api.rows("stop_everywhere", everywhere=made["everywhere_id"])
    api.rows("reap")
    with explained(api.conn) as work:
        api.rows("metrics")
    assert work.rows_read("everywhere_node") == len(nodes)
    assert work.whole_table_scans("everywhere", "everywhere_node") == []


def test_leases_that_are_no_alternatives_and_replace_nothing(api: Api) -> None:
    """Their spawn, their claim and their end read no table of these."""
    with explained(api.conn) as work:
        node, queue = api.node(), api.queue()
        api.spawn(queue)
        claims = api.claim(node, queue)
        api.rows("settle_and_claim", **node.who, **completed(*claims), settle=[], queues=[queue])
    assert work.scans("choice", "replacement") == []


def test_changes_of_gangs_are_in_the_way_of_no_other_team(api: Api) -> None:
    """Of which a tick may have left many."""
    api.conn.execute(
        "insert into hwqueue.team_change (team_id) select gen_random_uuid() from generate_series(1, 1000)"
    )
    with explained(api.conn) as work:
        api.conn.execute(
            "select hwqueue.reap_teams('{choice,everywhere}', 20, '1 hour', m, hwqueue.clock())"
            " from hwqueue.reap_cursor m"
        )
    assert work.rows_read("team_change") == 0
