"""Limits: what a specification may say, which leases have them, and what operators see of them."""

from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import Api, Node, token
from tests.sql.explained import explain
from tests.sql.logins import Logins

SECOND = timedelta(seconds=1)
_numbers = count(1)


def made(api: Api, **spec: Any) -> str:
    """Create a limit; its name."""
    name = f"limit-{next(_numbers)}"
    assert api.value("create_limit", name=name, spec=spec) is True
    return name


def listed(api: Api, name: str) -> Row:
    [row] = [row for row in api.rows("list_limits") if row["name"] == name]
    return row


def claimed(api: Api, node: Node, queue: str, quantity: int = 10) -> list[Row]:
    """What the node is granted once lanes have let through what they may."""
    api.rows("reap")
    return api.claim(node, queue, qty=quantity)


@pytest.mark.parametrize("by", [None, "key", "tenant"])
def test_no_more_than_its_slots_run(api: Api, queue: str, node: Node, by: str | None) -> None:
    name = made(api, slots=2, **({"by": by} if by else {}))
    limits = {name: "k"} if by == "key" else [name]
    leases = [api.spawn(queue, tenant="t", limits=limits) for _ in range(4)]
    other = api.spawn(queue, tenant="u", limits={name: "k"} if by == "key" else [name]) if by else None
    first = claimed(api, node, queue)
    expected = [*leases[:2], *([other] if other else [])]
    assert sorted(row["lease_id"] for row in first) == sorted(expected)
    assert claimed(api, node, queue) == []
    api.complete(*[row for row in first if row["lease_id"] == leases[0]])
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[2:3]
    found = listed(api, name)
    assert (found["parked"], found["used"], found["spec"]["slots"]) == (1, 3 if by else 2, 2)


def test_a_rate_opens_by_the_clock(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = made(api, rate={"count": 1, "per": 10, "burst": 2})
    leases = [api.spawn(queue, limits=[name]) for _ in range(4)]
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[:2]
    assert claimed(api, node, queue) == []
    found = explain(api, leases[2])
    assert found["code"] == "rate_limited"
    assert SECOND < found["waits_until"] - found["as_of"] <= 10 * SECOND
    clock.advance(10 * SECOND)
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[2:3]
    api.rows("reap")
    clock.advance(-3600 * SECOND)
    api.rows("reap")
    for _ in range(4):
        clock.advance(10 * SECOND)
        api.rows("reap")
    assert claimed(api, node, queue) != []  # its time was an hour from now


def test_keys_take_turns(api: Api, queue: str, node: Node) -> None:
    name = made(api, fair=True, by="key", weights={"b": 2})
    for key in "aaaaaaaaaaaabbbbbbbbbbbb":
        api.spawn(queue, TASK, {"key": key}, limits={name: key})
    keys = [row["params"]["key"] for _ in range(12) for row in claimed(api, node, queue, 1)]
    assert sorted(keys) == ["a"] * 4 + ["b"] * 8
    waits = [row["lease_id"] for row in api.rows("limit_lanes", name=name) if row["key"] == "a"]
    assert explain(api, waits[0])["code"] == "behind_its_key"
    assert {row["key"]: (row["weight"], row["most"]) for row in api.rows("limit_lanes", name=name)} == {
        "a": (1, 4),
        "b": (2, 8),
    }


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec", {}),
        ("spec", {"slots": 1, "fair": True, "by": "key"}),
        ("spec", {"fair": False, "by": "key"}),
        ("spec.slots", {"slots": 0}),
        ("spec.rate", {"rate": {"count": 1}}),
        ("spec.rate.count", {"rate": {"count": "many", "per": 1}}),
        ("spec.rate.burst", {"rate": {"count": 1, "per": "366 days", "burst": 10}}),
        ("spec.by", {"fair": True}),
        ("spec.by", {"slots": 1, "by": "colour"}),
        ("spec.weights", {"slots": 1, "by": "key", "weights": {"a": 1}}),
        ("spec.weights.a", {"fair": True, "by": "key", "weights": {"a": 0}}),
        ("spec.weights", {"fair": True, "by": "key", "weights": {str(n): 1 for n in range(1001)}}),
        ("spec.weights", {"fair": True, "by": "key", "weights": {201 * "k": 1}}),
        ("spec.turn", {"fair": True, "by": "key", "turn": 5}),
        ("spec.depth", {"slots": 1, "depth": 5}),
    ],
)
def test_what_is_no_specification(api: Api, field: str, spec: Row) -> None:
    assert api.refused("QHM03", "create_limit", name="no", spec=spec).field == field


