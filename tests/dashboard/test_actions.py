"""Actions ask first, are done once and by whom it says; who may only look sees no button."""

import re
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import LeaseState, NodeSpec
from tests.dashboard.conftest import Pages, serving

HTML_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def node(sql: Client) -> str:
    """The name of a node that is live."""
    sql.register_node(uuid4(), NodeSpec(name="n-1", instance_id="1"))
    return "n-1"


@pytest.fixture
def lease(sql: Client) -> UUID:
    """A lease that waits."""
    sql.create_queue("renders")
    return sql.spawn_lease("renders", "draw").lease_id


async def test_cancel_and_requeue(pages: Pages, sql: Client, lease: UUID) -> None:
    assert "Cancel this lease of task draw?" in await pages.page(f"/do/cancel?lease={lease}")
    assert sql.get_lease(lease).state == LeaseState.PENDING
    done = await pages.do("cancel", str(lease), reason="a mistake")
    assert done.status_code == 303
    assert done.headers["location"] == f"/leases/{lease}?done=cancel"
    found = sql.get_lease(lease)
    assert found.state == LeaseState.CANCELLED
    assert "a mistake" in str(found.error)
    assert "Cancelled, or asked to stop" in await pages.page(done.headers["location"])
    await pages.do("requeue", str(lease))
    assert sql.get_lease(lease).state == LeaseState.PENDING


async def test_what_is_done_with_nodes(pages: Pages, sql: Client, node: str) -> None:
    async def now(verb: str, **fields: str) -> str:
        assert (await pages.do(verb, node, **fields)).status_code == 303
        return await pages.page(f"/nodes/{node}")

    assert "cordoned" in await now("cordon")
    assert sql.list_nodes(name=node)[0].cordoned
    assert "Uncordon" not in await now("uncordon")
    assert "draining" in await now("drain", deadline="15")
    assert sql.list_nodes(name=node)[0].draining
    text = await now("taint", key="disk", value="failing", effect="no_schedule")
    assert "failing" in text
    assert sql.list_nodes(name=node)[0].taints[0].key == "disk"
    await now("untaint", key="disk")
    assert sql.list_nodes(name=node)[0].taints == ()


async def test_a_node_leaves_the_fleet(pages: Pages, sql: Client, node: str) -> None:
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


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
    ],
)
async def test_forms_of_other_sites_are_refused(
    pages: Pages, sql: Client, node: str, headers: dict[str, str]
) -> None:
    asked = await pages.page(f"/do/cordon?node={node}")
    token = asked.partition('name="csrf" value="')[2].partition('"')[0]
    fields = {"csrf": token, "subject": node}
    assert (await pages.post("/do/cordon", data=fields, headers=headers)).status_code == 403
    assert not sql.list_nodes()[0].cordoned


@pytest.mark.parametrize("csrf", [None, "", "x" * 64])
async def test_forms_without_the_token_are_refused(
    pages: Pages, sql: Client, node: str, csrf: str | None
) -> None:
    await pages.page("/")
    fields = {"subject": node} | ({} if csrf is None else {"csrf": csrf})
    assert (await pages.post("/do/cordon", data=fields)).status_code == 403
    # nor with a token and without the cookie that it is made of
    asked = await pages.page(f"/do/cordon?node={node}")
    token = asked.partition('name="csrf" value="')[2].partition('"')[0]
    pages.cookies.clear()
    fields = {"csrf": token, "subject": node}
    assert (await pages.post("/do/cordon", data=fields)).status_code == 403
    assert (await pages.get("/do/cordon", params=fields)).status_code in (200, 404)
    assert not sql.list_nodes()[0].cordoned


