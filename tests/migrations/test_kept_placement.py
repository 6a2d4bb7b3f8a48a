"""What leases ask and what nodes are goes on to hold after the upgrade of an earlier release."""

from collections.abc import Iterator

import pytest

from tests.migrations.make_release import PARTS, PLACED, PLACED_NODES
from tests.migrations.restored import RELEASES, at_the_time_of, everything, restore_and_upgrade
from tests.sql.api import Api, Node, Row, settlement


@pytest.fixture(params=RELEASES[1:], ids=lambda path: path.name)  # the first could not place
def before(request: pytest.FixtureRequest, empty_dsn: str) -> list[Row]:
    """Restore a release's rows and upgrade; what get_lease said of each lease before."""
    return restore_and_upgrade(request.param, empty_dsn, PLACED)


@pytest.fixture
def api(before: list[Row], empty_dsn: str) -> Iterator[Api]:
    """The upgraded database, at the time of the dump."""
    with at_the_time_of(before, empty_dsn) as upgraded:
        yield upgraded
        assert upgraded.rows("verify_invariants") == []


def claimed(api: Api, name: str) -> list[str]:
    """Claim all that a node of the release may run; which leases these are."""
    claims = api.claim(Node(PLACED_NODES[name], 1, name), PLACED, qty=10)
    return sorted(claim["params"]["waits"] for claim in claims)


def test_leases_are_what_they_were(api: Api, before: list[Row]) -> None:
    now = everything(api, PLACED)
    assert [row | was for row, was in zip(now, before, strict=True)] == now
    assert [row["wire"] is not None for row in before].count(True) == 1


def test_what_waits_runs_where_it_may(api: Api, before: list[Row]) -> None:
    found = {name: claimed(api, name) for name in PLACED_NODES}
    assert found == {
        "rack-1": [],
        "rack-2": ["capped", "web"],
        "film": ["film"],
        "trusted": ["trusted"],
        "isolating": ["alone", "part"],
    }


def test_what_others_have_is_given_to_nobody(api: Api, before: list[Row]) -> None:
    claimed(api, "isolating")
    given = [row["assignment"] for row in everything(api, PLACED) if row["assignment"]]
    cores = [(core, one["cpu_isolation"]) for one in given for core in one.get("cores", ())]
    alone = [core for core, kind in cores if kind == "whole_core"]
    assert len(set(alone)) == len(alone) == 4
    assert not {core for core, kind in cores if kind == "best_effort"} & set(alone)
    devices = [gpu["resource_id"] for one in given for gpu in one.get("gpus", ())]
    assert sorted(devices) == sorted(PARTS)


def test_who_leaves_makes_room(api: Api, before: list[Row]) -> None:
    node = Node(PLACED_NODES["rack-1"], 1, "rack-1")
    runs = [row for row in before if row["params"] in ({"runs": "db"}, {"runs": "capped"})]
    ends = [settlement(row) for row in runs]
    settled = api.rows("settle_and_claim", **node.who, settle=ends, queues=[PLACED], qty=0)
    assert [row["verdict"] for row in settled] == ["ok", "ok"]
    assert claimed(api, "rack-1") == ["capped", "web"]


def test_nodes_are_what_they_were(api: Api, before: list[Row]) -> None:
    [film] = api.rows("list_nodes", name="film")
    assert [(taint["key"], taint["by"]) for taint in film["taints"]] == [
        ("dedicated", "node"),
        ("repair", "operator"),
    ]
    [trusted] = api.rows("list_nodes", name="trusted")
    assert [one["domain"] for one in trusted["attestations"]] == ["acme.prod"]
    api.value("revoke_attestation", node=PLACED_NODES["trusted"], domain="acme.prod")
    assert "trusted" not in claimed(api, "trusted")
