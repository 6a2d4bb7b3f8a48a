"""Queues over HTTP: list, make, set, stop and let go on; and the defaults of tasks."""

from urllib.parse import quote

import httpx

from hwqueue.client import Client
from tests.server.conftest import V1, Http, ok, problem

NAMES = ["a/policy", "a/b/pause", "pause", "a/requeue-failed", "x:y@z.w-", "a//b", "a/../b", "a/."]


async def test_every_name_that_sql_lets_in(http: Http, sql: Client) -> None:
    """Encoded as one part of the path, none is taken for what is below another."""
    for made in {each for name in NAMES for each in (name, name.rpartition("/")[0] or "b")}:
        sql.create_queue(made)
    for name in NAMES:
        url = httpx.URL(f"http://localhost{V1}/queues/{quote(name, safe='')}")
        under = {verb: f"{url}/{verb}" for verb in ("pause", "resume", "policy", "requeue-failed")}
        assert ok(await http.get(url))["queue"] == name
        assert ok(await http.post(under["pause"])) == {"queue": name, "paused": True}
        ok(await http.patch(under["policy"], json={"claim_timeout": 90}))
        ok(await http.post(under["requeue-failed"]))
        queues = {queue["queue"]: queue for queue in ok(await http.get(f"{V1}/queues"))["items"]}
        assert [each for each in queues if queues[each]["paused"]] == [name]
        ok(await http.post(under["resume"]))
        page = await http.get(f"/queues/{quote(name, safe='')}")  # all were there when it was read first
        assert (page.status_code, f"Queue {name}" in page.text) == (200, True), name


async def test_a_plain_slash_before_a_verb(http: Http, sql: Client) -> None:
    sql.create_queue("plain/name")
    assert ok(await http.post(f"{V1}/queues/plain/name/pause"))["queue"] == "plain/name"
    assert (await http.get(f"{V1}/queues/plain/name/pause")).headers["allow"] == "POST"
    problem(await http.get(f"{V1}%2Fqueues/plain"), 404)
