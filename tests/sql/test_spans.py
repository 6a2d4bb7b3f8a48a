"""Spans are seconds wherever one comes in, and a span stands for a time by the database's clock."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, beat, settlement, token

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
        kept = "select hwqueue.clock() + q.retain_completed from hwqueue.queue q where q.name = %s"
        return {
            "delay": spawned["available_at"] - now,
            "policy.claim_timeout": api.running(other)["expires_at"] - now,
            "options.claim_timeout": claim["expires_at"] - now,
            "policy.retain_completed": api.one(kept, queue) - now,
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
    secret = uuid4().bytes * 2
    api.rows("create_token", name=name, secret_sha256=secret, role="viewer", expires_after=given)
    api.rows("set_webhook", name=name, url="https://hooks.example/")
    api.rows("rotate_webhook", name=name, keep=given)
    api.rows("set_node_expiry", after=given)
    for what, statement in {
        "drain_node": "select drain_by from hwqueue.node where node_id = %(node)s",
        "attest_node": "select attested_until[1] from hwqueue.node where node_id = %(node)s",
        "create_token": "select expires_at from hwqueue.api_token where name = %(name)s",
        "rotate_webhook": "select old_secret_until from hwqueue.webhook where name = %(name)s",
        "set_node_expiry": "select hwqueue.clock() + node_expiry from hwqueue.installation",
    }.items():
        [(at,)] = api.conn.execute(statement, {"node": node.node_id, "name": name}).fetchall()
        lasts[what] = at - now
    api.rows("drop_webhook", name=name)
    return lasts


def test_what_is_no_span(api: Api) -> None:
    """Months have no length; and what counts the seconds since 1970 is no span above all."""
    spawn = {"queue": api.queue(), "task": "t"}
    for delay in ("1 month", "1 year", "1 mon 3 days", "infinity"):
        assert api.fault("spawn_lease", **spawn, options={"delay": delay}) == "options.delay"
    for wrong in (1_900_000_000, -315_360_001, 1e300):
        assert api.fault("spawn_lease", **spawn, options={"deadline": wrong}) == "options.deadline"
    token = {"name": "odd", "secret_sha256": bytes(32), "role": "viewer"}
    for days in (0, -1, 3651):
        expires = timedelta(days=days)
        assert api.fault("create_token", **token, expires_after=expires) == "p_expires_after"


def test_a_number_is_a_time_from_now(api: Api, clock: Clock) -> None:
    queue, node, now = api.queue(), api.node(), clock.now()
    waits = api.lease(api.spawn(queue, available_at=90, deadline=7200.5))
    assert waits["available_at"] == now + timedelta(seconds=90)
    assert waits["deadline"] == now + timedelta(seconds=7200.5)
    claim = api.running(queue, node)
    failed = settlement(claim, "fail", error={}, retry_at=5)
    api.rows("settle_and_claim", **node.who, settle=[failed], queues=[queue], qty=0)
    again = api.lease(claim["lease_id"])
    assert (again["state"], again["available_at"]) == ("scheduled", now + timedelta(seconds=5))
    clock.advance(timedelta(minutes=1))
    later = api.spawn(queue)
    for since, found in ((-30, {later}), (-3600, {later, claim["lease_id"], waits["lease_id"]})):
        asked = {"queue": queue, "created_from": since}
        assert {row["lease_id"] for row in api.rows("list_leases", filter=asked)} == found
    at = (clock.now() - timedelta(seconds=30)).isoformat()
    events = api.rows("list_events", filter={"since": -30, "queue": queue})
    assert events == api.rows("list_events", filter={"since": at, "queue": queue})


def test_the_earlier_expiry_holds(api: Api, clock: Clock) -> None:
    node = api.node().node_id
    for hours, after, lasts in ((1, DAY, 1), (48, DAY, 24)):
        at = clock.now() + timedelta(hours=hours)
        api.rows("attest_node", node=node, domain="a", expires_at=at, expires_after=after)
        ends = api.one("select attested_until[1] from hwqueue.node where node_id = %s", node)
        assert ends == clock.now() + timedelta(hours=lasts)
