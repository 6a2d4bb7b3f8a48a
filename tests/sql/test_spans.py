"""Spans are seconds wherever one comes in, and a span stands for a time by the database's clock."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, beat, token

DAY = timedelta(days=1)
ZONES = {
    "Europe/Berlin": datetime(2030, 3, 30, 12, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2030, 4, 6, 12, tzinfo=UTC),
}
"""The clocks of the zone change within a day from then."""

Given = str | timedelta


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("given", ["1 day", DAY], ids=["text", "interval"])
def test_a_day_has_24_hours(
    api: Api, conn: psycopg.Connection, clock: Clock, zone: str, given: Given
) -> None:
    clock.freeze(ZONES[zone])
    conn.execute("select set_config('TimeZone', %s, false)", [zone])
    assert conn.execute(
        "select hwqueue.clock() + interval '1 day' - hwqueue.clock() <> interval '24 hours'"
    ).fetchone() == (True,), "nothing changes within this day"
    lasts = lasting(api, clock, given)
    assert lasts == dict.fromkeys(lasts, DAY)


def lasting(api: Api, clock: Clock, given: Given) -> dict[str, timedelta]:
    """How long everything lasts that was to last for a day, by what says so."""
    now = clock.now().astimezone(UTC)  # two times of one zone would be compared by its clocks
    if isinstance(given, str):
        queue = api.queue(claim_timeout=given, retain_completed=given)
        spawned = api.lease(api.spawn(queue, delay=given))
        claim = api.running(api.queue(), claim_timeout=given)
        other = api.queue(claim_timeout=given)
        policy = api.conn.execute(
            "select hwqueue.clock() + q.retain_completed from hwqueue.queue q where q.name = %s",
            [queue],
        ).fetchone()
        assert policy is not None
        return {
            "delay": spawned["available_at"] - now,
            "policy.claim_timeout": api.running(other)["expires_at"] - now,
            "options.claim_timeout": claim["expires_at"] - now,
            "policy.retain_completed": policy[0] - now,
        }
    queue, node = api.queue(), api.node()
    api.spawn(queue)
    [claim] = api.claim(node, queue, claim_timeout=given)
    lasts = {"claim_task": claim["expires_at"] - now}
    api.spawn(queue)
    [both] = api.rows("settle_and_claim", **node.who, settle=[], queues=[queue], claim_timeout=given)
    lasts["settle_and_claim"] = both["expires_at"] - now
    short = api.running(queue, node)
    lasts["extend_claim"] = api.value("extend_claim", **token(short), extend=given) - now
    short = api.running(queue, node)
    [alive] = api.rows("heartbeat_node", **node.who, claims=beat(short), extend=given)
    lasts["heartbeat_node"] = alive["expires_at"] - now
    short = api.running(queue, node)
    saved = api.value("save_checkpoint", **token(short), name="one", extend=given)
    lasts["save_checkpoint"] = saved - now
    api.rows("drain_node", node=node.node_id, deadline=given)
    api.rows("attest_node", node=node.node_id, domain="acme", expires_after=given)
    name = f"made-{uuid4().hex}"
    api.rows(
        "create_token",
        name=name,
        secret_sha256=uuid4().bytes * 2,
        role="viewer",
        expires_after=given,
    )
    api.rows("set_webhook", name=name, url="https://hooks.example/")
    api.rows("rotate_webhook", name=name, keep=given)
    api.rows("set_node_expiry", after=given)
    for what, statement in {
        "drain_node": "select drain_by from hwqueue.node where node_id = %(node)s",
        "attest_node": "select expires_at from hwqueue.attestation where node_id = %(node)s",
        "create_token": "select expires_at from hwqueue.api_token where name = %(name)s",
        "rotate_webhook": "select old_secret_until from hwqueue.webhook where name = %(name)s",
        "set_node_expiry": "select hwqueue.clock() + node_expiry from hwqueue.installation",
    }.items():
        row = api.conn.execute(statement, {"node": node.node_id, "name": name}).fetchone()
        assert row is not None
        lasts[what] = row[0] - now
    api.rows("drop_webhook", name=name)
    return lasts


@pytest.mark.parametrize("given", ["1 month", "1 year", "1 mon 3 days", "infinity"])
def test_months_have_no_length(api: Api, given: str) -> None:
    assert api.fault("spawn_lease", queue=api.queue(), task="t", options={"delay": given}) == "options.delay"


def test_a_number_is_a_time_from_now(api: Api, clock: Clock) -> None:
    queue, now = api.queue(), clock.now()
    waits = api.lease(api.spawn(queue, available_at=90, deadline=7200.5))
    assert waits["available_at"] == now + timedelta(seconds=90)
    assert waits["deadline"] == now + timedelta(seconds=7200.5)
    claim = api.running(queue)
    failed = {"outcome": "fail", "error": {}, "retry_at": 5, **token_of(claim)}
    node = api.lease(claim["lease_id"])["node_id"]
    epoch = api.conn.execute(
        "select node_epoch from hwqueue.node_state where node_id = %s", [node]
    ).fetchone()
    assert epoch is not None
    api.rows("settle_and_claim", node=node, epoch=epoch[0], settle=[failed], queues=[queue], qty=0)
    again = api.lease(claim["lease_id"])
    assert (again["state"], again["available_at"]) == ("scheduled", now + timedelta(seconds=5))
    clock.advance(timedelta(minutes=1))
    later = api.spawn(queue)
    for since, found in ((-30, {later}), (-3600, {later, claim["lease_id"], waits["lease_id"]})):
        asked = {"queue": queue, "created_from": since}
        assert {row["lease_id"] for row in api.rows("list_leases", filter=asked)} == found
    events = api.rows("list_events", filter={"since": -30, "queue": queue})
    assert events == api.rows("list_events", filter={"since": text(clock, -30), "queue": queue})


def token_of(claim: dict[str, Any]) -> dict[str, Any]:
    return {"lease_id": str(claim["lease_id"]), "claim_token": claim["claim_token"]}


def text(clock: Clock, seconds: int) -> str:
    return (clock.now() + timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize("wrong", [1_900_000_000, -315_360_001, 1e300])
def test_a_number_that_is_no_span(api: Api, wrong: float) -> None:
    """The seconds since 1970 above all."""
    options = {"deadline": wrong}
    assert api.fault("spawn_lease", queue=api.queue(), task="t", options=options) == "options.deadline"


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_an_expiry_that_is_no_span(api: Api, days: int) -> None:
    given = {"secret_sha256": bytes(32), "role": "viewer", "expires_after": timedelta(days=days)}
    assert api.fault("create_token", name="odd", **given) == "p_expires_after"


def test_the_earlier_expiry_holds(api: Api, clock: Clock) -> None:
    node = api.node().node_id
    for hours, after, lasts in ((1, DAY, 1), (48, DAY, 24)):
        at = clock.now() + timedelta(hours=hours)
        api.rows("attest_node", node=node, domain="a", expires_at=at, expires_after=after)
        ends = api.conn.execute(
            "select expires_at from hwqueue.attestation where node_id = %s", [node]
        ).fetchone()
        assert ends == (clock.now() + timedelta(hours=lasts),)
