"""spawn_warnings, and the warnings of spawn_lease: what keeps every live node from a spawn."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api
from tests.sql.explained import explain, label
from tests.sql.isolation_support import devices

pytestmark = pytest.mark.usefixtures("lone")


def warned(api: Api, queue: str, task: str = "train", **options: Any) -> list[str]:
    """What a new spawn lacks."""
    lease = api.spawn(queue, task, None, **options)
    found: list[str] = api.value("spawn_warnings", id=lease)
    return found


@pytest.fixture
def queue(api: Api) -> str:
    """A queue and a task that one node serves, which has labels and a device."""
    queue, labels = api.queue(), {"gpu_model": "A100", "cuda": 12.1, "driver": "535"}
    api.node(name="the-node", queues=[queue], tasks=["train"], labels=labels, gpus=devices(None))
    return queue


NEAR = "no live node can run it: 1 node would match but for"
LACKING: list[tuple[Row, str]] = [
    ({"placement": {"resources": {"gpus": 1}}}, "no live node has resource gpus, did you mean gpu?"),
    ({"affinity_tags": {"colour": "red"}}, "no live node has label colour"),
    ({"affinity_tags": {"gpu_model": "A10"}}, "no live node has label gpu_model=A10"),
    (
        {"placement": {"require": [label("gpu_modle", "A100")]}},
        "no live node has label gpu_modle, did you mean gpu_model?",
    ),
    (
        {"affinity_tags": {"cuda": "12.10"}},
        "no live node has label cuda=12.10: label cuda is the number 12.1, and the lease asks for the text"
        ' "12.10" (1 live node)',
    ),
    (
        {"affinity_tags": {"driver": 535}},
        'no live node has label driver=535: label driver is the text "535", and the lease asks for the number'
        " 535 (1 live node)",
    ),
    (
        {"placement": {"require": [{"label": "cuda", "op": "version", "values": [">= 12.9"]}]}},
        f'{NEAR} cuda version >= 12.9 (the-node: label "cuda" is the number 12.1, and the lease asks for the'
        ' text ">= 12.9")',
    ),
    (
        {"placement": {"require": [{"label": "gpu_model", "op": "gt", "values": [9]}]}},
        f'{NEAR} gpu_model > 9 (the-node: label "gpu_model" is the text "A100", and the lease asks for the'
        " number 9)",
    ),
]


@pytest.mark.parametrize(("options", "said"), LACKING)
def test_a_name_that_no_live_node_has_is_told(api: Api, queue: str, options: Row, said: str) -> None:
    assert warned(api, queue, **options) == [said]


def test_a_task_that_no_worker_has_is_told_beside_what_is_asked(api: Api, queue: str) -> None:
    """And so is what is known by name but nowhere together."""
    assert warned(api, queue, "trian", affinity_tags={"colour": "red"}) == [
        'no live node has a handler for task "trian"; did you mean train?',
        "no live node has label colour",
    ]
    assert warned(api, queue) == []
    [said] = warned(api, queue, placement={"resources": {"gpu": 2}})
    assert said.startswith(f"{NEAR} 2 GPU (the-node: ")


def test_without_a_live_node_that_alone_is_told(api: Api, clock: Clock) -> None:
    queue = api.queue()
    assert warned(api, queue, affinity_tags={"colour": "red"}) == ["no node is registered"]
    api.node(queues=[queue], tasks=["train"], declared=["train"])
    [said] = warned(api, queue)
    assert said.startswith('leases get the defaults that workers declare for task "train" once')
    api.rows("sync_tasks", defaults={"train": {"priority": 1}})
    assert warned(api, queue) == []
    clock.advance(timedelta(days=1))
    assert warned(api, queue) == ["the only node is silent: the last sign of life came 1 d 0 h ago"]


def test_gangs_and_everywhere_tasks_are_told_of_as_leases(api: Api, queue: str) -> None:
    members = [{"task": "train"}, {"task": "other"}]
    gang = api.rows("spawn_gang", queue=queue, members=Jsonb(members))[0]["gang_id"]
    everywhere = api.row("spawn_everywhere", queue=queue, task="other")["everywhere_id"]
    for each in (gang, everywhere):
        assert api.value("spawn_warnings", id=each) == ['no live node has a handler for task "other"']
    assert api.value("spawn_warnings", id=NOBODY) == []


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("train", {}, None),
        ("trian", {}, 'none serves task "trian" in this queue'),
        ("train", {"affinity_tags": {"colour": "red"}}, "most lacked colour in red"),
        ("train", {"placement": {"resources": {"gpu": 2}}}, "most lacked 2 GPU"),
        ("train", {"placement": {"resources": {"gpus": 2}}}, "most lacked 2 gpus"),
    ],
)
def test_a_spawn_says_what_upkeep_has_found(
    api: Api, queue: str, task: str, options: Row, said: str | None
) -> None:
    spawn = {"queue": queue, "task": task, "options": options}
    assert api.row("spawn_lease", **spawn)["warnings"] is None  # nobody has looked
    api.rows("reap")
    found = api.row("spawn_lease", **spawn)["warnings"]
    assert found == ([f"no live node could run it at the last look: {said}"] if said else [])


def test_an_explanation_and_a_match_tell_of_another_type(api: Api, queue: str) -> None:
    found = explain(api, api.spawn(queue, "train", None, affinity_tags={"cuda": "12.10"}))
    told = 'label cuda is the number 12.1, and the lease asks for the text "12.10" (1 live node)'
    assert told in found["headline"]
    assert told in found["help"][0]["words"]
    [row] = api.rows("match_nodes", placement={"require": [label("cuda", "12.10")]})
    assert [reason["message"] for reason in row["reasons"]] == [
        'label "cuda" is the number 12.1, and the lease asks for the text "12.10"'
    ]
    assert api.row("pending_reasons", queue=queue)["message"].endswith(told)
