"""Actions ask first, are done once and by whom it says; who may only look sees no button."""

import re
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import LeaseState, NodeSpec
from tests.dashboard.conftest import Pages, csrf, serving, states
from tests.dashboard.test_pages import HOSTILE, check
from tests.dashboard.test_runs import STEPS, Running


@pytest.fixture
def node(sql: Client) -> str:
    """The name of a node that is live."""
    sql.register_node(uuid4(), NodeSpec(name="n-7", instance_id="1"))
    return "n-7"


async def test_cancel_and_requeue(pages: Pages, sql: Client, lease: UUID) -> None:
    assert "Cancel this lease of task draw?" in await pages.page(f"/do/cancel?lease={lease}")
    assert sql.get_lease(lease).state == LeaseState.PENDING
    done = await pages.do("cancel", str(lease), reason="a mistake")
    assert (done.status_code, done.headers["location"]) == (303, f"/leases/{lease}?done=cancel")
    found = sql.get_lease(lease)
    assert found.state == LeaseState.CANCELLED
    assert "a mistake" in str(found.error)
    text = await pages.page(done.headers["location"])
    assert "Cancelled, or asked to stop" in text
    assert "anonymous" in text
    await pages.do("requeue", str(lease))
    assert sql.get_lease(lease).state == LeaseState.PENDING


async def test_what_is_done_with_nodes(pages: Pages, sql: Client, lease: UUID, node: str) -> None:
    assert sql.claim_task(["renders"], sql.list_nodes()[0].node_id, 1)

    async def now(verb: str, **fields: str) -> str:
        assert (await pages.do(verb, node, **fields)).status_code == 303
        return await pages.page(f"/nodes/{node}")

    assert "cordoned" in await now("cordon")
    assert sql.list_nodes(name=node)[0].cordoned
    assert "Uncordon" not in await now("uncordon")
    assert "1 lease runs on it" in await pages.page(f"/do/drain?node={node}")
    text = await now("drain", deadline="15")
    assert "draining" in text
    assert '<span class="tag">stopping: ' in text
    assert sql.list_nodes(name=node)[0].draining
    text = await now("taint", key="disk", value="failing", effect="no_schedule")
    assert "failing" in text
    assert sql.list_nodes(name=node)[0].taints[0].key == "disk"
    await now("untaint", key="disk")
    assert sql.list_nodes(name=node)[0].taints == ()
    assert "Its attestations end" in await pages.page(f"/do/deregister?node={node}")
    done = await pages.do("deregister", node)
    assert done.headers["location"] == "/fleet?done=deregister"
    assert sql.list_nodes(name=node) == []
    assert "Deregistered." in await pages.page(done.headers["location"])


async def test_pause_and_resume(pages: Pages, sql: Client, lease: UUID) -> None:
    assert "1 pending" in await pages.page("/do/pause?queue=renders")
    await pages.do("pause", "renders")
    assert sql.list_queues()[0].paused
    assert "Resume" in await pages.page("/queues/renders")
    await pages.do("resume", "renders")
    assert not sql.list_queues()[0].paused


async def test_what_cannot_be_done_says_why_and_changes_nothing(
    pages: Pages, sql: Client, lease: UUID, node: str
) -> None:
    node_id = sql.list_nodes()[0].node_id
    [claim] = sql.claim_task(["renders"], node_id, 1)
    sql.complete_lease(lease, claim.claim_token)
    refused = await pages.do("cancel", str(lease))
    assert refused.status_code == 409
    assert "QHL03" in refused.text
    assert "no lease id" in await pages.page("/do/cancel?lease=x", 404)
    assert "no node is named" in await pages.page("/do/drain?node=x", 404)
    assert "no queue is named" in await pages.page("/do/pause?queue=x", 404)
    assert "There is no page" in await pages.page("/do/explode?node=n-1", 404)
    assert (await pages.do("taint", node, key="", effect="no_schedule")).status_code == 422
    assert (await pages.do("taint", node, key="a", effect="explode")).status_code == 422
    assert (await pages.do("drain", node, deadline="7")).status_code == 422
    assert sql.list_nodes()[0].taints == ()


