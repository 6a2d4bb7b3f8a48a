"""Runs of workflows, and gangs, go on in a database that was restored."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.calls import Row
from tests.flows import Flow, broken, each, finish, gang, step
from tests.migrations.programs import dump, run_psql
from tests.sql import gangs
from tests.sql.api import Api

pytestmark = pytest.mark.thorough

PARENTS = ("join", "shard", "approved", "nap", "train")
STEPS: list[Row] = [
    step("left"),
    step("right"),
    step("join", "left", "right"),
    each("shard", [1, 2, 3], max_parallel=2),
    {"name": "approved", "kind": "wait", "signal": "approve"},
    {"name": "nap", "kind": "sleep", "for": 3600},
    gang("train", 2, placement={"resources": {"gpu": 1}}),
    step("end", *PARENTS),
]
PAIR: Row = {"placement": {"resources": {"gpu": 2}}}


class Work:
    """A run that has begun what it can, a gang that has room, and one that room is kept for."""

    def __init__(self, api: Api) -> None:
        self.flow = Flow(api, STEPS)
        self.claims = self.flow.items()
        finish(api, self.claims.pop("left"))
        finish(api, self.claims.pop(0))
        self.nodes = [api.node(gpus=gangs.gpus(2)) for _ in range(5)]
        self.queue = api.queue()
        self.busy = api.running(self.queue, self.nodes[0], **gangs.GPU)
        self.small = gangs.spawn(api, self.queue, 2, PAIR, hold="1 hour")
        gangs.reap(api)
        self.large = gangs.spawn(api, self.queue, 3, PAIR)
        gangs.reap(api)

    def states(self, api: Api) -> dict[str, str]:
        train = self.flow.steps()["train"]["gang_id"]
        ids = {"small": self.small, "large": self.large, "train": train}
        return {name: gangs.gang(api, gang_id)["state"] for name, gang_id in ids.items()}

    def goes_on(self, api: Api) -> None:
        """What was claimed is settled, the rest is claimed, and all ends."""
        finish(api, self.busy)
        for claim in self.claims.values():
            finish(api, claim)
        api.rows("signal_workflow_run", run=self.flow.run, name="approve", payload=None)
        api.rows("skip_step", run=self.flow.run, step="nap")
        for _ in range(8):
            gangs.reap(api)
            api.rows("advance_workflows")
            claims = [
                claim
                for node in self.nodes
                for queue in (self.queue, self.flow.queue)
                for claim in api.claim(node, queue, qty=10)
            ]
            for claim in [*claims, *self.flow.items().values()]:
                finish(api, claim)
        assert self.flow.states() == {each["name"]: "completed" for each in STEPS}
        assert self.flow.state == "completed"
        assert set(self.states(api).values()) == {"completed"}
        assert broken(api) == []


@pytest.fixture
def work(conn: psycopg.Connection) -> Work:
    return Work(Api(conn))


@pytest.fixture
def restored(dsn: str, empty_dsn: str, work: Work) -> Iterator[Api]:
    """The functions on a database that its dump was loaded into."""
    run_psql(empty_dsn, dump(dsn))
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield Api(conn)


def test_runs_and_gangs_of_a_restored_database_go_on(work: Work, restored: Api) -> None:
    before = work.states(restored)
    work.flow.calls = restored
    assert work.states(restored) == before
    assert before == {"small": "reserved", "large": "earmarked", "train": "reserved"}
    assert broken(restored) == []
    work.goes_on(restored)
