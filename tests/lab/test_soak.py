"""The soak: the snapshot holds vacuum back, the pace is kept, and the figures are cut by time."""

from array import array

import psycopg
import pytest
import typer

from benchmarks.core.holders import Holder, holding
from benchmarks.core.report import at_least
from benchmarks.core.run import Run
from benchmarks.core.spread import Spread
from lab.peers.naive import Naive
from lab.soak import bystander
from lab.soak.figures import Minute, furthest_behind, latency_kept, rate_kept, tables
from lab.soak.pace import LOOKUP_SECONDS, PROBE_SECONDS, SPAWN_BATCH, Claims, Pace, keep_pace
from lab.soak.question import soak
from lab.soak.sizes import Size, sizes
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


@pytest.mark.parametrize("asked", [["--counted-nodes", "3"], ["--stands"]])
def test_other_queues_have_neither(run: Run, asked: list[str]) -> None:
    with pytest.raises(typer.BadParameter, match="hwqueue only"):
        ask(soak, run, "--peer", "naive", *asked)


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


def test_a_connection_that_fails_ends_the_soak(empty_dsn: str) -> None:
    bystander.install(empty_dsn, 100)
    with pytest.raises(psycopg.errors.UndefinedTable):
        keep_pace(Naive(), empty_dsn, Pace(10, 1, 1), 1, lambda: None)


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


def test_minutes_are_cut_by_time() -> None:
    claims = Claims(array("d", [0.5, 1.5, 59.9, 60.1, 119.0]), array("d", [1, 3, 5, 7, 9]))
    first, second = (Minute.of(claims, number, 60) for number in (0, 1))
    assert list(first.parts) == [[1, 3], [], [], [], [], [5]]
    assert list(second.parts) == [[7], [], [], [], [], [9]]
    assert first.rates == [0.2, 0, 0, 0, 0, 0.1]
    figure = latency_kept("claim", 50, first, second)
    assert figure.base is not None
    assert figure.ratio is not None
    assert (figure.value.median, figure.base.median) == (8, 3)
    assert figure.ratio.median == pytest.approx(8 / 3)


def test_a_rate_is_kept_over_all_minutes_or_not_at_all() -> None:
    def minute(claims: int) -> Minute:
        return Minute((*[[1.0] * (claims // 2)] * 2, [], [], [], []), 60)

    kept = rate_kept([minute(600), minute(600)], 10, at_least(0.98))
    assert kept.ratio == Spread(1, 1, 1)
    # made up for in the last minute, but not all of it
    late = rate_kept([minute(600), minute(0), minute(900)], 10, at_least(0.98))
    assert late.ratio is not None
    assert late.ratio.median == pytest.approx(1500 / 1800)
    assert (late.ratio.least, late.ratio.most) == (0, 1.5)


def test_the_furthest_behind_of_all_claims() -> None:
    claims = Claims()
    for behind in (0.1, 7.5, 0.2):
        claims.add(1, 1, behind)
    assert furthest_behind(claims).value.median == 7.5


def test_only_tables_that_changed_are_told() -> None:
    before = {"a": Size(8192, 0, 0), "b": Size(8192, 0, 0)}
    after = {"a": Size(8192, 0, 0), "b": Size(2**20, 2**20, 7), "c": Size(2**20, 0, 0)}
    figures = tables(before, {"now": after})
    assert [figure.case for figure in figures] == ["b, now", "c, now"]
    assert (figures[0].value.median, figures[0].more["dead rows"].median) == (2, 7)
