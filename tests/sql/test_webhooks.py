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
from tests.sql.api import Api, count_all, outlive
from tests.sql.test_current_generation import become_another_server

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
    """The webhooks that are told, and of what."""
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


def signed(secret: str, row: Row) -> str:
    """The signature that a receiver computes."""
    head = row["headers"]
    message = f"{head['webhook-id']}.{head['webhook-timestamp']}.{row['body']}"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.digest(key, message.encode(), hashlib.sha256)).decode()


def test_an_event_is_delivered_once(api: Api) -> None:
    name, secret = made(api, codes=["queue_paused"])
    queue = api.queue()
    api.rows("pause_queue", queue=queue)
    [row] = claimed(api)
    assert (row["webhook"], row["url"], row["attempt"]) == (name, URL, 1)
    body = json.loads(row["body"])
    assert body["type"] == "queue_paused"
    assert body["data"]["queue"] == queue
    assert row["headers"]["webhook-signature"] == signed(secret, row)
    assert settled(api, row, status=204) == "delivered"
    assert claimed(api) == []
    found = delivery(api, row)
    assert (found["state"], found["status"], found["attempt_count"]) == ("delivered", 204, 1)
    assert (listed(api, name)["delivered"], listed(api, name)["waiting"]) == (1, 0)


def test_what_was_before_is_not_told(api: Api) -> None:
    queue = api.queue()
    api.rows("pause_queue", queue=queue)
    made(api)
    assert [code for _, code in told(claimed(api))] == ["webhook_set"]  # itself


