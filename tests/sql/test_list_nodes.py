"""list_nodes: what there is and what of it is in use."""

from uuid import uuid4

from tests.sql.api import Api, token


def test_use_follows_the_claims(api: Api) -> None:
    gpu = {"resource_id": str(uuid4()), "model": "A100", "memory_mib": 81920}
    node = api.node(capacity={"cpu_milli": 8000, "memory_mib": 100, "license": 2}, gpus=[gpu], slots=3)
    idle = {"cpu_milli": 0, "memory_mib": 0}
    assert (api.used(node)["used"], api.used(node)["claims"]) == (idle, 0)
    needs = {"cpu_milli": 500, "memory_mib": 10, "license": 2, "gpu_milli": 250}
    claim = api.running(api.queue(), node, placement={"resources": needs})
    row = api.used(node)
    assert row["used"] == {"cpu_milli": 500, "memory_mib": 10, "license": 2}
    assert (row["gpus"], row["claims"]) == ([gpu | {"milli_used": 250}], 1)
    api.rows("complete_lease", **token(claim))
    row = api.used(node)
    assert (row["used"], row["gpus"][0]["milli_used"], row["claims"]) == (idle, 0, 0)


def test_all_of_them_by_name(api: Api) -> None:
    names = {api.node().name for _ in range(3)}
    listed = [row["name"] for row in api.rows("list_nodes")]
    assert names <= set(listed)
    assert listed == sorted(listed)
    assert api.rows("list_nodes", name="nobody") == []


def test_one_of_them(api: Api) -> None:
    node = api.node()
    [row] = api.rows("list_nodes", node=node.node_id)
    assert row["name"] == node.name
    assert api.rows("list_nodes", node=uuid4()) == []


def test_pages(api: Api) -> None:
    for letter in "dbac":
        api.node(name=f"zz-page-{letter}")
    first = [row["name"] for row in api.rows("list_nodes", after="zz-page-", limit=3)]
    assert first == ["zz-page-a", "zz-page-b", "zz-page-c"]
    rest = [row["name"] for row in api.rows("list_nodes", after=first[-1], limit=3)]
    assert rest[0] == "zz-page-d"


def test_cores_and_isolation(api: Api) -> None:
    """Cores are counted where whole ones can be asked for, and else only told."""
    cores = [{"core": number, "numa": number // 2, "threads": [number]} for number in range(3)]
    plain = api.used(api.node(cores=cores))
    assert plain["cores"] == cores
    honoured = ["best_effort", "whole_core"]
    node = api.node(cores=cores, cpu_isolation=["whole_core"], default_cpu_isolation="whole_core")
    api.running(api.queue(), node, placement={"resources": {"cpu_milli": 1500}})
    row = api.used(node)
    assert sorted(core["milli_used"] for core in row["cores"]) == [0, 1000, 1000]
    assert row["isolation"] == {
        "cpu": honoured,
        "gpu": ["shared"],
        "default_cpu": "whole_core",
        "gpu_share_mode": "fractional",
    }


def test_a_part_names_the_device_that_it_is_a_part_of(api: Api) -> None:
    whole, part = str(uuid4()), str(uuid4())
    gpus = [
        {"resource_id": whole, "model": "A100", "partitionable": True},
        {"resource_id": part, "model": "1g", "parent_resource_id": whole},
    ]
    node = api.node(gpus=gpus)
    found = api.used(node)["gpus"]
    assert "parent_resource_id" not in found[0]
    assert found[1]["parent_resource_id"] == whole
