"""Lists in pages, each found by the link of the one before."""

from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.server.conftest import Http, claims, ok, paged
from tests.server.test_other_tenants import DOCUMENT

COUNT = 5


def fill(sql: Client, queue: str) -> dict[str, str]:
    """At least as many of everything; what the paths of the lists name."""
    sql.set_webhook("pager", "https://hooks.example/")
    sql.create_schedule("nightly", {"every": 3600, "queue": queue, "task": "nightly"})
    items = [{"name": "m", "kind": "map", "task": "t", "over": [*range(COUNT)]}]
    lease = sql.spawn_lease(queue, "first")
    for number in range(COUNT):
        sql.spawn_lease(queue, f"t{number}")
        sql.spawn_gang(queue, [{"task": "t", "count": 2}])
        spec: dict[str, Any] = {"name": f"w{number}", "queue": queue, "steps": items}
        sql.define_workflow(spec)
        run = sql.submit_spec(spec)
        sql.register_node(uuid4(), NodeSpec(name=f"n-{number}", instance_id="1"))
        sql.test_webhook("pager")
        sql.trigger_schedule("nightly")
    [claim] = claims(sql, queue, tasks=["first"])
    line = {"at": "2030-01-31T12:00:00Z", "message": "x"}
    lines = [line | {"line": number} for number in range(1, COUNT + 1)]
    sql.append_logs([{"lease_id": claim.lease_id, "claim_token": claim.claim_token, "lines": lines}])
    names = {"webhook": "pager", "schedule": "nightly"}
    return {"lease_id": str(lease.lease_id), "run_id": str(run.run_id), "step": "m", **names}


async def test_pages_lead_to_the_next(http: Http, sql: Client, queue: str) -> None:
    """Of every list that has pages: together they are what one page of all is."""
    named = fill(sql, queue)
    lists = []
    for path, routes in DOCUMENT["paths"].items():
        takes = {each["name"] for each in routes.get("get", {}).get("parameters", ())}
        if "limit" in takes and takes & {"before", "after"} and "{everywhere_id}" not in path:
            lists.append(path)
    assert len(lists) >= 10
    for path in lists:
        url = path.format(**named)
        whole = ok(await http.get(url, params={"limit": 500}))
        assert whole["next"] is None
        pages = await paged(http, url, limit=2)
        assert [len(page) for page in pages[:-1]] == [2] * (len(pages) - 1), path
        assert [each for page in pages for each in page] == whole["items"], path
        assert len(whole["items"]) >= COUNT, path