def test_filters_hold_together(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    hooks = {
        "queue": made(api, codes=["lease_cancelled"], queues=[queue])[0],
        "tenant": made(api, codes=["lease_cancelled"], tenant="film")[0],
        "labels": made(api, codes=["lease_cancelled"], labels={"app": "db"})[0],
        "all": made(api, codes=["lease_cancelled", "queue_paused"])[0],
    }
    leases = [
        api.spawn(queue, tenant="film"),
        api.spawn(other, tenant="film", labels={"app": "db"}),
        api.spawn(other),
    ]
    for lease in leases:
        api.rows("cancel_lease", lease=lease)
    api.rows("pause_queue", queue=queue)
    rows = claimed(api)
    about = [(row["webhook"], json.loads(row["body"])["data"]["lease_id"]) for row in rows]
    found = {kind: [lease for hook, lease in about if hook == name] for kind, name in hooks.items()}
    first, second, third = map(str, leases)
    assert found["queue"] == [first]
    assert sorted(found["tenant"]) == sorted([first, second])
    assert found["labels"] == [second]
    assert sorted(found["all"], key=str) == sorted([first, second, third, None], key=str)


def test_of_a_lease_that_is_gone_no_tenant_is_told(api: Api) -> None:
    """Nobody knows any more whose it was."""
    queue = api.queue()
    made(api, codes=["lease_cancelled", "lease_deleted"], tenant="film")
    open_to_all, _ = made(api, codes=["lease_cancelled", "lease_deleted"])
    lease = api.spawn(queue, tenant="film")
    api.rows("cancel_lease", lease=lease)
    api.rows("delete_leases", filter={"queue": queue})
    assert told(claimed(api)) == [(open_to_all, "lease_cancelled"), (open_to_all, "lease_deleted")]


def test_an_id_that_is_used_again_tells_nothing_of_the_lease_before(api: Api, clock: Clock) -> None:
    """Producers choose ids: another tenant may take one whose events are still to be routed."""
    queue, lease = api.queue(), str(uuid4())
    made(api, codes=["lease_cancelled"], tenant="print")
    made(api, codes=["lease_cancelled"], labels={"app": "db"})
    open_to_all, _ = made(api, codes=["lease_cancelled"])
    api.spawn(queue, tenant="film", lease_id=lease)
    api.rows("cancel_lease", lease=lease, reason="of film")
    api.rows("delete_leases", filter={"queue": queue})
    clock.advance(timedelta(seconds=1))
    api.spawn(queue, tenant="print", labels={"app": "db"}, lease_id=lease)
    [row] = claimed(api)
    assert row["webhook"] == open_to_all
    assert json.loads(row["body"])["data"]["tenant"] is None


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


def test_routing_goes_on_where_a_bounded_call_ended(api: Api) -> None:
    name, _ = made(api, codes=["queue_paused", "queue_resumed"])
    queue = api.queue()
    for _ in range(3):
        api.rows("pause_queue", queue=queue)
        api.rows("resume_queue", queue=queue)
    outlive(api.conn)
    step = "select hwqueue.route_webhooks(4)"
    assert [api.conn.execute(step).fetchone() for _ in range(3)] == [(4,), (2,), (0,)]
    assert listed(api, name)["waiting"] == 6


def test_completions_of_one_instant_go_on_where_a_bounded_call_ended(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    name, _ = made(api, codes=["lease_completed"])
    rows = [api.running(queue, node) for _ in range(3)]
    clock.freeze()
    for row in rows:
        api.complete(row)
    clock.advance(timedelta(seconds=1))
    count_all(api.conn)
    step = "select hwqueue.route_webhooks(2)"
    assert [api.conn.execute(step).fetchone() for _ in range(3)] == [(2,), (1,), (0,)]
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
    name, _ = made(api, codes=["none_of_these"])
    clock.freeze()
    api.rows("test_webhook", name=name)
    waits = []
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
    name, _ = made(api, codes=["none_of_these"])
    clock.freeze()
    api.rows("test_webhook", name=name)
    [row] = claimed(api)
    settled(api, row, status=429, retry_after=600)
    assert delivery(api, row)["available_at"] - clock.now() == timedelta(minutes=10)
    clock.advance(timedelta(minutes=10))
    [row] = claimed(api)
    settled(api, row, status=503, retry_after=10**9)
    assert delivery(api, row)["available_at"] - clock.now() == timedelta(days=1)


def test_a_receiver_that_is_gone_is_paused(api: Api) -> None:
    name, _ = made(api, codes=["none_of_these"])
    for _ in range(2):
        api.rows("test_webhook", name=name)
    row, other = claimed(api)
    assert settled(api, row, status=410) == "dead"
    assert listed(api, name)["paused_reason"] == "gone"
    assert settled(api, other, status=503) == "waiting"
    assert claimed(api) == []
    assert api.value("resume_webhook", name=name) is True
    assert api.value("resume_webhook", name=name) is False


def test_a_pause_loses_nothing(api: Api) -> None:
    name, _ = made(api, codes=["queue_paused"])
    assert api.value("pause_webhook", name=name) is True
    assert api.value("pause_webhook", name=name) is False
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
    slow, _ = made(api, codes=["none_of_these"])
    quick, _ = made(api, codes=["none_of_these"])
    for _ in range(15):
        api.rows("test_webhook", name=slow)
    api.rows("test_webhook", name=quick)
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
    name, _ = made(api, codes=["none_of_these"])
    for _ in range(2):
        api.rows("test_webhook", name=name)
    [row] = claimed(api, limit=1)
    assert api.value("drop_webhook", name=name) is True
    assert api.value("drop_webhook", name=name) is False
    assert settled(api, row, status=200) == "lost"
    assert claimed(api) == []
    api.rows("set_webhook", name=name, url=URL)
    assert api.rows("list_deliveries", name=name) == []  # those were of another one


def test_finished_deliveries_go_with_the_events_of_their_day(api: Api, clock: Clock) -> None:
    name, _ = made(api, codes=["none_of_these"])
    for _ in range(2):
        api.rows("test_webhook", name=name)
    row, _ = claimed(api)
    settled(api, row, status=200)
    clock.advance(timedelta(days=13, hours=23))
    api.rows("prune")
    assert len(api.rows("list_deliveries", name=name)) == 2
    clock.advance(timedelta(hours=2))
    api.rows("prune")
    [left] = api.rows("list_deliveries", name=name)
    assert left["state"] == "waiting"


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
    seen = str(
        [
            *api.rows("list_webhooks"),
            *api.rows("list_events", limit=1000),
            *claimed(api),
            *api.rows("list_deliveries", name=name),
            *api.rows("metrics"),
        ]
    )
    for each in (secret, new):
        assert each[10:] not in seen
        assert base64.b64decode(each.removeprefix("whsec_")).hex() not in seen


def test_a_body_has_its_limit(api: Api) -> None:
    call = "select hwqueue.webhook_body('code', hwqueue.clock(), %s)"
    for size, expected in ((1000, ["detail"]), (70_000, ["detail", "truncated"])):
        row = api.conn.execute(call, [Jsonb({"detail": "x" * size})]).fetchone()
        assert row is not None
        data = json.loads(row[0])["data"]
        assert list(data) == expected
        assert (data["detail"] is None) == ("truncated" in data)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("p_name", {"name": "no name"}),
        ("p_name", {"name": "a/b"}),
        ("p_url", {"url": "ftp://hooks.example/"}),
        ("p_url", {"url": "https://user:word@hooks.example/"}),
        ("p_url", {"url": "https://hooks.example/#part"}),
        ("p_url", {"url": "https://hooks.example/a b"}),
        ("p_url", {"url": "https://"}),
        ("p_url", {"url": None}),
        ("p_url", {"url": "https://hooks.example/" + "x" * 2000}),
        ("options.code", {"options": {"code": ["queue_paused"]}}),
        ("options", {"options": {"codes": []}}),
        ("options.codes", {"options": {"codes": "queue_paused"}}),
        ("options", {"options": {"queues": []}}),
        ("options.tenant", {"options": {"tenant": ""}}),
        ("options.labels", {"options": {"labels": [1]}}),
    ],
)
@pytest.mark.thorough
def test_bad_webhooks_are_refused(api: Api, field: str, arguments: Row) -> None:
    assert api.fault("set_webhook", **{"name": "bad", "url": URL} | arguments) == field


@pytest.mark.thorough
def test_bad_arguments_are_refused(api: Api) -> None:
    name, _ = made(api)
    for function in ("pause_webhook", "resume_webhook", "rotate_webhook", "test_webhook"):
        api.refused("QHH01", function, name="nobody")
    api.refused("QHH01", "list_deliveries", name="nobody")
    api.refused("QHH01", "redeliver", name="nobody")
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
        call = "select hwqueue.hmac_sha256(%s, %s)"
        [found] = api.conn.execute(call, [key, b"message"]).fetchone() or [None]
        assert found == hmac.digest(key, b"message", hashlib.sha256)