async def test_signing_in_and_who_did_it(dsn: str, sql: Client, node: str, token: Callable[..., str]) -> None:
    secret = token("operator")
    async with serving(dsn, auth="tokens") as pages:
        asked = await pages.page(f"/nodes/{node}", 401)
        assert "Token of the API" in asked
        assert node not in asked.replace(f"/nodes/{node}", "")
        form = asked.partition('name="csrf" value="')[2].partition('"')[0]
        fields = {"csrf": form, "next": f"/nodes/{node}", "token": secret}
        answer = await pages.post("/sign-in", data=fields)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/nodes/{node}")
        session = answer.headers["set-cookie"]
        assert "HttpOnly" in session
        assert "SameSite=Lax" in session
        text = await pages.page(f"/nodes/{node}")
        assert "Sign out" in text
        await pages.do("cordon", node)
        event = sql.list_events(code="node_cordoned")[0]
        assert event.actor == "token:operator-1" or event.actor.startswith("token:operator-")
        assert event.actor.removeprefix("token:") in await pages.page("/events")
        form = text.partition('name="csrf" value="')[2].partition('"')[0]
        await pages.post("/sign-out", data={"csrf": form})
        await pages.page(f"/nodes/{node}", 401)


@pytest.mark.parametrize("away", ["https://elsewhere.example/", "//elsewhere.example", "\\\\x"])
async def test_signing_in_leads_nowhere_else(dsn: str, token: Callable[..., str], away: str) -> None:
    async with serving(dsn, auth="tokens") as pages:
        asked = await pages.page("/", 401)
        form = asked.partition('name="csrf" value="')[2].partition('"')[0]
        fields = {"csrf": form, "next": away, "token": token("viewer")}
        assert (await pages.post("/sign-in", data=fields)).headers["location"] == "/"


async def test_a_wrong_token_lets_nobody_in(dsn: str) -> None:
    async with serving(dsn, auth="tokens") as pages:
        asked = await pages.page("/", 401)
        form = asked.partition('name="csrf" value="')[2].partition('"')[0]
        for wrong in ("nonsense", "a b", "é", "x; Path=/"):
            await pages.post("/sign-in", data={"csrf": form, "token": wrong})
            assert "lets nobody in" in await pages.page("/", 401)


async def test_who_may_only_look_sees_no_button_and_does_nothing(
    dsn: str, sql: Client, lease: UUID, node: str, token: Callable[..., str]
) -> None:
    headers = {"Authorization": f"Bearer {token('viewer')}"}
    async with serving(dsn, auth="tokens") as pages:
        pages.headers.update(headers)
        for path in (f"/leases/{lease}", f"/nodes/{node}", "/queues/renders"):
            text = await pages.page(path)
            assert not re.search(r'href="/do/', text)
        assert "changes nothing" in await pages.page(f"/do/cordon?node={node}", 403)
        answer = await pages.post("/do/cordon", data={"subject": node})
        assert answer.status_code == 403
    assert not sql.list_nodes()[0].cordoned


@pytest.mark.parametrize(("role", "tenant"), [("producer", None), ("operator", "acme")])
async def test_who_may_not_see_everything_sees_nothing(
    dsn: str, token: Callable[..., str], role: str, tenant: str | None
) -> None:
    headers = {"Authorization": f"Bearer {token(role, tenant)}"}
    async with serving(dsn, auth="tokens") as pages:
        for path in (
            "/",
            "/leases",
            "/fleet/map.json",
            "/events",
            "/events/stream?after=0",
            "/try",
        ):
            response = await pages.get(path, headers=headers)
            assert response.status_code == 403, path


async def test_the_proxy_says_who_it_is(dsn: str, sql: Client, node: str) -> None:
    async with serving(
        dsn, auth="proxy", proxy_networks=("127.0.0.1/32",), proxy_tenant_required=False
    ) as pages:
        pages.headers.update({"X-Forwarded-User": "ada", "X-Forwarded-Role": "operator"})
        assert "ada" in await pages.page("/")
        await pages.do("cordon", node)
    assert sql.list_events(code="node_cordoned")[0].actor == "user:ada"
