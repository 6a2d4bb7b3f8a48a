"""Webhooks over HTTP: set, look at, send again, drop."""

from typing import Any

from hwqueue.client import Client
from tests.server.conftest import V1, Http, ok, problem

URL = f"{V1}/webhooks/pager"
NOBODY = f"{V1}/webhooks/nobody"
BODY = {"url": "https://hooks.example/", "codes": ["lease_failed"], "labels": {"app": "db"}}


async def test_from_set_to_dropped(http: Http) -> None:
    made = ok(await http.put(URL, json=BODY))
    assert made["secret"].startswith("whsec_")
    assert ok(await http.put(URL, json=BODY)) == {"name": "pager", "secret": None}
    listed = ok(await http.get(f"{V1}/webhooks"))["items"][0]
    assert {key: listed[key] for key in BODY} == BODY
    assert made["secret"].startswith(listed["secret_prefix"])
    assert made["secret"] not in str(listed)
    assert ok(await http.post(f"{URL}/rotate", json={"keep": 60}))["secret"] != made["secret"]
    assert ok(await http.post(f"{URL}/pause")) == {"name": "pager", "changed": True}
    assert ok(await http.post(f"{URL}/resume")) == {"name": "pager", "changed": True}
    assert ok(await http.delete(URL)) == {"name": "pager", "changed": True}
    assert ok(await http.delete(URL)) == {"name": "pager", "changed": False}


async def test_deliveries_are_sent_again(http: Http, sql: Client) -> None:
    ok(await http.put(URL, json=BODY))
    sent = [ok(await http.post(f"{URL}/test"))["delivery_id"] for _ in range(3)]
    found = ok(await http.get(f"{URL}/deliveries"))["items"]
    assert [each["delivery_id"] for each in found] == sorted(sent, reverse=True)
    assert found[0]["body"]["type"] == "webhook_test"
    claimed = sql.claim_deliveries()
    for each in claimed:
        sql.settle_delivery(each.delivery_id, each.attempt, status=410)
    dead = ok(await http.get(f"{URL}/deliveries", params={"state": "dead"}))["items"]
    assert len(dead) == 3
    once = {"delivery_id": sent[0]}
    assert ok(await http.post(f"{URL}/redeliver", json=once)) == {"redelivered": 1}
    assert ok(await http.post(f"{URL}/redeliver")) == {"redelivered": 2}


async def test_what_is_refused_and_what_is_not_there(http: Http) -> None:
    wrong: list[Any] = [
        {"codes": ["lease_faild"]},
        {"codes": []},
        {"queues": ["no name"]},
        {"url": ""},
        {"secret": "whsec_mine"},
        {"url": "ftp://hooks.example"},
    ]
    for each in wrong:
        problem(await http.put(NOBODY, json=BODY | each), 422, "QHA01")
    for verb in ("pause", "resume", "rotate", "test", "redeliver"):
        problem(await http.post(f"{NOBODY}/{verb}"), 404, "QHH01")
    problem(await http.get(f"{NOBODY}/deliveries"), 404, "QHH01")
