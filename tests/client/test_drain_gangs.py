"""`drain`, `run_one` and `inline` start gangs: room for all, then each handler in turn."""

from __future__ import annotations

from uuid import UUID

import pytest

from hwqueue import App, Member
from hwqueue.client import Client
from hwqueue.handler.context import LeaseContext
from hwqueue.testing import Fleet, create_queues, drain, inline, run_one
from hwqueue.types import GangOptions, LeaseState
from tests.client.conftest import producer

pytestmark = pytest.mark.thorough

GPU = {"resources": {"gpu": 1}}


client = producer


@pytest.fixture
def app(client: Client) -> App:
    """Members that say whom they see, and one that fails at first."""
    app = App()

    @app.task("train", queue="gpu", placement=GPU)
    def train(context: LeaseContext) -> str:
        assert context.gang is not None
        assert all(member.reserved_until is None for member in context.gang.members)
        return f"{context.gang.rank} of {context.gang.size}"

    @app.task("flaky", queue="gpu", placement=GPU)
    def flaky(context: LeaseContext) -> int:
        if context.attempt == 1:
            raise ValueError("at first")
        return context.attempt

    create_queues(client, app)
    return app


def spawn(client: Client, *members: Member, **options: object) -> UUID:
    """A gang of these members."""
    given: GangOptions = options  # type: ignore[assignment]
    return client.spawn_gang("gpu", members, **given)[0].gang_id


def test_on_a_fleet(client: Client, app: App) -> None:
    fleet = Fleet(client)
    for number, rack in enumerate((1, 2, 2)):
        fleet.add(f"n-{number}", gpus=1, rack=rack)
    gang_id = spawn(client, Member(app.tasks["train"], count=2), together="rack")
    done = drain(client, app, node=fleet)
    assert sorted(done.results) == ["0 of 2", "1 of 2"]
    assert {run.node.name for run in done} == {"n-1", "n-2"}
    assert client.get_gang(gang_id).state == "completed"
    large = spawn(client, Member(app.tasks["train"], count=4))
    assert drain(client, app, node=fleet, scheduled=True).results == []
    assert client.get_gang(large).state == "waiting"
    with pytest.raises(AssertionError, match="the fleet has room for 3 of 4"):
        run_one(client, app, lease_id=client.get_gang(large).members[0].lease_id, node=fleet)


@pytest.mark.parametrize("together", [None, "node", "rack", ["label:zone", "fleet"]])
def test_on_nodes_that_are_made_up(client: Client, app: App, together: object) -> None:
    """In one place, whatever the gang says that this is."""
    gang_id = spawn(client, Member(app.tasks["train"], count=3), together=together, same=["gpu_model"])
    assert len(drain(client, app).results) == 3
    assert client.get_gang(gang_id).state == "completed"
    assert client.list_nodes() == []


def test_one_that_fails(client: Client, app: App) -> None:
    """What has not begun is released, and with `retries` all start again."""
    members = (Member(app.tasks["flaky"]), Member(app.tasks["train"]))
    gang_id = spawn(client, *members)
    fleet = Fleet(client)
    for number in range(2):
        fleet.add(f"n-{number}", gpus=1)
    with pytest.raises(ValueError, match="at first"):
        drain(client, app, node=fleet)
    gang = client.get_gang(gang_id)
    assert {member.state for member in gang.members} <= {LeaseState.SCHEDULED, LeaseState.COMPLETED}
    assert drain(client, app, node=fleet).results == []  # it has lost a member
    results = drain(client, app, node=fleet, retries=True).results
    assert 2 in results
    assert client.get_gang(gang_id).state == "completed"


def test_a_member_elsewhere(client: Client, app: App) -> None:
    """A node that the drain does not claim for has one: said, instead of waited for."""
    fleet = Fleet(client)
    nodes = [fleet.add(f"n-{number}", gpus=1) for number in range(2)]
    spawn(client, Member(app.tasks["train"], count=2))
    client.reap()
    with pytest.raises(AssertionError, match=r"is reserved on n-\d, and not of 'n-\d'"):
        drain(client, app, node=nodes[0])


def test_inline_and_one_alone(client: Client, app: App) -> None:
    with inline(app):
        gang_id = spawn(client, Member(app.tasks["train"], count=2), together="rack")
        assert client.get_gang(gang_id).state == "completed"
        others = client.spawn_gang("gpu", [Member("elsewhere", count=2)])
    assert client.get_gang(others[0].gang_id).state == "waiting"
    first, second = client.spawn_gang("gpu", [Member(app.tasks["train"], count=2)])
    assert run_one(client, app, lease_id=second.lease_id).result == "1 of 2"
    assert client.get_lease(first.lease_id).state is LeaseState.SCHEDULED  # released
