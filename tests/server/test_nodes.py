"""Nodes over HTTP, and what they are to a placement."""

from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import Gpu, NodeSpec
from tests.server.conftest import V1, Http, ok, problem


async def test_all_of_a_node_is_told(http: Http, sql: Client) -> None:
    node_id, gpu = uuid4(), uuid4()
    sql.register_node(
        node_id,
        NodeSpec(
            name="big",
            instance_id="first",
            rack=7,
            cpu_milli=8000,
            gpus=[Gpu(resource_id=gpu, model="A100", memory_mib=81920)],
            slots=3,
        ),
    )
    sql.attest_node(node_id, "vault")
    node = ok(await http.get(f"{V1}/nodes/{node_id}"))
    assert (node["name"], node["rack"], node["live"], node["claims"]) == ("big", 7, True, 0)
    assert node["capacity"] == {"cpu_milli": 8000}
    assert node["gpus"] == [{"resource_id": str(gpu), "model": "A100", "memory_mib": 81920, "milli_used": 0}]
    [attestation] = node["attestations"]
    assert (attestation["domain"], attestation["expires_at"]) == ("vault", None)


async def test_nodes_by_name(http: Http, sql: Client) -> None:
    for name in "abc":
        sql.register_node(uuid4(), NodeSpec(name=f"paged-{name}@x", instance_id="first"))
    [only] = ok(await http.get(f"{V1}/nodes", params={"name": "paged-b@x"}))["items"]
    assert only["name"] == "paged-b@x"
    after = ok(await http.get(f"{V1}/nodes", params={"after": "paged-b@x", "limit": 1}))["items"]
    assert [node["name"] for node in after] == ["paged-c@x"]


async def test_out_of_service_and_back_and_out_of_the_fleet(http: Http, node: str) -> None:
    url = f"{V1}/nodes/{node}"
    assert ok(await http.post(f"{url}/cordon"))["cordoned"] is True
    assert ok(await http.post(f"{url}/uncordon"))["cordoned"] is False
    drained = ok(await http.post(f"{url}/drain", json={"deadline": 600}))
    assert (drained["cordoned"], drained["draining"]) == (True, True)
    ok(await http.post(f"{url}/uncordon"))
    ok(await http.post(f"{url}/drain"))
    assert ok(await http.get(url))["cordoned"] is True
    assert (await http.post(f"{url}/deregister")).status_code == 204
    problem(await http.get(url), 404, "QHN01")


async def test_taints(http: Http, node: str) -> None:
    url = f"{V1}/nodes/{node}"
    taint = {"key": "broken", "value": "fan", "effect": "no_schedule"}
    [told] = ok(await http.post(f"{url}/taint", json=taint))["taints"]
    assert told.items() >= (taint | {"by": "operator"}).items()
    assert ok(await http.post(f"{url}/untaint", json={"key": "broken"})) == {"removed": 1}
    assert ok(await http.get(url))["taints"] == []
    bad = taint | {"effect": "explode"}
    found = problem(await http.post(f"{url}/taint", json=bad), 422, "QHA01")
    assert found["field"] == "effect"


async def test_handing_over(http: Http, sql: Client, node: str) -> None:
    url = f"{V1}/nodes/{node}"
    sql.attest_node(node, "vault")
    given = ok(await http.post(f"{url}/hand-over", json={"login": "hwqueue_worker"}))
    assert given["login"] == "hwqueue_worker"
    [attestation] = given["attestations"]
    assert "hwqueue_worker" in attestation["suspended_why"]
    for login, field in (("nobody at all", "login"), ("", "login")):
        found = problem(await http.post(f"{url}/hand-over", json={"login": login}), 422, "QHA01")
        assert found["field"] == field


async def test_match_counts_all_and_tells_the_best(http: Http, node: str, queue: str) -> None:
    wanted = {"require": [{"tags": {"gpu": True}}]}
    found = ok(await http.post(f"{V1}/match", json={"placement": wanted, "queue": queue}))
    assert found["items"][0]["eligible"] is True
    assert node in {match["node_id"] for match in found["items"] if match["eligible"]}
    assert found["nodes"] <= found["eligible"] + sum(found["reasons"].values())
    none = {"require": [{"tags": {"gpu": "none such"}}]}
    found = ok(await http.post(f"{V1}/match", json={"placement": none, "limit": 1}))
    assert (found["eligible"], len(found["items"])) == (0, 1)
    assert found["reasons"].keys() & {"label_mismatch", "label_missing"}
    [match] = found["items"]
    assert match["reasons"][0]["code"] in found["reasons"]


async def test_match_in_pages(http: Http, sql: Client, node: str) -> None:
    for _ in range(3):
        sql.register_node(uuid4(), NodeSpec(name=f"match-{uuid4()}", instance_id="first"))
    placement = {"prefer": [{"weight": 7, "when": {"tags": {"gpu": True}}}]}
    whole = ok(await http.post(f"{V1}/match", json={"placement": placement}))
    assert whole["next"] is None
    count = len(whole["items"])
    for skip, after in ((0, 2), (2, 4), (count - 1, None), (1_000_000, None)):
        body = {"placement": placement, "limit": 2, "skip": skip}
        page = ok(await http.post(f"{V1}/match", json=body))
        items = {"items": whole["items"][skip : skip + 2], "next": after}
        assert page == whole | items