def test_names_and_changes(api: Api) -> None:
    name = made(api, rate={"count": 7, "per": 1})
    assert api.one("select per from hwqueue.limit_rule where name = %s", name) * 7 >= SECOND  # never faster
    name = made(api, rate={"count": 600, "per": "1 min"})
    assert listed(api, name)["spec"] == {"rate": {"count": 600, "per": 60, "burst": 60}}
    assert api.value("create_limit", name=name, spec={"rate": {"count": 600, "per": 60}}) is False
    api.refused("QHM02", "create_limit", name=name, spec={"slots": 1})
    assert api.refused("QHM03", "set_limit", name=name, changes={"rate": None, "slots": 1}).field == "changes"
    assert api.refused("QHM03", "set_limit", name=name, changes={"by": "key"}).field == "changes"
    changed = api.value("set_limit", name=name, changes={"rate": {"count": 5, "per": 1}})
    assert changed == {"rate": {"count": 5, "per": 1, "burst": 2}}
    fair = made(api, fair=True, by="tenant", weights={"a": 2, "b": 3})
    assert api.value("set_limit", name=fair, changes={"weights": {"a": None, "*": 0.5}})["weights"] == {
        "b": 3,
        "*": 0.5,
    }
    assert "weights" not in api.value("set_limit", name=fair, changes={"weights": None})
    assert api.value("drop_limit", name=name) is True
    assert api.value("drop_limit", name=name) is False
    for function in ("set_limit", "limit_lanes", "throttle_limit"):
        more: Row = {"changes": {}} if function == "set_limit" else {}
        api.refused("QHM01", function, name=name, **more)
    assert made(api, slots=1) != name
    assert api.value("create_limit", name=name, spec={"slots": 1}) is True  # the name is free


def test_what_a_lease_names(api: Api, queue: str) -> None:
    shared, other, keyed, tenant = (
        made(api, slots=1),
        made(api, slots=2),
        made(api, slots=1, by="key"),
        made(api, slots=1, by="tenant"),
    )
    call = {"queue": queue, "task": TASK}

    def refused(limits: Any, code: str = "QHM03", **more: Any) -> str | None:
        return api.refused(code, "spawn_lease", **call, options={"limits": limits, **more}).field

    assert refused(["none"], "QHM01") is None
    assert refused({1000 * "n": 5}) == f"options.limits.{100 * 'n'}"
    assert refused("text") == "options.limits"
    assert refused({keyed: 7}) == f"options.limits.{keyed}"
    assert refused([keyed]) == f"options.limits.{keyed}"
    assert refused({shared: "k"}) == f"options.limits.{shared}"
    assert refused({tenant: "k"}) == f"options.limits.{tenant}"
    assert refused([shared, other]) is not None
    assert refused([shared], one_of=str(UUID(int=7))) == "options.limits"
    assert refused([shared], replaces={"lease": str(UUID(int=7))}) == "options.limits"
    batch = [{"task": TASK}, {"task": TASK, "options": {"limits": ["none"]}}]
    assert api.refused("QHM01", "spawn_leases", queue=queue, leases=batch).detail["index"] == 1
    members = Jsonb([{"task": TASK, "count": 2, "options": {"limits": [shared]}}])
    assert "limits" in (api.fault("spawn_gang", queue=queue, members=members) or "")
    assert api.fault("spawn_everywhere", **call, options={"limits": [shared]}) == "options.limits"
    options = [{"limits": {shared: None, keyed: key, tenant: None}, "tenant": "t"} for key in "kl"]
    kinds = [{"task": TASK, "options": each} for each in (*options, {}, {"limits": ["none"]})]
    compact = {"kinds": kinds, "each": [{}] * 4, "of": [1, 0, 2, 1]}  # nothing is of the last one
    rows = [api.row("spawn_lease", **call, options=options[0])]
    rows += api.rows("spawn_leases", queue=queue, leases=compact)
    assert [row["state"] for row in rows] == [*["scheduled"] * 3, "pending", "scheduled"]
    lanes = "select array(select key from unnest(l.lanes)) from hwqueue.lease l where l.lease_id = %s"
    found = [api.one(lanes, row["lease_id"]) for row in rows]
    assert found == [[*key, "t", ""] if key else [] for key in ("k", "l", "k", "", "l")]  # in this order


