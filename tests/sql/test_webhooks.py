"""Webhooks: set_webhook, claim_deliveries, settle_delivery and what is around them."""

import base64
import hashlib
import hmac
import json
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, count_all, outlive
from tests.sql.test_installation import become_another_server

URL = "https://hooks.example/hwqueue"
_numbers = count(1)


@pytest.fixture(autouse=True)
def _own_webhooks(api: Api) -> None:
    """No webhook of an earlier test claims along."""
    for row in api.rows("list_webhooks"):
        api.rows("drop_webhook", name=row["name"])


def made(api: Api, **options: Any) -> tuple[str, str]:
    """Make a webhook; its name and secret."""
    name = f"hook-{next(_numbers)}"
    return name, api.value("set_webhook", name=name, url=URL, options=options)


def listed(api: Api, name: str) -> Row:
    """What list_webhooks says of a webhook."""
    [row] = [row for row in api.rows("list_webhooks") if row["name"] == name]
    return row


def claimed(api: Api, **arguments: Any) -> list[Row]:
    """What is to be sent now, of all that has committed."""
    outlive(api.conn)
    return api.rows("claim_deliveries", **arguments)


def told(rows: list[Row]) -> list[tuple[str, str]]:
    return sorted((row["webhook"], row["code"]) for row in rows)


def settled(api: Api, row: Row, **result: Any) -> str:
    """Record how an attempt ended."""
    state = api.value("settle_delivery", delivery=row["delivery_id"], attempt=row["attempt"], result=result)
    assert isinstance(state, str)
    return state


def delivery(api: Api, row: Row) -> Row:
    """The delivery as it is now."""
    rows = api.rows("list_deliveries", name=row["webhook"])
    [found] = [each for each in rows if each["delivery_id"] == row["delivery_id"]]
    return found


def to_test(api: Api, times: int = 1) -> str:
    """A webhook that is told of nothing but so many tests; its name."""
    name, _ = made(api, codes=["none_of_these"])
    for _ in range(times):
        api.rows("test_webhook", name=name)
    return name


def signed(secret: str, row: Row) -> str:
    """The signature that a receiver computes."""
    head = row["headers"]
    message = f"{head['webhook-id']}.{head['webhook-timestamp']}.{row['body']}"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.digest(key, message.encode(), hashlib.sha256)).decode()


def test_an_event_is_delivered_once(api: Api, queue: str) -> None:
    """And what was before is not told."""
    api.rows("pause_queue", queue=queue)
    api.rows("resume_queue", queue=queue)
    made(api)
    assert [code for _, code in told(claimed(api))] == ["webhook_set"]  # itself
    name, secret = made(api, codes=["queue_paused"])
    api.rows("pause_queue", queue=queue)
    [row] = [row for row in claimed(api) if row["webhook"] == name]
    assert (row["url"], row["attempt"]) == (URL, 1)
    body = json.loads(row["body"])
    assert (body["type"], body["data"]["queue"]) == ("queue_paused", queue)
    assert row["headers"]["webhook-signature"] == signed(secret, row)
    assert settled(api, row, status=204) == "delivered"
    assert claimed(api) == []
    found = delivery(api, row)
    assert (found["state"], found["status"], found["attempt_count"]) == ("delivered", 204, 1)
    assert (listed(api, name)["delivered"], listed(api, name)["waiting"]) == (1, 0)


