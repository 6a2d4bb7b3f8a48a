"""pgflow beside hwqueue: that its tasks are worked off as its worker does, each once."""

import os
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import typer

from benchmarks.core.run import Run
from lab.peers.maps import maps
from lab.peers.peer import NotAtHand
from lab.peers.pgflow import Pgflow, Tasks
from tests.benchmarks.asking import ask

pytestmark = pytest.mark.embedded

STATES = "select step_slug, status from pgflow.step_states where run_id = %s"
STATUS = "select status, count(*) from pgflow.step_tasks group by status"
RUN = "select status from pgflow.runs where run_id = %s"


def named(variable: str) -> Path | None:
    """What the environment names."""
    value = os.environ.get(variable)
    return None if value is None else Path(value)


PEER = Pgflow(named("HWQUEUE_TEST_PGFLOW_SQL"), named("HWQUEUE_TEST_PGMQ_SQL"))


@pytest.fixture
def peer(empty_dsn: str) -> Pgflow:
    try:
        PEER.version()
    except NotAtHand as error:
        pytest.skip(str(error))
    PEER.install(empty_dsn)
    return PEER


def test_each_task_of_a_map_is_completed_once(peer: Pgflow, empty_dsn: str) -> None:
    """Then comes the step after it, and the run ends."""
    run = peer.submit(empty_dsn, 5)
    assert peer.waiting(empty_dsn) == 5
    opener = Tasks(empty_dsn, 2)
    with (
        closing(opener(0)) as one,
        closing(opener(1)) as other,
        psycopg.connect(empty_dsn, autocommit=True) as connection,
    ):
        assert [one.step(), other.step(), one.step()] == [2, 2, 1]
        assert dict(connection.execute(STATES, [run]).fetchall()) == {
            "each": "completed",
            "last": "started",
        }
        assert other.step() == 1
        assert connection.execute(STATUS).fetchall() == [("completed", 6)]
        assert connection.execute(RUN, [run]).fetchall() == [("completed",)]
        assert one.step() == 0


@pytest.mark.usefixtures("peer")
def test_the_question_is_answered(run: Run) -> None:
    files = ["--pgflow", str(PEER.migrations), "--pgmq", str(PEER.pgmq)]
    small = ["--items", "400", "--connections", "1", "--seconds", "0.1", "--rounds", "3"]
    [answer] = ask(maps, run, *files, *small)
    assert [figure.unit for figure in answer.figures] == ["leases/s", "leases/s", "items done"] * 2
    assert all(figure.value.least > 0 for figure in answer.figures)


def test_what_is_missing_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="@pgflow/core"):
        ask(maps, run)
    (tmp_path / "1.sql").touch()
    with pytest.raises(typer.BadParameter, match="pgmq=FILE"):
        ask(maps, run, "--pgflow", str(tmp_path))