def test_what_all_leases_of_a_queue_have(api: Api, node: Node) -> None:
    shared, keyed = made(api, slots=1), made(api, slots=1, by="key")
    for wrong, code in ((["none"], "QHM01"), ([keyed], "QHM03"), ([shared, made(api, slots=1)], "QHM03")):
        api.refused(code, "create_queue", queue="q-no", policy={"limits": wrong})
    queue = api.queue(limits=[shared])
    assert api.listed(queue)["policy"]["limits"] == [shared]
    assert listed(api, shared)["queues"] == [queue]
    leases = [api.spawn(queue), api.spawn(queue, limits=[shared]), api.spawn(queue, limits={keyed: "k"})]
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[:1]
    call = {"queue": queue, "task": TASK}
    assert api.refused("QHM03", "spawn_everywhere", **call, options={}).field == "p_queue"
    api.refused("QHM03", "spawn_gang", queue=queue, members=Jsonb([{"task": TASK, "count": 2}]))
    api.refused("QHM03", "drop_limit", name=shared)
    api.rows("set_queue_policy", queue=queue, policy={"limits": []})
    assert api.spawn(queue) in [row["lease_id"] for row in api.claim(node, queue)]


def test_steps_and_tasks_on_every_node_of_a_queue_with_limits(api: Api) -> None:
    shared = made(api, slots=1)
    spec = {"name": f"flow-{next(_numbers)}", "steps": [{"name": n, "task": n} for n in "abc"]}
    queue = api.queue()
    everywhere = api.row("spawn_everywhere", queue=queue, task=TASK, options={"mode": "once"})[
        "everywhere_id"
    ]
    api.rows("set_queue_policy", queue=queue, policy={"limits": [shared]})
    api.rows("submit_spec", spec=spec | {"queue": queue}, input={}, options={})
    node = api.node()
    tasks = [row["task_name"] for _ in range(2) for row in claimed(api, node, queue)]
    assert sorted(tasks) == [*"a", TASK]  # one step, and the lease of the node beside it
    assert api.row("get_everywhere", everywhere=everywhere)["everywhere_id"] == everywhere
    assert api.one("select count(*) from hwqueue.lease where team_id is not null and lanes is not null") == 0
    assert (listed(api, shared)["used"], listed(api, shared)["parked"]) == (1, 2)


def test_a_lane_that_is_closed(api: Api, clock: Clock, queue: str, node: Node, logins: Logins) -> None:
    name = made(api, slots=2, by="key")
    lease, other = (api.spawn(queue, limits={name: key}) for key in "ab")
    close = {"name": name, "key": "a", "retry_after": 30 * SECOND}
    until = api.value("throttle_limit", **close)
    assert api.value("throttle_limit", **close | {"retry_after": 5 * SECOND}) == until  # no shorter
    assert [row["lease_id"] for row in claimed(api, node, queue)] == [other]
    found = explain(api, lease)
    assert (found["code"], found["waits_until"]) == ("rate_limited", until)
    lanes = {row["key"]: row["closed_until"] for row in api.rows("limit_lanes", name=name)}
    assert lanes == {"a": until, "b": None}
    clock.advance(31 * SECOND)
    [claim] = claimed(api, node, queue)
    assert claim["lease_id"] == lease
    until = api.value("throttle_limit", name=name, lease=lease, retry_after=30 * SECOND)
    api.rows("release_lease", **token(claim))
    assert claimed(api, node, queue) == []
    _, worker = logins.api("hwqueue_worker")
    with pytest.raises(psycopg.Error, match="only operators open a lane"):
        worker.value("throttle_limit", name=name, key="a")
    assert api.value("throttle_limit", name=name, key="a") is None  # opened
    assert [row["lease_id"] for row in claimed(api, node, queue)] == [lease]
    for key in (None, 201 * "k"):
        assert api.refused("QHM03", "throttle_limit", name=name, key=key).field == "p_key"
    assert api.fault("throttle_limit", name=name, key="a", tenant=101 * "t") == "p_tenant"
    fair = made(api, fair=True, by="tenant")
    for who in ("key", "tenant"):  # either says it
        api.value("throttle_limit", name=fair, retry_after=SECOND, **{who: "acme"})
    assert api.row("limit_lanes", name=fair)["tenant"] == "acme"
    shared = made(api, slots=1)
    assert api.refused("QHM03", "throttle_limit", name=shared, key="a").field == "p_key"
    assert api.refused("QHM03", "throttle_limit", name=shared, lease=lease).field == "p_lease"
    assert api.fault("throttle_limit", name=shared, retry_after=-SECOND) == "p_until"


