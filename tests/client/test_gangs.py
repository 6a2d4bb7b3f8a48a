"""Gangs and everywhere tasks, through both clients."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue import App, Member, Placement, label
from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument, GangNotFound
from hwqueue.types import LeaseSpec
from tests.client.conftest import Node

app = App()


@app.task(name="lead", priority=3, patience=timedelta(minutes=5), labels={"role": "lead"})
def lead(seed: int) -> None:
    """One by one."""


@app.task(name="work")
def work(params: dict[str, Any]) -> None:
    """As a whole."""


async def test_what_is_refused(client: AsyncClient, queue: str, node: Node) -> None:
    await client.spawn_lease(queue, "single")
    [single] = await client.claim_task([queue], node.node_id, node.epoch)
    with pytest.raises(GangNotFound):
        await client.gang_status(single.lease_id, single.claim_token)
    with pytest.raises(BadArgument, match="timedelta") as caught:
        await client.spawn_gang(queue, [Member("t", count=2)], hold=5)  # type: ignore[arg-type]
    assert caught.value.field == "options.hold"
    with pytest.raises(BadArgument) as caught:
        await client.spawn_gang(queue, [Member("t", count=2, options={"delay": timedelta(1)})])
    assert caught.value.field == "members[0].options.delay"
    with pytest.raises(BadArgument, match="claim_timeout"):
        await client.spawn_everywhere(queue, "agent", claim_timeout=3)  # type: ignore[arg-type]


async def test_members_of_tasks(client: AsyncClient, queue: str) -> None:
    """What a task is declared with, what the gang says, and what the member says, in this order."""
    members: list[Member | LeaseSpec] = [
        Member(lead, {"seed": 7}),
        Member(lead.with_options(priority=8), {"seed": 8}, options={"headers": {"mine": 1}}),
        Member(work, {"n": 1}, placement=Placement().require(label("zone") == "a")),
        LeaseSpec(task="plain", params={"x": 1}),
    ]
    rows = await client.spawn_gang(queue, members, priority=5, labels={"app": "x"}, headers={"shared": 1})
    first, second, third, fourth = [await client.get_lease(row.lease_id) for row in rows]
    assert [each.priority for each in (first, second, third, fourth)] == [5, 8, 5, 5]
    assert (first.task_name, first.params, first.labels) == ("lead", {"seed": 7}, {"app": "x"})
    assert third.placement == {"require": [{"label": "zone", "op": "in", "values": ["a"]}]}
    assert (fourth.task_name, fourth.params) == ("plain", {"x": 1})
    assert first.headers is not None
    assert second.headers is not None
    assert (first.headers["shared"], first.headers["gang_rank"]) == (1, 0)
    assert (second.headers["mine"], second.headers["gang_rank"]) == (1, 1)


async def test_params_that_do_not_fit_the_handler(client: AsyncClient, queue: str) -> None:
    for params in ({"seed": "x"}, {"other": 1}, None, 7):
        with pytest.raises(BadArgument, match=r"^members\[1\]: ") as caught:
            await client.spawn_gang(queue, [{"task": "t"}, Member(lead, params)])
        assert caught.value.field is not None
        assert caught.value.field.startswith("members[1]")
    assert await client.list_gangs() == []
