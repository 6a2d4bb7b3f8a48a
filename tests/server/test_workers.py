"""Workers without a login of the database: what their token and their node's secret open, and what not."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from hwqueue.client import Client
from hwqueue.client._http import NODE_CALLS
from hwqueue.server.models.workers import FORMS
from hwqueue.types import NodeSpec
from hwqueue.types.nodes import id_of_node
from tests.server.conftest import V1, Http, Serving, Token, ok, problem

LINE = {"line": 1, "at": "2030-01-31T12:00:00Z", "message": "x"}


@dataclass
class Machine:
    """A machine with a token, and the node that it registers."""

    http: Http
    headers: dict[str, str]
    name: str
    secret: dict[str, str] = field(default_factory=dict)

    @property
    def node_id(self) -> UUID:
        return id_of_node(self.name)

    async def ask(self, route: str, /, node: UUID | None = None, **body: Any) -> httpx.Response:
        """Call a route of its node, or of another one."""
        url = f"{V1}/nodes/{node or self.node_id}/{route}"
        return await self.http.post(url, json=body, headers=self.headers | self.secret)

    async def register(self, instance: str = "first", **spec: Any) -> Any:
        """Register its node."""
        about = {"name": self.name, "instance_id": instance, **spec}
        found = ok(await self.ask("register", spec=about))
        self.secret = {"Node-Secret": found["secret"]}
        return found

    async def items(self, route: str, **body: Any) -> Any:
        """The rows that a route answers."""
        return ok(await self.ask(route, **body))["items"]

    async def value(self, route: str, **body: Any) -> Any:
        """What a route returns."""
        return ok(await self.ask(route, **body))["value"]


@pytest.fixture
def machine(guarded: Http, token: Token) -> Machine:
    """A machine whose token is bound to its node, and to more that begin so."""
    name = f"edge-{uuid4()}"
    return Machine(guarded, token("worker", nodes=[name, f"{name}.*"]), name)


def of(claim: dict[str, Any]) -> dict[str, Any]:
    """A claim as batches name it."""
    return {"lease_id": claim["lease_id"], "claim_token": int(claim["claim_token"])}


def named(claim: dict[str, Any]) -> dict[str, Any]:
    """A claim as calls about one name it."""
    return {"lease": claim["lease_id"], "token": claim["claim_token"]}


async def test_a_worker_runs_leases(machine: Machine, sql: Client, queue: str) -> None:
    lease = sql.spawn_lease(queue, "draw", {"frame": 1}).lease_id
    assert (await machine.register())["node_epoch"] == "1"
    [claim] = await machine.items("claim", queues=[queue])
    assert (claim["lease_id"], claim["task_name"], claim["params"]) == (str(lease), "draw", {"frame": 1})
    assert await machine.value("progress", reports=[of(claim) | {"fraction": 0.5}]) == 1
    assert await machine.value("logs", logs=[of(claim) | {"lines": [LINE]}]) == 1
    assert await machine.value("checkpoints", **named(claim), name="loaded", state=[1], extend=600)
    assert (await machine.items("saved", **named(claim)))[0]["state"] == [1]
    [told] = await machine.items("heartbeat", claims=[of(claim)])
    assert (told["verdict"], told["claim_token"]) == ("ok", claim["claim_token"])
    done = of(claim) | {"outcome": "complete", "result": 7}
    [settled] = await machine.items("settle", settle=[done], queues=[queue], qty=1)
    assert (settled["kind"], settled["verdict"], settled["state"]) == ("settled", "ok", "completed")
    found = sql.get_lease(lease)
    assert (found.result, found.node_id) == (7, machine.node_id)
    assert await machine.value("leave") is True
    event = sql.list_events(code=["node_registered"], node_id=machine.node_id)[-1]
    assert event.actor.startswith("token:worker-")


async def test_lost_answers(machine: Machine, sql: Client, queue: str) -> None:
    """Each call is made again; what a claim has granted comes with the next heartbeat."""
    first = await machine.register()
    before = dict(machine.secret)
    again = await machine.register()
    assert (again["node_epoch"], again["secret"] == first["secret"]) == ("1", False)
    problem(await machine.http.post(
        f"{V1}/nodes/{machine.node_id}/heartbeat", json={}, headers=machine.headers | before
    ), 409, "QHN03")  # fmt: skip
    for _ in range(2):
        sql.spawn_lease(queue, "draw")
    [claim] = await machine.items("claim", queues=[queue])
    await machine.items("claim", queues=[queue])  # nobody hears this
    unnamed, known = await machine.items("heartbeat", claims=[of(claim)])
    assert (known["verdict"], unnamed["verdict"], unnamed["expires_at"]) == ("ok", "unnamed", None)
    released = of(unnamed) | {"outcome": "release"}
    [settled] = await machine.items("settle", settle=[released], queues=[queue], qty=0)
    assert (settled["verdict"], settled["state"]) == ("ok", "pending")
    assert len(await machine.items("heartbeat", claims=[of(claim)])) == 1
    for _ in range(2):
        assert await machine.value("progress", reports=[of(claim) | {"fraction": 0.5}]) == 1
        assert await machine.value("checkpoints", **named(claim), name="a")
        assert await machine.value("extend", **named(claim), extend=60)
    lines = [of(claim) | {"lines": [LINE]}]
    assert [await machine.value("logs", logs=lines) for _ in range(2)] == [1, 0]
    done = [of(claim) | {"outcome": "complete"}]
    verdicts = [await machine.items("settle", settle=done, queues=[queue], qty=0) for _ in range(2)]
    assert [each["verdict"] for [each] in verdicts] == ["ok", "finished"]
    [claim] = await machine.items("claim", queues=[queue])
    assert await machine.value("suspend", **named(claim), signal="go") == "scheduled"
    problem(await machine.ask("suspend", **named(claim), signal="go"), 409, "QHL01")
    assert await machine.value("leave") is True
    problem(await machine.ask("leave"), 404, "QHN01")


async def test_a_revoked_token_does_nothing_more(
    serving: Serving, token: Token, sql: Client, queue: str
) -> None:
    """Although the server has seen it lately; its claims end by their timeout."""
    lease = sql.spawn_lease(queue, "draw").lease_id
    name = f"edge-{uuid4()}"
    headers = token("worker", nodes=[name])
    async with serving(auth="tokens", token_cache=timedelta(minutes=1)) as http:
        machine = Machine(http, headers, name)
        await machine.register()
        [claim] = await machine.items("claim", queues=[queue])
        registered = sql.list_events(code=["node_registered"], node_id=machine.node_id)[-1]
        sql.revoke_token(registered.actor.removeprefix("token:"))
        for route in ("heartbeat", "leave"):
            problem(await machine.ask(route), 401)
        problem(await machine.ask("register", spec={"name": name, "instance_id": "first"}), 401)
        done = [of(claim) | {"outcome": "complete"}]
        problem(await machine.ask("settle", settle=done, queues=[queue]), 401)
    assert sql.get_lease(lease).state == "claimed"


async def test_a_second_machine_with_a_stolen_token(machine: Machine, sql: Client, queue: str) -> None:
    """It opens nothing with the token alone; it may take the node over, which the first one is told."""
    sql.spawn_lease(queue, "draw")
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    thief = Machine(machine.http, machine.headers, machine.name, {"Node-Secret": "x" * 43})
    problem(await thief.ask("heartbeat"), 409, "QHN03")
    problem(await thief.ask("checkpoints", **named(claim), name="a"), 409, "QHN03")
    spec = {"name": machine.name, "instance_id": "thief", "keep_claims": True}
    assert problem(await thief.ask("register", spec=spec), 422, "QHA01")["field"] == "spec.keep_claims"
    await thief.register("thief")
    problem(await machine.ask("heartbeat", claims=[of(claim)]), 409, "QHN03")
    assert await thief.items("heartbeat", claims=[]) == []
    assert (await thief.items("heartbeat", claims=[of(claim)]))[0]["verdict"] == "lost"
    events = sql.list_events(code=["node_superseded"], node_id=machine.node_id)
    assert events[-1].detail
    assert events[-1].detail["claims_ended"] == 1


BODIES: dict[str, Any] = {
    route: form.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index]
    for route, form in FORMS.items()
}


@pytest.mark.every_variant
@pytest.mark.parametrize("route", NODE_CALLS)
async def test_no_route_acts_for_a_node_of_another_token(
    machine: Machine, token: Token, sql: Client, queue: str, route: str
) -> None:
    """One of another token, of a login and one that is not there are answered alike."""
    sql.spawn_lease(queue, "draw")
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    other = Machine(machine.http, token("worker", nodes=[machine.name, "other-*"]), f"other-{uuid4()}")
    await other.register()
    about = {"lease": claim["lease_id"], "token": claim["claim_token"]}
    body = BODIES[route] | {name: about[name] for name in about if name in BODIES[route]}
    body |= {"signal": "go"} if route == "suspend" else {}
    told, login = set(), uuid4()
    sql.register_node(login, NodeSpec(name=str(login), instance_id="first"))
    for node in (machine.node_id, login, uuid4()):
        for secret in (machine.secret, other.secret):
            other.secret, kept = secret, other.secret
            found = problem(await other.ask(route, node=node, **body), 404, "QHN01")
            told.add(found["detail"].replace(str(node), "N"))
            other.secret = kept
    assert len(told) == 1
    if "lease" in body and "token" in body:
        for lease in (claim["lease_id"], str(uuid4())):
            problem(await other.ask(route, **body | {"lease": lease}), 409, "QHL01")
    assert sql.get_lease(claim["lease_id"]).state == "claimed"


async def test_no_claim_of_another_node_is_touched(
    machine: Machine, token: Token, sql: Client, queue: str
) -> None:
    lease = sql.spawn_lease(queue, "draw").lease_id
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    other = Machine(machine.http, machine.headers, f"{machine.name}.b")
    await other.register()
    assert await other.value("progress", reports=[of(claim) | {"fraction": 1}]) == 0
    assert await other.value("logs", logs=[of(claim) | {"lines": [LINE]}]) == 0
    assert (await other.items("heartbeat", claims=[of(claim)]))[0]["verdict"] == "lost"
    plain = {"completed": [claim["lease_id"]], "completed_tokens": [claim["claim_token"]]}
    for outcome in ("complete", "fail", "release", "suspend"):
        ended = of(claim) | {"outcome": outcome} | ({"error": {}} if outcome == "fail" else {})
        ended |= {"name": "a", "signal": "s"} if outcome == "suspend" else {}
        answer = await other.ask("settle", settle=[ended], queues=[queue], qty=0)
        assert answer.status_code == 422 or answer.json()["items"][0]["verdict"] != "ok", answer.text
    assert (await other.items("settle", settle=[], queues=[queue], qty=0, **plain))[0]["verdict"] != "ok"
    assert await other.items("outlook", lease_ids=[claim["lease_id"]]) == []
    odd: list[Any] = [[{"lease_id": 1}], [7], [{}], {"a": 1}, 7, "x"]
    for reports in odd:
        problem(await other.ask("progress", reports=reports), 422, "QHA01")
    found = sql.get_lease(lease)
    assert (found.state, found.progress) == ("claimed", None)


async def test_a_lease_that_another_node_has_now_is_not_touched(
    machine: Machine, sql: Client, queue: str
) -> None:
    """Although the node was the last to run it, and the next token can be guessed."""
    lease = sql.spawn_lease(queue, "draw").lease_id
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    released = of(claim) | {"outcome": "release"}
    await machine.items("settle", settle=[released], queues=[queue], qty=0)
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name=str(node), instance_id="first"))
    [theirs] = sql.claim_task([queue], node, epoch)
    item, one = of(claim) | {"claim_token": theirs.claim_token}, named(claim) | {"token": theirs.claim_token}
    assert await machine.value("logs", logs=[item | {"lines": [LINE]}]) == 0
    assert await machine.value("progress", reports=[item | {"fraction": 0.5}]) == 0
    for route, more in (
        ("checkpoints", {"name": "a"}),
        ("extend", {"extend": 60}),
        ("suspend", {"signal": "s"}),
    ):
        problem(await machine.ask(route, **one, **more), 409, "QHL01")
    assert (sql.lease_checkpoints(lease), sql.lease_logs(lease)) == ([], [])
    found = sql.get_lease(lease)
    assert (found.state, found.progress) == ("claimed", None)


async def test_no_lane_is_closed_by_a_lease_that_waits(machine: Machine, sql: Client, queue: str) -> None:
    sql.create_limit(f"l-{queue}", {"slots": 1})
    lease = sql.spawn_lease(queue, "draw", limits=[f"l-{queue}"]).lease_id
    await machine.register()
    body: dict[str, Any] = {"name": f"l-{queue}", "lease": str(lease), "retry_after": 600}
    problem(await machine.ask("throttle", **body), 409, "QHL01")


async def test_a_run_is_read_by_who_runs_a_step_of_it(machine: Machine, sql: Client, queue: str) -> None:
    """Although the server's login may read all runs."""
    spec = {"name": "flow", "queue": queue, "steps": [{"name": "a", "task": "t"}]}
    run, other = (sql.submit_spec(spec, input={"n": 1}).run_id for _ in range(2))
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    about = {"run": str(run), "lease": claim["lease_id"]}
    assert await machine.value("input", **about) == {"n": 1}
    assert [each["name"] for each in await machine.items("results", **about, step="a")] == [None]
    for body in (about | {"run": str(other)}, about | {"lease": str(uuid4())}):
        problem(await machine.ask("input", **body), 409, "QHL01")
        problem(await machine.ask("results", **body, step="a"), 409, "QHL01")
    problem(await machine.ask("input", run=str(run)), 422, "QHA01")