async def test_forms_of_other_sites_are_refused(pages: Pages, sql: Client, node: str) -> None:
    fields = {"csrf": csrf(await pages.page(f"/do/cordon?node={node}")), "subject": node}
    for name, value in (
        *(("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-site")),
        *(("Origin", "http://elsewhere.example"), ("Origin", "null")),
    ):
        answer = await pages.post("/do/cordon", data=fields, headers={name: value})
        assert answer.status_code == 403, value
    assert not sql.list_nodes()[0].cordoned


async def test_forms_without_the_token_are_refused(pages: Pages, sql: Client, node: str) -> None:
    await pages.page("/")
    running = Running(sql, STEPS)
    subjects = {"cordon": node, "skip-step": f"{running.run}:fetch", "send-signal": f"{running.run}:fetch"}
    subjects |= dict.fromkeys(("cancel-run", "pause-run", "retry-all", "retry-downstream"), str(running.run))
    for verb, subject in subjects.items():
        for sent in ({}, {"csrf": ""}, {"csrf": "x" * 64}):
            answer = await pages.post(f"/do/{verb}", data={"subject": subject} | sent)
            assert answer.status_code == 403, verb
    assert sql.get_workflow_run(running.run).state == "running"
    assert running.states()["fetch"] == "running"
    # nor with a token and without the cookie that it is made of
    asked = await pages.page(f"/do/cordon?node={node}")
    token = csrf(asked)
    pages.cookies.clear()
    fields = {"csrf": token, "subject": node}
    assert (await pages.post("/do/cordon", data=fields)).status_code == 403
    assert (await pages.get("/do/cordon", params=fields)).status_code in (200, 404)
    assert not sql.list_nodes(name=node)[0].cordoned


