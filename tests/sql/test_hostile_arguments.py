"""Arguments that are small to send and large to write out, or that mean other things elsewhere."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import Api, Node, beat, raw, settlement, token

pytestmark = pytest.mark.thorough

LONG = "1e131071"  # 16 bytes as it is kept, 131,072 characters as text
SHORT = "1e-16383"
BOMB = f"[{','.join([LONG] * 10_000)}]"  # 1.3 GB as text: more than Postgres holds in a value
SMALL = f"[{','.join([SHORT, '-' + LONG] * 10_000)}]"


def bombs(template: str) -> list[Jsonb]:
    """JSON with a number bomb where the template says %s."""
    return [raw(template % bomb) for bomb in (BOMB, SMALL)]


def claim_of(api: Api) -> tuple[str, Node, Row]:
    queue, node = api.queue(), api.node()
    return queue, node, api.running(queue, node)


@pytest.mark.parametrize(
    "options",
    [
        '{"headers": {"a": %s}}',
        '{"headers": %s}',
        '{"labels": {"a": %s}}',
        '{"labels": %s}',
        '{"priority": %s}',
        '{"tenant": %s}',
        '{"lease_id": %s}',
        '{"deadline": %s}',
        '{"delay": %s}',
        '{"notify": %s}',
        '{"retry": {"kind": %s}}',
        '{"wire": %s}',
        '{"affinity_tags": {"a": %s}}',
        '{"affinity_with": %s}',
        '{"placement": %s}',
        '{"placement": {"require": %s}}',
        '{"placement": {"require": [{"label": "a", "op": "in", "values": %s}]}}',
        '{"placement": {"require": [{"tags": {"a": %s}}]}}',
        '{"placement": {"resources": {"gpu": %s}}}',
        '{"placement": {"isolation": {"cpu": %s}}}',
        '{"placement": {"tolerate": [{"key": "a", "value": %s}]}}',
        '{"placement": {"spread": [{"domain": %s}]}}',
    ],
)
def test_options_of_a_spawn(api: Api, options: str) -> None:
    queue = api.queue()
    for bomb in bombs(options):
        _refused(api, "spawn_lease", queue=queue, task="t", options=bomb)


def test_params_and_batches(api: Api) -> None:
    queue = api.queue()
    for bomb in bombs('{"a": %s}'):
        refusal = _refused(api, "spawn_lease", queue=queue, task="t", params=bomb)
        assert "the limit is" in refusal
    for bomb in (
        *bombs('[{"task": "t", "params": %s}]'),
        *bombs('[{"task": %s}]'),
        *bombs('[{"task": "t", "options": %s}]'),
        *bombs("%s"),
    ):
        _refused(api, "spawn_leases", queue=queue, leases=bomb)


def test_changes_of_a_lease(api: Api) -> None:
    lease = api.spawn(api.queue())
    for bomb in (*bombs('{"labels": %s}'), *bombs('{"placement": {"require": %s}}')):
        _refused(api, "update_lease", lease=lease, changes=bomb)


def test_settlements(api: Api) -> None:
    queue, node, claim = claim_of(api)
    for bomb in bombs("%s"):
        _refused(api, "complete_lease", **token(claim), result=bomb)
        _refused(api, "fail_lease", **token(claim), error=bomb)
    for bomb in bombs('{"message": %s}'):
        _refused(api, "fail_lease", **token(claim), error=bomb)
    item = f'"lease_id": "{claim["lease_id"]}", "claim_token": {claim["claim_token"]}'
    for more in (
        '"outcome": %s',
        '"outcome": "complete", "result": %s',
        '"outcome": "fail", "error": {"a": %s}',
        '"outcome": "fail", "retry": %s',
        '"outcome": "fail", "retry_at": %s',
        '"outcome": "release", "delay": %s',
        '"outcome": "release", "available_at": %s',
    ):
        for bomb in bombs("[{" + item + ", " + more + "}]"):
            _refused(api, "settle_and_claim", **node.who, settle=bomb, queues=[queue])
    for bomb in bombs('[{"outcome": "complete", "lease_id": %s, "claim_token": 1}]'):
        _refused(api, "settle_and_claim", **node.who, settle=bomb, queues=[queue])
    assert api.state(claim["lease_id"]) == "claimed"


def test_a_result_for_a_lease_that_is_not_there(api: Api) -> None:
    """No queue says how large it may be."""
    lease = UUID("00000000-0000-7000-8000-000000000000")
    for bomb in bombs("%s"):
        _refused(api, "complete_lease", lease=lease, token=1, result=bomb)


def test_heartbeats_and_registrations(api: Api) -> None:
    node = api.node()
    for bomb in (*bombs("%s"), *bombs('[{"lease_id": %s, "claim_token": 1}]')):
        _refused(api, "heartbeat_node", **node.who, claims=bomb)
    spec = f'"name": "{node.name}", "instance_id": "first"'
    for more in (
        '"labels": {"a": %s}',
        '"labels": %s',
        '"capacity": {"cpu_milli": %s}',
        '"gpus": [{"resource_id": %s}]',
        '"cores": %s',
        '"taints": [{"key": "a", "effect": %s}]',
        '"resources": %s',
        '"rack": %s',
        '"cpu_isolation": %s',
    ):
        for bomb in bombs("{" + spec + ", " + more + "}"):
            _refused(api, "register_node", node=node.node_id, spec=bomb)


def test_what_operators_ask(api: Api) -> None:
    for bomb in (*bombs('{"require": %s}'), *bombs("%s")):
        _refused(api, "match_nodes", placement=bomb)
    for bomb in bombs('{"queue": %s}'):
        _refused(api, "match_nodes", placement={}, options=bomb)
    for bomb in (*bombs('{"labels": {"a": %s}}'), *bombs("%s")):
        _refused(api, "what_if", nodes=bomb)
    for bomb in bombs('{"code": %s}'):
        _refused(api, "list_events", filter=bomb)


def test_one_that_comes_compressed_from_a_table(api: Api) -> None:
    """Such a value is small as it is kept, however many numbers it has."""
    queue = api.queue()
    api.conn.execute("create temp table bomb (value jsonb)")
    api.conn.execute("insert into bomb values (%s)", [raw(BOMB)])
    with pytest.raises(psycopg.Error) as caught:
        api.conn.execute(
            "select hwqueue.spawn_lease(%s, 't', jsonb_build_object('a', 1), '{}'),"
            " hwqueue.spawn_lease(%s, 't', value) from bomb",
            [queue, queue],
        )
    assert caught.value.sqlstate == "QHA01"
    api.conn.execute("drop table bomb")


def test_long_numbers_that_fit_are_kept(api: Api) -> None:
    """The limit is on what is written out, not on numbers."""
    queue = api.queue()
    params = raw(f'{{"a": [{",".join(["1e5000"] * 100)}], "b": "{"x" * 9000}"}}')
    lease = api.spawn(queue, "t", params)
    [kept] = api.conn.execute("select params = %s from hwqueue.get_lease(%s)", [params, lease]).fetchall()
    assert kept == (True,)


def test_times_before_christ(api: Api) -> None:
    _, _, claim = claim_of(api)
    for moment in ("4713-01-01 00:00:00+00 BC", "0001-12-31 23:59:59+00 BC"):
        refusal = api.refused("QHA01", "fail_lease", **token(claim), error={}, retry_at=moment)
        assert refusal.field == "settlement.retry_at"
    assert api.value("fail_lease", **token(claim), error={}, retry_at="0001-01-01 00:00+00")


def test_limits_that_are_no_number_of_rows(api: Api) -> None:
    """Of every function that takes one."""
    rows = api.conn.execute(
        "select distinct p.proname, p.proargnames[1:p.pronargs - p.pronargdefaults]"
        " from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace and p.prosecdef"
        " and 'p_limit' = any (p.proargnames)"
    ).fetchall()
    given: Row = {
        "p_placement": Jsonb({}),
        "p_node": api.node().node_id,
        "p_epoch": 1,
        "p_filter": Jsonb({}),
        "p_changes": Jsonb({"priority": 1}),
        "p_lease": api.spawn(api.queue()),
        "p_name": "none",
        "p_everywhere": api.row("spawn_everywhere", queue=api.queue(), task="agent")["everywhere_id"],
        "p_run": Flow(api, [step("a")]).run,
        "p_step": "a",
        "p_part": "queues",
    }
    assert {"list_nodes", "list_leases", "list_events", "reap"} <= {name for name, _ in rows}
    for name, required in rows:
        arguments = {argument[2:]: given[argument] for argument in required}
        for limit in (-1, -(2**31)):
            refusal = api.refused("QHA01", name, **arguments, limit=limit)
            assert refusal.field == "p_limit", name


def test_ids_of_ones_own_do_not_stay_first(api: Api, clock: Clock) -> None:
    """Whatever a producer chooses: what is new is on the first page."""
    queue = api.queue()
    chosen = [UUID(f"ffffffff-ffff-ffff-ffff-{number:012x}") for number in range(5)]
    for lease in chosen:
        api.spawn(queue, lease_id=str(lease))
    mine = []
    for _ in range(3):
        clock.advance(timedelta(milliseconds=2))
        mine.append(api.spawn(queue))
    seen: list[UUID] = []
    before = None
    while page := api.rows("list_leases", filter={"queue": queue}, limit=2, before=before):
        seen += [row["lease_id"] for row in page]
        before = seen[-1]
    assert seen == mine[::-1] + chosen[::-1]


# What is said with a backslash in a pattern somewhere.
UNDER_ANY_SETTING: list[tuple[str, Row]] = [
    ("in placements", {"placement": {"require": [{"label": "v", "op": op, "values": [value]}]}})
    for op, value in (
        ("version", ">= 1.2, < 3"),
        ("semver", ">1.0.0"),
        ("regexp", "^a{1,3}[[:alpha:]]x\\.y$"),
        ("gt", 12.5),
    )
] + [
    ("times", {"available_at": "2030-01-31T12:00:00.5Z"}),
    ("the params blob", {"wire": "\\x"}),
]


@pytest.mark.parametrize("setting", ["on", "off"])
def test_standard_conforming_strings(api: Api, dsn: str, setting: str) -> None:
    """The caller's session decides how literals are read, in what runs for it, too."""
    queue = api.queue()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select set_config('standard_conforming_strings', %s, false)", [setting])
        other = Api(conn)
        node = other.node(labels={"v": "2.1.7", "n": "-12.5"})
        for _, options in UNDER_ANY_SETTING:
            other.spawn(queue, **options)
        api.spawn(queue, placement={"require": [{"label": "n", "op": "lt", "values": [0]}]})
        claims = other.claim(node, queue, qty=10)
        assert len(claims) == 4  # all but the label that is no number, the pattern, and 2030
        with pytest.raises(psycopg.Error) as caught:
            other.spawn(
                queue,
                placement={"require": [{"label": "v", "op": "regexp", "values": ["***a"]}]},
            )
        assert caught.value.sqlstate == "QHC03"
        assert other.rows("heartbeat_node", **node.who, claims=beat(*claims))
        settled = other.rows(
            "settle_and_claim",
            **node.who,
            settle=[
                settlement(claims[0], "fail", error={}, retry_at="2030-01-31T12:00:00Z"),
                settlement(claims[1], result={"a": "\\"}),
                settlement(claims[2], "release", delay="1 minute"),
            ],
            queues=[queue],
        )
        assert [row["verdict"] for row in settled] == ["ok"] * 3


def _refused(api: Api, function: str, **arguments: Any) -> str:
    """Call with a bomb: refused with a code of the queue's, in no more memory than the call has."""
    with pytest.raises(psycopg.Error) as caught:
        api.rows(function, **arguments)
    assert (caught.value.sqlstate or "").startswith("QH"), caught.value
    return caught.value.diag.message_primary or ""