def test_filters_hold_together(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    filters: dict[str, Row] = {
        "queue": {"queues": [queue]},
        "tenant": {"tenant": "film"},
        "labels": {"labels": {"app": "db"}},
        "all": {"codes": ["lease_cancelled", "queue_paused"]},
    }
    hooks = {made(api, **{"codes": ["lease_cancelled"]} | each)[0]: kind for kind, each in filters.items()}
    leases = [
        api.spawn(queue, tenant="film"),
        api.spawn(other, tenant="film", labels={"app": "db"}),
        api.spawn(other),
    ]
    for lease in leases:
        api.rows("cancel_lease", lease=lease)
    api.rows("pause_queue", queue=queue)
    about = [(hooks[row["webhook"]], json.loads(row["body"])["data"]["lease_id"]) for row in claimed(api)]
    first, second, third = map(str, leases)
    expected: list[tuple[str, str | None]] = [
        ("queue", first),
        ("tenant", first),
        ("tenant", second),
        ("labels", second),
    ]
    expected += [("all", each) for each in (first, second, third, None)]
    assert sorted(about, key=str) == sorted(expected, key=str)


def test_of_a_lease_that_is_gone_no_tenant_is_told(api: Api, clock: Clock) -> None:
    """Nobody knows any more whose it was: producers choose ids, and another tenant may take one.

    Its events may still be to be routed.
    """
    queue, gone, again = api.queue(), str(uuid4()), str(uuid4())
    codes = ["lease_cancelled", "lease_deleted"]
    for narrow in ({"tenant": "film"}, {"tenant": "print"}, {"labels": {"app": "db"}}):
        made(api, codes=codes, **narrow)
    open_to_all, _ = made(api, codes=codes)
    for lease in (gone, again):
        api.spawn(queue, tenant="film", lease_id=lease)
        api.rows("cancel_lease", lease=lease, reason="of film")
    api.rows("delete_leases", filter={"queue": queue})
    clock.advance(timedelta(seconds=1))
    api.spawn(queue, tenant="print", labels={"app": "db"}, lease_id=again)
    rows = claimed(api)
    assert told(rows) == [(open_to_all, "lease_cancelled")] * 2 + [(open_to_all, "lease_deleted")] * 2
    cancelled = [json.loads(row["body"])["data"] for row in rows if row["code"] == "lease_cancelled"]
    assert {data["tenant"] for data in cancelled} == {None}


def test_completions_are_told_to_who_names_them(api: Api, clock: Clock) -> None:
    queue, other, node = api.queue(), api.queue(), api.node()
    name, _ = made(api, codes=["lease_completed"], queues=[queue], tenant="film")
    made(api)  # every event, and a completion is none
    rows = [api.running(queue, node, tenant=tenant) for tenant in ("film", "film", "print")]
    rows.append(api.running(other, node, tenant="film"))
    for row in rows:
        api.complete(row)
    clock.advance(timedelta(seconds=1))
    count_all(api.conn)
    found = [row for row in claimed(api) if row["code"] == "lease_completed"]
    assert told(found) == [(name, "lease_completed")] * 2
    data = [json.loads(row["body"])["data"] for row in found]
    assert {each["lease_id"] for each in data} == {str(row["lease_id"]) for row in rows[:2]}
    assert {(each["queue"], each["tenant"]) for each in data} == {(queue, "film")}
    clock.advance(timedelta(seconds=1))
    count_all(api.conn)
    assert [row for row in claimed(api) if row["code"] == "lease_completed"] == []


def test_routing_goes_on_where_a_bounded_call_ended(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """Of events, and of completions, those of one instant too."""
    name, _ = made(api, codes=["queue_paused", "queue_resumed"])
    for _ in range(3):
        api.rows("pause_queue", queue=queue)
        api.rows("resume_queue", queue=queue)
    outlive(api.conn)
    assert [api.one("select hwqueue.route_webhooks(4)") for _ in range(3)] == [4, 2, 0]
    assert listed(api, name)["waiting"] == 6
    api.rows("drop_webhook", name=name)
    name, _ = made(api, codes=["lease_completed"])
    rows = [api.running(queue, node) for _ in range(3)]
    clock.freeze()
    api.complete(*rows)
    clock.advance(timedelta(seconds=1))
    count_all(api.conn)
    assert [api.one("select hwqueue.route_webhooks(2)") for _ in range(3)] == [2, 1, 0]
    leases = {row["lease_id"] for row in api.rows("list_deliveries", name=name)}
    assert leases == {row["lease_id"] for row in rows}


def test_a_crash_before_the_answer_is_recorded(api: Api, clock: Clock) -> None:
    """The same delivery goes out again, under the same id, and the first claim records nothing."""
    name, secret = made(api)
    api.rows("test_webhook", name=name)
    [first] = [row for row in claimed(api) if row["code"] == "webhook_test"]
    assert claimed(api) == []
    clock.advance(timedelta(seconds=61))
    [again] = [row for row in claimed(api) if row["code"] == "webhook_test"]
    assert again["headers"]["webhook-id"] == first["headers"]["webhook-id"]
    assert again["headers"]["webhook-signature"] == signed(secret, again)
    assert again["attempt"] == 2
    assert settled(api, first, status=200) == "lost"
    assert settled(api, again, status=200) == "delivered"
    assert settled(api, again, status=500) == "lost"


def test_failures_wait_longer_and_longer_then_it_is_dead(api: Api, clock: Clock) -> None:
    clock.freeze()
    name, waits = to_test(api), []
    for _ in range(9):
        [row] = claimed(api)
        assert settled(api, row, status=500, response="oh no") == "waiting"
        found = delivery(api, row)
        waits.append(found["available_at"] - clock.now())
        clock.advance(waits[-1] - timedelta(milliseconds=1))
        assert claimed(api) == []
        clock.advance(timedelta(milliseconds=1))
    assert waits == sorted(waits)
    assert timedelta(days=2) < sum(waits, timedelta()) < timedelta(days=4)
    [row] = claimed(api)
    assert settled(api, row, error="refused") == "dead"
    found = delivery(api, row)
    assert (found["status"], found["error"], found["attempt_count"]) == (None, "refused", 10)
    hook = listed(api, name)
    assert (hook["failed"], hook["dead"], hook["delivered"]) == (10, 1, 0)
    assert hook["failing_since"] is not None
    assert api.value("redeliver", name=name) == 1
    [row] = claimed(api)
    assert row["attempt"] == 11
    assert settled(api, row, status=200) == "delivered"
    assert listed(api, name)["failing_since"] is None


def test_what_the_receiver_asks_for_is_waited(api: Api, clock: Clock) -> None:
    clock.freeze()
    to_test(api)
    for status, asked, waits in ((429, 600, timedelta(minutes=10)), (503, 10**9, timedelta(days=1))):
        [row] = claimed(api)
        settled(api, row, status=status, retry_after=asked)
        assert delivery(api, row)["available_at"] - clock.now() == waits
        clock.advance(waits)


def test_a_receiver_that_is_gone_is_paused(api: Api) -> None:
    """A pause loses nothing."""
    name = to_test(api, 2)
    row, other = claimed(api)
    assert settled(api, row, status=410) == "dead"
    assert listed(api, name)["paused_reason"] == "gone"
    assert settled(api, other, status=503) == "waiting"
    assert claimed(api) == []
    assert [api.value("resume_webhook", name=name) for _ in range(2)] == [True, False]
    name, _ = made(api, codes=["queue_paused"])
    assert [api.value("pause_webhook", name=name) for _ in range(2)] == [True, False]
    api.rows("pause_queue", queue=api.queue())
    assert claimed(api) == []
    api.rows("resume_webhook", name=name)
    assert told(claimed(api)) == [(name, "queue_paused")]


def test_two_secrets_until_the_old_one_ends(api: Api, clock: Clock) -> None:
    name, old = made(api, codes=["none_of_these"])
    new = api.value("rotate_webhook", name=name, keep=timedelta(hours=1))
    assert new != old
    api.rows("test_webhook", name=name)
    [row] = claimed(api)
    assert row["headers"]["webhook-signature"] == f"{signed(new, row)} {signed(old, row)}"
    clock.advance(timedelta(hours=1))
    [row] = claimed(api)
    assert row["headers"]["webhook-signature"] == signed(new, row)


def test_events_of_another_server_are_above_every_cursor(api: Api) -> None:
    """A cursor follows transaction ids, which may begin again at a low number after a restore."""
    name, _ = made(api, codes=["queue_paused"])
    ahead = "update hwqueue.webhook set event_cursor = event_cursor + (1::bigint << 50)"
    api.conn.execute(ahead)
    api.rows("reap")  # notes which server this is
    become_another_server(api.conn, "timeline")
    api.rows("reap")
    api.rows("pause_queue", queue=api.queue())
    assert told(claimed(api)) == [(name, "queue_paused")]


def test_a_slow_receiver_has_ten_requests_at_most(api: Api) -> None:
    slow, quick = to_test(api, 15), to_test(api)
    rows = claimed(api, limit=100)
    assert sorted(row["webhook"] for row in rows) == sorted([slow] * 10 + [quick])
    assert claimed(api, limit=100) == []
    settled(api, next(row for row in rows if row["webhook"] == slow), status=200)
    assert len(claimed(api, limit=100)) == 1


def test_setting_it_again_changes_the_filter_and_keeps_the_secret(api: Api) -> None:
    name, secret = made(api, codes=["queue_paused"])
    before = listed(api, name)
    assert api.value("set_webhook", name=name, url=URL + "?x=1", options={}) is None
    after = listed(api, name)
    assert (after["url"], after["codes"]) == (URL + "?x=1", None)
    assert after["secret_prefix"] == before["secret_prefix"] == secret[:10]


def test_nothing_of_a_dropped_webhook_is_sent(api: Api) -> None:
    name = to_test(api, 2)
    [row] = claimed(api, limit=1)
    assert [api.value("drop_webhook", name=name) for _ in range(2)] == [True, False]
    assert settled(api, row, status=200) == "lost"
    assert claimed(api) == []
    api.rows("set_webhook", name=name, url=URL)
    assert api.rows("list_deliveries", name=name) == []  # those were of another one


def test_finished_deliveries_go_with_the_events_of_their_day(api: Api, clock: Clock) -> None:
    name = to_test(api, 2)
    row, _ = claimed(api)
    settled(api, row, status=200)
    api.prune_after(clock, timedelta(days=13, hours=23))
    assert len(api.rows("list_deliveries", name=name)) == 2
    api.prune_after(clock, timedelta(hours=2))
    assert [left["state"] for left in api.rows("list_deliveries", name=name)] == ["waiting"]


def test_deliveries_are_paged(api: Api) -> None:
    name, _ = made(api)
    ids = [api.value("test_webhook", name=name) for _ in range(3)]
    page = api.rows("list_deliveries", name=name, limit=2)
    rest = api.rows("list_deliveries", name=name, before=page[-1]["delivery_id"], state="waiting")
    assert [row["delivery_id"] for row in [*page, *rest]] == sorted(ids, reverse=True)
    assert api.rows("list_deliveries", name=name, state="dead") == []


def test_no_secret_is_shown_twice(api: Api) -> None:
    """Neither lists nor events hold more of it than the prefix."""
    name, secret = made(api)
    new = api.value("rotate_webhook", name=name)
    api.rows("test_webhook", name=name)
    seen = [*api.rows("list_webhooks"), *api.rows("list_events", limit=1000), *claimed(api)]
    seen += [*api.rows("list_deliveries", name=name), *api.rows("metrics")]
    for each in (secret, new):
        assert each[10:] not in str(seen)
        assert base64.b64decode(each.removeprefix("whsec_")).hex() not in str(seen)


def test_a_body_has_its_limit(api: Api) -> None:
    call = "select hwqueue.webhook_body('code', hwqueue.clock(), %s)"
    for size, expected in ((1000, ["detail"]), (70_000, ["detail", "truncated"])):
        data = json.loads(api.one(call, Jsonb({"detail": "x" * size})))["data"]
        assert list(data) == expected
        assert (data["detail"] is None) == ("truncated" in data)


@pytest.mark.thorough
def test_bad_arguments_are_refused(api: Api) -> None:
    good, hooks = {"name": "bad", "url": URL}, "https://hooks.example/"
    urls = ("ftp://hooks.example/", "https://user:word@hooks.example/", f"{hooks}#part", f"{hooks}a b")
    for name in ("no name", "a/b"):
        assert api.fault("set_webhook", **good | {"name": name}) == "p_name"
    for url in (*urls, "https://", None, hooks + "x" * 2000):
        assert api.fault("set_webhook", **good | {"url": url}) == "p_url"
    options: Row
    for field, options in (
        ("options.code", {"code": ["queue_paused"]}),
        ("options", {"codes": []}),
        ("options.codes", {"codes": "queue_paused"}),
        ("options", {"queues": []}),
        ("options.tenant", {"tenant": ""}),
        ("options.labels", {"labels": [1]}),
    ):
        assert api.fault("set_webhook", **good, options=options) == field
    name, _ = made(api)
    of_names = ("pause_webhook", "resume_webhook", "rotate_webhook", "test_webhook")
    for function in (*of_names, "list_deliveries", "redeliver"):
        api.refused("QHH01", function, name="nobody")
    api.refused("QHA01", "rotate_webhook", name=name, keep=timedelta(days=8))
    api.refused("QHA01", "list_deliveries", name=name, state="lost")
    api.refused("QHA01", "list_deliveries", name=name, limit=0)
    api.refused("QHA01", "redeliver", name=name, limit=0)
    api.refused("QHA01", "claim_deliveries", limit=0)
    api.refused("QHA01", "claim_deliveries", timeout=timedelta(minutes=11))
    delivery_id = api.value("test_webhook", name=name)
    for result in ({"status": 99}, {"response": "x" * 1001}, {"other": 1}):
        api.refused("QHA01", "settle_delivery", delivery=delivery_id, attempt=1, result=result)


def test_the_signature_is_that_of_the_standard(api: Api) -> None:
    """Standard Webhooks takes HMAC with SHA-256: compared with Python's, for keys of any length."""
    for size in (1, 24, 32, 64):
        key = bytes(range(size))
        found = api.one("select hwqueue.hmac_sha256(%s, %s)", key, b"message")
        assert found == hmac.digest(key, b"message", hashlib.sha256)