async def test_an_id_belongs_to_a_name(machine: Machine) -> None:
    """So who may register one name takes no id that another will have."""
    for node, name in ((uuid4(), machine.name), (id_of_node("db-1"), machine.name), (machine.node_id, 7)):
        spec = {"name": name, "instance_id": "first"}
        problem(await machine.ask("register", node=node, spec=spec), 403, "QHN07")
    spec = {"name": "db-1", "instance_id": "first"}
    problem(await machine.ask("register", node=id_of_node("db-1"), spec=spec), 403, "QHN07")


async def test_a_wait_ends_with_what_is_announced(machine: Machine, sql: Client, queue: str) -> None:
    await machine.register()
    url = f"{V1}/nodes/{machine.node_id}/wait"

    async def wait(after: float | None = None) -> Any:
        params = {"queue": queue} | ({} if after is None else {"after": after})
        return ok(await machine.http.get(url, params=params, headers=machine.headers | machine.secret))

    first = await wait()
    assert (first["work"], first["stop"]) == (True, True)  # whatever came before is not known
    assert await machine.items("claim", queues=[queue]) == []
    waiting = asyncio.ensure_future(wait(first["after"]))
    sql.spawn_lease(queue, "draw")
    heard = await waiting
    assert (heard["work"], heard["stop"]) == (True, False)
    [claim] = await machine.items("claim", queues=[queue])
    sql.cancel_lease(claim["lease_id"])
    heard = await wait(heard["after"])
    assert heard["stop"] is True