def test_why_a_lease_waits_for_its_limit(api: Api, queue: str, node: Node) -> None:
    name = made(api, slots=1, by="key")
    leases = [api.spawn(queue, limits={name: "u42"}) for _ in range(4)]
    assert explain(api, leases[1])["headline"] == (  # nobody has looked at its lane yet
        f"2nd of 4 of key u42 in limit {name}; 0 of 1 slots are in use"
    )
    [running] = claimed(api, node, queue)
    found = explain(api, leases[3])
    assert (found["state"], found["code"], found["waits_until"]) == ("scheduled", "limit_reached", None)
    assert found["headline"] == (
        f"3rd of 3 of key u42 in limit {name}; 1 of 1 slots are in use: "
        f"{running['lease_id']} runs on {node.name}"
    )
    [reason] = api.rows("pending_reasons", queue=queue)
    assert (reason["code"], reason["pending"], reason["nodes_free"]) == ("limit_reached", 3, 0)
    assert f" of 3 of key u42 in limit {name}; 1 of 1 slots" in reason["message"]
    assert api.rows("pending_reasons", queue=queue, kind="contended") == []
    row = api.row("limit_lanes", name=name, order="wait")
    assert (row["key"], row["used"], row["most"], row["parked"]) == ("u42", 1, 1, 3)
    assert (row["lease_id"], row["since"]) == (leases[1], listed(api, name)["oldest_at"])
    api.conn.execute(  # 10,001 lanes are counted
        "insert into hwqueue.lane (lane_id, limit_id, tenant, key) select n, limit_id, '', n::text"
        " from hwqueue.limit_rule, generate_series(1, 10002) n where name = %s",
        [name],
    )
    assert listed(api, name)["lanes"] == 10_001


def test_a_slot_lasts_as_long_as_its_claim(api: Api, clock: Clock, node: Node) -> None:
    """Also when the claim was asked to stop, and when it has expired."""
    name, queue = made(api, slots=1), api.queue(claim_timeout=30)
    leases = [api.spawn(queue, limits=[name]) for _ in range(2)]
    [running] = claimed(api, node, queue)
    api.rows("cancel_lease", lease=running["lease_id"])
    assert claimed(api, node, queue) == []
    clock.advance(60 * SECOND)
    assert api.claim(node, queue) == []
    assert [row["lease_id"] for row in claimed(api, node, queue)] == leases[1:]  # reap has ended it


def test_who_comes_later_is_in_no_line(api: Api, clock: Clock, queue: str, node: Node) -> None:
    name = made(api, slots=1, by="key")
    later = api.spawn(queue, limits={name: "k"}, delay=10)
    leases = [api.spawn(queue, limits={name: "k"}) for _ in range(2)]
    [running] = claimed(api, node, queue)
    assert running["lease_id"] == leases[0]
    clock.advance(11 * SECOND)
    assert claimed(api, node, queue) == []  # it is due, and parked behind the other one
    for expected in (leases[1], later):
        api.complete(running)
        [running] = claimed(api, node, queue)
        assert running["lease_id"] == expected
