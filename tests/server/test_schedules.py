"""Schedules over HTTP: made, changed, fired by hand, dropped."""

from hwqueue.client import Client
from tests.server.conftest import V1, Http, ok, problem

ALL = f"{V1}/schedules"
SPEC = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "queue": "q", "task": "report"}
NIGHTS = {"since": "2026-03-28T00:00:00Z", "until": "2026-03-30T00:00:00Z"}


async def test_from_made_to_dropped(http: Http, sql: Client) -> None:
    sql.create_queue("q")
    name = "mail/nightly"  # as a task may be called
    url = f"{ALL}/{name}"
    for changed in (True, False):
        made = await http.post(ALL, json={"name": name, "spec": SPEC})
        assert (made.status_code, made.json()) == (201, {"name": name, "changed": changed})
    [listed] = ok(await http.get(ALL))["items"]
    assert (listed["name"], listed["kind"], listed["is_dry"]) == (name, "cron", False)
    assert listed["next_at"] is not None
    changed = ok(await http.patch(url, json={"changes": {"missed": "all"}}))
    assert changed["spec"]["missed"] == "all"
    assert ok(await http.post(f"{url}/pause", json={"reason": "leave"})) == {"name": name, "changed": True}
    assert ok(await http.get(ALL))["items"][0]["paused_reason"] == "leave"
    assert ok(await http.post(f"{url}/resume")) == {"name": name, "changed": True}
    fired = ok(await http.post(f"{url}/trigger", json={"params": {"day": 1}}))
    assert sql.get_lease(fired["lease_id"]).params == {"day": 1}
    for dry_run, outcome in ((True, "would_spawn"), (False, "spawned"), (False, "fired_before")):
        filled = ok(await http.post(f"{url}/backfill", json={**NIGHTS, "dry_run": dry_run}))
        assert [each["outcome"] for each in filled["items"]] == [outcome] * 2
    page = ok(await http.get(f"{url}/fires", params={"limit": 2}))
    rest = ok(await http.get(f"{url}/fires", params={"before": page["next"]}))
    causes = [each["cause"] for each in (*page["items"], *rest["items"])]
    assert (causes, rest["next"]) == (["trigger", "backfill", "backfill"], None)
    assert ok(await http.delete(url)) == {"name": name, "changed": True}
    assert ok(await http.delete(url)) == {"name": name, "changed": False}


async def test_what_is_refused_and_what_is_not_there(http: Http, sql: Client) -> None:
    sql.create_queue("q")
    for wrong in ({"cron": "0 3 31 2 *"}, {"zone": "Nowhere/None"}, {"every": 60}, {"missed": "some"}):
        answer = await http.post(ALL, json={"name": "nightly", "spec": SPEC | wrong})
        problem(answer, 422, "QHD03")
    assert (await http.post(ALL, json={"name": "nightly", "spec": SPEC})).status_code == 201
    other = {"name": "nightly", "spec": SPEC | {"task": "other"}}
    problem(await http.post(ALL, json=other), 409, "QHD02")
    for verb in ("pause", "resume", "trigger"):
        problem(await http.post(f"{ALL}/none/{verb}"), 404, "QHD01")
    problem(await http.post(f"{ALL}/none/backfill", json=NIGHTS), 404, "QHD01")
    problem(await http.get(f"{ALL}/none/fires"), 404, "QHD01")
    problem(await http.patch(f"{ALL}/none", json={"changes": {}}), 404, "QHD01")