async def test_what_a_token_may_take_is_bounded(serving: Serving, token: Token, queue: str) -> None:
    name = f"edge-{uuid4()}"
    headers = token("worker", nodes=[name])
    settings = {"auth": "tokens", "max_streams_per_caller": 1, "max_single_body_bytes": 2000}
    async with serving(**settings, rate_limit="30/minute") as http:
        machine = Machine(http, headers, name)
        await machine.register()
        url = f"{V1}/nodes/{machine.node_id}/wait"
        with http.app.state.services.streams.slot(f"token:{headers['Authorization'].split('secret-of-')[1]}"):
            problem(await http.get(url, headers=machine.headers | machine.secret), 429)
        problem(await machine.ask("progress", reports=["x" * 2000]), 413)
        answers = [await machine.ask("heartbeat") for _ in range(40)]
        assert {each.status_code for each in answers} == {200, 429}


async def test_what_is_wrong_is_told_as_a_request_has_it(machine: Machine, sql: Client, queue: str) -> None:
    """Not as SQL has it: no p_, no array, no interval."""
    sql.spawn_lease(queue, "draw")
    await machine.register()
    [claim] = await machine.items("claim", queues=[queue])
    for route, body, detail, hint in (
        ("claim", {"queues": []}, "queues must name 1 to 1000 queues", 'for example ["default"]'),
        (
            "extend",
            named(claim) | {"extend": 0},
            "extend must be from one second to 30 days, got 00:00:00",
            "give a span such as 300, in seconds; heartbeats extend the claim again",
        ),
        (
            "suspend",
            named(claim),
            "signal is missing, and no time ends the wait",
            "say for which signal it waits, or until when",
        ),
    ):
        found = problem(await machine.ask(route, **body), 422, "QHA01")
        assert (found["detail"], found["hint"]) == (detail, hint)


async def test_what_is_no_secret(machine: Machine) -> None:
    await machine.register()
    for secret in ("", "x", "x" * 44):
        machine.secret = {"Node-Secret": secret}
        problem(await machine.ask("heartbeat"), 422, "QHA01")
    machine.secret = {}
    problem(await machine.ask("heartbeat"), 422, "QHA01")