async def test_signing_in_and_who_did_it(
    guarded: Pages, sql: Client, node: str, token: Callable[..., str]
) -> None:
    secret = token("operator")
    asked = await guarded.page(f"/nodes/{node}", 401)
    assert "Token of the API" in asked
    assert node not in asked.replace(f"/nodes/{node}", "")
    form = csrf(asked)
    fields = {"csrf": form, "next": f"/nodes/{node}", "token": secret}
    answer = await guarded.post("/sign-in", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/nodes/{node}")
    session = answer.headers["set-cookie"]
    assert "HttpOnly" in session
    assert "SameSite=Lax" in session
    text = await guarded.page(f"/nodes/{node}")
    assert "Sign out" in text
    await guarded.do("cordon", node)
    event = sql.list_events(code="node_cordoned")[0]
    assert event.actor.startswith("token:operator-")
    assert event.actor.removeprefix("token:") in await guarded.page("/events")
    form = csrf(text)
    await guarded.post("/sign-out", data={"csrf": form})
    await guarded.page(f"/nodes/{node}", 401)


async def test_signing_in_leads_nowhere_else_and_a_wrong_token_nowhere(
    guarded: Pages, token: Callable[..., str]
) -> None:
    for wrong in ("nonsense", "a b", "é", "x; Path=/"):
        await guarded.post("/sign-in", data={"csrf": csrf(await guarded.page("/", 401)), "token": wrong})
        assert "lets nobody in" in await guarded.page("/", 401)
    for away in ("https://elsewhere.example/", "//elsewhere.example", "\\\\x"):
        guarded.cookies.clear()
        form = csrf(await guarded.page("/", 401))
        fields = {"csrf": form, "next": away, "token": token("viewer")}
        assert (await guarded.post("/sign-in", data=fields)).headers["location"] == "/"


async def test_who_may_only_look_sees_no_button_and_does_nothing(
    guarded: Pages, sql: Client, lease: UUID, node: str, token: Callable[..., str]
) -> None:
    running = Running(sql, STEPS)
    guarded.headers["Authorization"] = f"Bearer {token('viewer')}"
    of_run = (running.page, f"{running.page}/steps")
    lists = ("/leases", "/leases?queue=renders")
    for path in (f"/leases/{lease}", f"/nodes/{node}", "/queues/renders", *of_run, *lists):
        text = await guarded.page(path)
        assert not re.search(r'href="/do/|/do-all/|do-many|type="checkbox" form', text)
    assert "changes nothing" in await guarded.page(f"/do/cordon?node={node}", 403)
    for question in (f"/do/cancel-run?run={running.run}", "/do-all/cancel?queue=renders"):
        await guarded.page(question, 403)
    for form, fields in (
        ("/do/cordon", {"subject": node}),
        ("/do-all/cancel", {"queue": "renders"}),
        ("/do-many/cancel", {"lease": str(lease), "sure": "yes"}),
    ):
        answer = await guarded.post(form, data=fields)
        assert (answer.status_code, "changes nothing" in answer.text) == (403, True), form
    assert not sql.list_nodes(name=node)[0].cordoned
    assert states(sql, [lease]) == ["pending"]


async def test_who_may_not_see_everything_sees_nothing(
    guarded: Pages, sql: Client, token: Callable[..., str]
) -> None:
    run = Running(sql, STEPS).page
    for role, tenant in (("producer", None), ("operator", "acme")):
        guarded.headers["Authorization"] = f"Bearer {token(role, tenant)}"
        for path in (
            *("/", "/leases", "/fleet/map.json", "/events", "/events/stream?after=0", "/try"),
            *("/runs", run, f"{run}/why", "/workflows"),
        ):
            await guarded.page(path, 403)


async def test_the_proxy_says_who_it_is(dsn: str, sql: Client, node: str) -> None:
    async with serving(
        dsn, auth="proxy", proxy_networks=("127.0.0.1/32",), proxy_tenant_required=False
    ) as pages:
        pages.headers.update({"X-Forwarded-User": "ada", "X-Forwarded-Role": "operator"})
        assert "ada" in await pages.page("/")
        await pages.do("cordon", node)
    assert sql.list_events(code="node_cordoned")[0].actor == "user:ada"


URL = "https://hooks.example/"


def made(sql: Client) -> str:
    """A webhook with a dead delivery, one that waits to be tried again and one that was taken."""
    secret = sql.set_webhook("pager", URL, codes=["none"], labels={"<em>": HOSTILE}, tenant="<em>")
    assert secret is not None
    for status, text in ((204, None), (500, HOSTILE), (410, None)):
        sql.test_webhook("pager")
        [each] = sql.claim_deliveries(1)
        sql.settle_delivery(each.delivery_id, each.attempt, status=status, response=text)
    return secret


async def test_a_webhook_and_its_deliveries(pages: Pages, sql: Client) -> None:
    secret = made(sql)
    listed = await pages.page("/webhooks")
    check(listed)
    assert 'href="/webhooks/pager"' in listed
    assert 'data-key="h" aria-current="page"' in listed
    text = await pages.page("/webhooks/pager")
    check(text)
    assert "<em>" not in text
    assert "the receiver answered 410" in text
    assert secret not in text + listed
    rows = re.findall(r'<tr id="delivery-[^"]+">(.*?)</tr>', text, re.DOTALL)
    states = [re.findall(r"</svg>(waiting|delivered|dead)<", row) for row in rows]
    assert states == [["dead"], ["waiting"], ["delivered"]]
    dead = await pages.page("/webhooks/pager?state=dead")
    assert len(re.findall('<tr id="delivery-', dead)) == 1
    assert len(re.findall('<tr id="delivery-', await pages.page("/webhooks/pager?state=x"))) == 3
    await pages.page("/webhooks/nobody", 404)


async def test_what_is_done_with_it(pages: Pages, sql: Client) -> None:
    made(sql)
    assert (await pages.do("resume-webhook", "pager")).headers["location"] == (
        "/webhooks/pager?done=resume-webhook"
    )
    assert sql.list_webhooks()[0].paused_at is None
    await pages.do("redeliver", "pager")
    assert sql.list_deliveries("pager", state="dead") == []
    await pages.do("test-webhook", "pager")
    assert len(sql.list_deliveries("pager")) == 4
    await pages.do("pause-webhook", "pager")
    assert sql.list_webhooks()[0].paused_reason == "asked"
    assert "Paused: nothing is sent" in await pages.page("/webhooks/pager?done=pause-webhook")
