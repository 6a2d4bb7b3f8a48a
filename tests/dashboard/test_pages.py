"""Every page on an empty database, on a full one, and with names made to break it."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import Gpu, NodeSpec, Taint
from tests.dashboard.conftest import Pages, granted, serving
from tests.dashboard.screenshots import pages as every_page

TABS = ("/", "/pending", "/fleet", "/fleet?view=map", "/leases", "/queues", "/classes", "/try", "/events")
ALWAYS = (
    *TABS,
    "/system",
    "/webhooks",
    "/schedules",
    "/gangs",
    "/limits",
    "/jump?q=nobody",
    "/try/placement",
    "/try/placement?placement={}",
)
HOSTILE = '<b id="x">"quoted" & \'single\'</b> \u202eright to left\u202c ' + "long" * 30
BIG = 2**62 + 1
TURN = "\u202e"  # right-to-left override: what follows in its paragraph reads backwards
# elements that hold nothing but such text
ALONE = {"bdi", "pre", "title"}


class Checker(HTMLParser):
    """What the content security policy and a screen reader would complain about."""

    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []
        self.headings = 0
        self.ids: set[str] = set()
        self.landmarks: set[str] = set()
        self.alone = 0
        self.turns = 0
        self.loose: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.headings += tag == "h1"
        self.landmarks.add(tag)
        self.alone += tag in ALONE
        if tag == "style" or "style" in given:
            self.complaints.append(f"inline style in {self.get_starttag_text()}")
        if tag == "script" and not given.get("src"):
            self.complaints.append("inline script")
        if any(name.startswith(("on", "hx-on")) for name in given):
            self.complaints.append(f"inline handler in {self.get_starttag_text()}")
        for name in ("src", "href", "action", "hx-get", "data-url"):
            value = given.get(name)
            if value and not value.startswith(("/", "#")):
                self.complaints.append(f"{name} leaves the dashboard: {value}")
        if tag == "th" and "scope" not in given:
            self.complaints.append("a heading of a table without scope")
        if (found := given.get("id")) is not None:
            if found in self.ids:
                self.complaints.append(f"two elements have the id {found}")
            self.ids.add(found)

    def handle_endtag(self, tag: str) -> None:
        self.alone -= tag in ALONE

    def handle_data(self, data: str) -> None:
        self.turns += TURN in data
        if TURN in data and not self.alone:
            self.loose.append(data)


def check(text: str) -> Checker:
    """A page keeps to what all of them promise."""
    checker = Checker()
    checker.feed(text)
    assert (checker.complaints, checker.headings) == ([], 1)
    assert {"main", "nav", "header"} <= checker.landmarks
    return checker


async def test_an_empty_database_has_every_page(pages: Pages) -> None:
    for path in ALWAYS:
        response = await pages.get(path)
        assert response.status_code == 200, response.text
        check(response.text)
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


async def test_a_column_that_no_row_fills_is_left_out(pages: Pages, sql: Client) -> None:
    def columns(page: str) -> list[str]:
        return re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', page)

    sql.create_queue("renders")
    sql.define_workflow({"name": "w", "steps": [{"name": "a", "queue": "renders", "task": "draw"}]})
    sql.submit_workflow("w")
    assert not {"Node", "Reason"} & {*columns(await pages.page("/leases"))}
    assert not {"Labels", "Asks of every node", "What failed"} & {*columns(await pages.page("/runs"))}
    claim = granted(sql, "renders")
    assert "Node" in columns(await pages.page("/leases"))
    sql.fail_lease(claim.lease_id, claim.claim_token, error={"message": "it broke"}, retry=False)
    sql.submit_workflow("w", labels={"film": "7"})
    found = await pages.page("/leases")
    check(found)
    assert "Reason" in columns(found)
    found = await pages.page("/runs")
    check(found)
    assert {"Labels", "What failed"} <= {*columns(found)}


async def test_a_full_database_has_every_page(seeded: str, shown: Pages) -> None:
    with Client(seeded, pool_size=1) as client:
        found = every_page(client)
        states = {
            state: client.list_leases(state=state, limit=1)[0].lease_id
            for state in ("scheduled", "pending", "claimed", "completed", "failed", "cancelled")
        }
        nodes = [node.name for node in client.list_nodes()]
        classes = [row.class_id for row in client.pending_reasons()]
    whys = (f"/leases/{lease_id}/why" for lease_id in states.values())
    of_nodes, of_classes = (f"/nodes/{node}" for node in nodes[::5]), (f"/pending/{each}" for each in classes)
    for path in (*found.values(), f"{found['gang']}/why", *whys, *of_nodes, *of_classes):
        check(await shown.page(path))
    for state, lease_id in states.items():
        text = await shown.page(f"/leases/{lease_id}")
        check(text)
        assert state in text


async def test_names_cannot_break_a_page(pages: Pages, sql: Client) -> None:
    queue, task, node_id = "a/b:c@" + "long" * 20, "t/" + "long" * 20, uuid4()
    sql.create_queue(queue)
    spec = NodeSpec(
        name="rack/7:" + "n" * 200,
        instance_id="1",
        labels={"zone <i>": HOSTILE},
        rack=7,
        cpu_milli=4000,
        gpus=[Gpu(resource_id=uuid4(), model=HOSTILE[:60])],
        taints=[Taint(key=HOSTILE[:60], value="<u>", effect="prefer_no_schedule")],
    )
    epoch = sql.register_node(node_id, spec)
    runs, waits = (
        sql.spawn_lease(
            queue,
            task,
            {"<script>": HOSTILE, "number": BIG, "password": "hunter2"},
            tenant=HOSTILE[:90],
            labels={"<em>": HOSTILE},
            headers={"trace": HOSTILE},
            placement={"resources": resources, "require": [{"label": "zone <i>", "op": "exists"}]},
        ).lease_id
        for resources in ({"cpu_milli": 1000, "gpu": 1}, {"cpu_milli": 99_000})
    )
    [claim] = sql.claim_task([queue], node_id, epoch)
    its = {"lease_id": claim.lease_id, "claim_token": claim.claim_token}
    sql.report_progress([its | {"message": HOSTILE[:200], "done": 3, "total": 4}])
    line = {"at": "2030-01-31T12:00:00Z", "message": HOSTILE, "fields": {HOSTILE: HOSTILE}}
    sql.append_logs([its | {"lines": [line | {"line": 1}, line | {"line": 5}]}])
    sql.fail_lease(runs, claim.claim_token, error={"message": HOSTILE}, retry=False)
    [row] = sql.pending_reasons()
    paths = (
        *(TABS[:-1]),
        "/events",
        f"/leases/{runs}",
        f"/leases/{waits}",
        f"/leases/{waits}/why",
        f"/pending/{row.class_id}",
        f"/try?for={row.class_id}",
        f"/try?like={quote(spec.name)}",
        f"/try/placement?for={row.class_id}",
        "/jump?q=n",
    )
    for path in paths:
        text = await pages.page(path)
        check(text)
        assert not any(tag in text for tag in ("<b id=", "<script>", "<em>"))
    text = await pages.page(f"/leases/{runs}")
    assert str(BIG) in text
    assert text.count("75 %, 3 of 4") == 2  # of the lease, and of the attempt
    assert "hunter2" not in text
    assert "3 lines not kept" in text
    # the link in the list leads to the page
    for path, kind, named in (("/queues", "queues", queue), ("/fleet", "nodes", "rack/7:")):
        link = re.search(f'href="(/{kind}/[^"]+)"', await pages.page(path))
        assert link is not None
        text = await pages.page(link[1])
        check(text)
        assert named in text


async def test_what_is_not_there_says_so(pages: Pages) -> None:
    for path in ("/leases/nonsense", f"/leases/{uuid4()}", "/nodes/n", "/queues/q", "/pending/7"):
        assert "Not found" in await pages.page(path, 404)
    assert "There is no page" in await pages.page("/nowhere", 404)
    assert "is no placement class" in await pages.page("/pending/x", 422)
    response = await pages.get("/api/v1/nowhere")
    assert response.headers["content-type"] == "application/problem+json"


async def test_a_refresh_gets_the_main_element_alone_and_nothing_when_nothing_changed(shown: Pages) -> None:
    part = await shown.get("/queues", headers={"HX-Request": "true"})
    assert part.text.startswith("<main")
    again = {"HX-Request": "true", "If-None-Match": part.headers["etag"]}
    assert (await shown.get("/queues", headers=again)).status_code == 304
    whole = await shown.get("/queues")
    assert part.text.strip() in whole.text


async def test_leases_are_found_by_what_they_are_and_paged(shown: Pages) -> None:
    text = await shown.page("/leases?state=failed")
    assert "OutOfMemory" in text
    assert "completed" not in re.findall(r'<tr id="lease.*?</tr>', text, re.DOTALL)[0]
    assert "No lease fits" in await shown.page("/leases?task=nobody")
    assert "nobody" in await shown.page("/leases?queue=nobody", 404)
    seen: list[str] = []
    path: str | None = "/leases?queue=nightly"
    while path:
        text = await shown.page(path)
        seen += re.findall(r'<tr id="lease-([^"]+)"', text)
        link = re.search(r'<a class="button" href="([^"]+)">Next', text)
        path = unescape(link[1]) if link else None
    assert len(seen) == len(set(seen)) == 63


async def test_pending_is_grouped_and_filtered(shown: Pages) -> None:
    text = await shown.page("/pending?kind=no+match")
    assert "gpu_model in H100" in text
    assert "8 GPU, 16 CPU" not in text
    assert "8 GPU, 16 CPU" in await shown.page("/pending?kind=contended&queue=training")
    text = await shown.page("/pending?asks=h100")
    assert len(re.findall(r'<tr id="class-', text)) == 1
    assert "No class fits" in await shown.page("/pending?asks=nothing+like+it")


async def test_a_class_says_what_keeps_it_and_what_would_help(seeded: str, shown: Pages) -> None:
    with Client(seeded, pool_size=1) as client:
        row = next(each for each in client.pending_reasons() if "H100" in (each.words or ""))
        why = client.explain_class(row.class_id)
    text = unescape(await shown.page(f"/pending/{row.class_id}"))
    assert why.headline[1:] in text
    assert "label_mismatch" in text
    assert all(each.words in text for each in why.help)
    assert all(f"/nodes/{each.node}" in text for each in why.nearest)
    assert all(str(each.lease_id) in text for each in why.leases)
    fit = (await shown.get(f"/fleet/fit/{row.class_id}")).json()
    assert len(fit["name"]) == why.nodes_registered
    assert 0 not in fit["verdict"]
    places = (await shown.get("/fleet/map.json")).json()
    assert {len(column) for name, column in places.items() if name != "as_of"} == {48}


async def test_the_fleet_begins_with_what_is_out_of_it(shown: Pages) -> None:
    nodes = (await shown.page("/fleet")).partition('aria-label="Nodes"')[2].partition("</table>")[0]
    states = re.findall(r"</svg>(\w+)</span>", nodes)
    assert states == sorted(states, key=("silent", "draining", "cordoned", "live").index)
    assert {*states} == {"silent", "draining", "cordoned", "live"}


async def test_a_node_shows_what_holds_its_devices(seeded: str, shown: Pages) -> None:
    with Client(seeded, pool_size=1) as client:
        claim = next(
            each
            for node in client.list_nodes()
            for each in client.node_claims(node.node_id)
            if each.assignment and each.assignment.gpus
        )
        lease = client.get_lease(claim.lease_id)
        assert lease.node_id is not None
        node = client.list_nodes(node_id=lease.node_id)[0]
    text = await shown.page(f"/nodes/{node.name}")
    device = text.partition("<h2>Devices</h2>")[2].partition("</section>")[0]
    assert str(claim.lease_id) in device


async def test_without_the_database_the_last_values_stay(sql: Client, dsn: str) -> None:
    sql.create_queue("renders")
    async with serving(dsn) as pages:
        before = await pages.page("/queues")
        assert "does not answer" not in before
        dashboard = pages.app.state.dashboard
        await dashboard.pools.close()
        dashboard.reads.forget()
        after = await pages.page("/queues")
        assert "renders" in after
        assert "The database does not answer since" in after
        assert "these are the values as of" in after
        part = await pages.get("/queues", headers={"HX-Request": "true"})
        assert "Nothing can be changed until it is back" in part.text
        assert "The database does not answer" in await pages.page("/system", 503)


ZONE, KIND = f"{TURN}zone", f"{TURN}kind"
TOGETHER = f"label:{ZONE}"
WORKFLOW = {
    "name": "training",
    "queue": "training",
    "affinity_tags": {KIND: "c"},
    "steps": [{"name": "train", "task": "train"}],
}


async def test_text_that_turns_is_isolated(pages: Pages, sql: Client) -> None:
    sql.create_queue("training")
    for name in ("n-1", "n-2"):
        spec = NodeSpec(name=name, instance_id="1", labels={ZONE: name, KIND: name}, slots=1)
        sql.register_node(uuid4(), spec)
    member: dict[str, Any] = {"task": "train", "count": 2}
    [apart] = {each.gang_id for each in sql.spawn_gang("training", [member], same=[KIND, ZONE])}
    member["options"] = {"affinity_tags": {KIND: "c"}}
    [nowhere] = {each.gang_id for each in sql.spawn_gang("training", [member], together=TOGETHER)}
    run = sql.submit_spec(WORKFLOW).run_id
    [step] = sql.list_workflow_steps(run)
    sql.reap()
    paths = (
        *(f"/gangs/{apart}", f"/gangs/{apart}/why", f"/gangs/{nowhere}/why"),
        *(f"/runs/{run}", f"/runs/{run}/why"),
        *(f"/leases/{step.lease_id}/why", "/pending"),
    )
    told = {path: check(await pages.page(path)) for path in paths}
    sql.cancel_gang(nowhere, reason=ZONE)
    sql.cancel_workflow_run(run, reason=ZONE)
    sql.reap()
    told |= {f"{path}, ended": check(await pages.page(path)) for path in (f"/runs/{run}", "/gangs")}
    assert {path: page.loose for path, page in told.items() if page.loose or not page.turns} == {}
