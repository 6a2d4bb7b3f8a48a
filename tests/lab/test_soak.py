"""The soak: the snapshot holds vacuum back, the pace is kept, and the figures are cut by time."""

import psycopg
import pytest

from benchmarks.core.holders import Holder, holding
from benchmarks.core.run import Run
from lab.peers.naive import Naive
from lab.soak import bystander
from lab.soak.pace import LOOKUP_SECONDS, PROBE_SECONDS, SPAWN_BATCH, Pace, keep_pace
from lab.soak.question import soak
from lab.soak.sizes import sizes
from tests.benchmarks.asking import ask

pytestmark = pytest.mark.embedded

TINY = ["--seconds", "1", "--rate", "40", "--connections", "2", "--backlog", "50"]
TINY += ["--lookup-rows", "100"]


@pytest.mark.parametrize(
    "more",
    [
        ["--after", "1"],
        pytest.param(["--after", "0", "--holder", "nobody"], marks=pytest.mark.slow),
        pytest.param(["--after", "0", "--counted-nodes", "3"], marks=pytest.mark.slow),
        ["--after", "0", "--stands", "--holder", "both", "--control", "1"],
        ["--after", "0", "--peer", "naive"],
    ],
)
def test_a_soak_is_answered(run: Run, more: list[str]) -> None:
    kept, by_minute, by_table = ask(soak, run, *TINY, *more)
    aims = [figure.aim is not None for figure in kept.figures]
    assert aims == [True, False, False, True, False, False] + 2 * [True] * ("--control" in more)
    assert len(by_minute.figures) == (4 if more == ["--after", "1"] else 2)
    assert all(figure.value.median > 0 for figure in by_minute.figures)
    assert any("job" in figure.case or "ready" in figure.case for figure in by_table.figures)


def test_the_pace_is_not_exceeded_and_nothing_is_left_behind(empty_dsn: str) -> None:
    queue = Naive()
    queue.install(empty_dsn)
    queue.fill(empty_dsn, 50)
    bystander.install(empty_dsn, 100)
    pace = Pace(per_second=40, connections=2, seconds=1)
    phase, samples = keep_pace(queue, empty_dsn, pace, 0.5, lambda: queue.waiting(empty_dsn))
    done = len(phase.claims.at)
    assert 0 < done <= 40
    assert 0 < len(phase.probes.at) <= 1 / PROBE_SECONDS
    assert 0 < len(phase.lookups.at) <= 1 / LOOKUP_SECONDS
    assert len(samples) == 2
    # What the probes claimed is back; each connection spawns in batches.
    spawned = queue.waiting(empty_dsn) - 50 + done
    assert spawned % SPAWN_BATCH == 0
    assert spawned >= done


@pytest.mark.parametrize("holder", [Holder.SNAPSHOT, Holder.WRITER, Holder.BOTH])
def test_who_holds_keeps_dead_rows(conn: psycopg.Connection, dsn: str, holder: Holder) -> None:
    conn.execute("drop table if exists t")
    conn.execute("create table t as select generate_series(1, 5000) n")
    with holding(dsn, holder):
        conn.execute("delete from t where n > 1")
        conn.execute("select pg_stat_force_next_flush()")
        conn.execute("vacuum t")
        held = sizes(dsn)["t"]
    conn.execute("vacuum t")
    released = sizes(dsn)["t"]
    assert held.dead == 4999
    assert released.dead == 0
    assert released.table_bytes < held.table_bytes
