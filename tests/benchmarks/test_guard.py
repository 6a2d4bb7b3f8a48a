"""The guard fails when a call costs more than it may, and only then."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from typer.testing import CliRunner, Result

from benchmarks.__main__ import app
from benchmarks.core import flows, limits, metered
from benchmarks.core.cost import Cost, cost_of
from benchmarks.core.limits import Excess
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.questions import smoke

FOUND = {"claim": {"pages": 40, "wal bytes": 601.0, "rows: ready deleted": 1.0}}


def test_written_limits_leave_room_but_not_for_rows(tmp_path: Path) -> None:
    limits.write(tmp_path / "limits.toml", FOUND)
    assert limits.read(tmp_path / "limits.toml") == {
        "claim": {"pages": 44, "wal bytes": 662, "rows: ready deleted": 1}
    }


def test_what_has_no_limit_may_not_be() -> None:
    assert limits.exceeded(FOUND, FOUND) == []
    assert limits.exceeded({"claim": {"rows: node updated": 1}}, FOUND) == [
        Excess("claim", "rows: node updated", 0, 1)
    ]
    assert limits.exceeded({"other": {"pages": 1}}, FOUND) == [Excess("other", "pages", 0, 1)]


def test_limits_are_made_of_the_largest_attempt() -> None:
    attempts = [{"claim": {"pages": 3, "rows: a": 1}}, {"claim": {"pages": 4}, "other": {"pages": 1}}]
    assert limits.largest(attempts) == {
        "claim": {"pages": 4, "rows: a": 1}, "other": {"pages": 1}
    }  # fmt: skip


def test_the_committed_limits_are_of_these_scenes() -> None:
    scenes = {call.rsplit(": ", 1)[0] for call in limits.read(smoke.LIMITS)}
    assert scenes == set(smoke.SCENES)


@pytest.mark.embedded
def test_a_call_above_its_limit_fails(
    server_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "SCENES", {"few": Scene(500)})
    file = tmp_path / "limits.toml"
    with monkeypatch.context() as once:
        once.setattr(smoke, "ATTEMPTS", 1)
        assert guard(server_dsn, file, "--write").exit_code == 0
    written = limits.read(file)  # of few calls in a new database: the next run may be a bit above
    found = {call: {what: 1.3 * most for what, most in of.items()} for call, of in written.items()}
    limits.write(file, found)
    ended = guard(server_dsn, file)
    assert ended.exit_code == 0, ended.output
    lower = {"few: claim_task": {**found["few: claim_task"], "pages": 5}}
    limits.write(file, {**found, **lower})
    monkeypatch.setattr(smoke, "ATTEMPTS", 1)
    ended = guard(server_dsn, file)
    assert ended.exit_code == 1
    assert "above its limit: few: claim_task, pages" in ended.output
    assert ended.output.count("above its limit") == 1


@pytest.mark.embedded
def test_one_bad_attempt_is_no_excess(
    server_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = iter([90.0, 40.0, 90.0, 90.0, 90.0, 40.0])

    def measured(_run: object, _dsn: str, name: str, _scene: Scene) -> limits.Figures:
        return {f"{name}: claim_task": {"pages": next(attempts), "wal bytes": 0}}

    monkeypatch.setattr(smoke, "SCENES", {"few": Scene(500)})
    monkeypatch.setattr(smoke, "_measure", measured)
    file = tmp_path / "limits.toml"
    limits.write(file, {"few: claim_task": {"pages": 40}})
    assert guard(server_dsn, file).exit_code == 0
    assert guard(server_dsn, file).exit_code == 1  # as bad each time


def test_the_usual_cost_is_the_middle_one() -> None:
    few = [Cost(10, 100, 0, Counter({"t inserted": 1}))] * 7
    image = Cost(10, 9000, 1, Counter({"t inserted": 1}))
    odd = Cost(500, 900, 0, Counter({"t inserted": 1, "n updated": 1}))
    assert metered.typical([*few[:3], image, odd, *few[3:]]) == {
        "pages": 10,
        "wal bytes": 100,
        "rows: t inserted": 1,
        "rows: n updated": 0,
    }
    assert metered.middle([1, 1, 1, 1, 3, 3, 3, 3]) == 2
    with pytest.raises(RuntimeError, match="checkpoint"):
        metered.typical([image])


# What a settlement does to the tables of runs: releases a step, counts for a join, ends a run.
OF_RUNS = {
    "link": (flows.chain(2), {"lease inserted": 1, "ready inserted": 1, "step updated_hot": 2}),
    "join": (flows.join(30), {"step updated_hot": 1, "tally updated_hot": 2}),
    "last": (flows.chain(1), {"step updated_hot": 1, "tally updated_hot": 1, "run updated": 1}),
}


@pytest.mark.embedded
@pytest.mark.parametrize("where", OF_RUNS)
def test_settlements_of_steps_are_counted(run: Run, dsn: str, where: str) -> None:
    steps, rows = OF_RUNS[where]
    with closing(Scene(30, steps=steps).prepare(run, dsn)) as claimer:
        costs = metered.costs_of_calls(claimer, 3)
    for call in ("complete_lease", "settle_and_claim"):
        found = metered.typical(costs[call])
        assert {what: found[limits.ROWS + what] for what in rows} == rows
    assert metered.typical(costs["claim_task"])[f"{limits.ROWS}claim inserted"] == 1


@pytest.mark.embedded
def test_settlements_of_items_are_counted(run: Run, dsn: str) -> None:
    """In the middle of the list, where one counts for the tally and spawns nothing."""
    scene = Scene(200, steps=flows.items(800, 200), done=400)
    with closing(scene.prepare(run, dsn)) as claimer:
        ended = claimer.connection.execute("select count(*) from hwqueue.outcome").fetchone()
        costs = metered.costs_of_calls(claimer, 3)
    found = {call: metered.typical(costs[call]) for call in metered.CALLS}
    assert ended == (400,)
    assert found["complete_lease"]["rows: arrival inserted"] == 1
    assert found["settle_and_claim"]["rows: tally updated_hot"] == 1
    assert "rows: lease inserted" not in found["settle_and_claim"]


def test_costs_are_counted(conn: psycopg.Connection) -> None:
    conn.execute("create table public.counted (id int primary key, at int, note int)")
    conn.execute("create index on public.counted (at)")
    conn.execute("insert into public.counted select n, 0, 0 from generate_series(1, 10) n")

    def rows(call: LiteralString) -> dict[str, int]:
        cost = cost_of(conn, call, [])
        assert cost.pages > 0
        assert (cost.wal_bytes > 0) == bool(cost.rows)
        return dict(cost.rows)

    assert rows("select * from public.counted") == {}
    assert rows("insert into public.counted values (11, 0, 0), (12, 0, 0)") == {"counted inserted": 2}
    assert rows("update public.counted set note = 1 where id = 1") == {"counted updated_hot": 1}
    assert rows("update public.counted set at = 1 where id = 1") == {"counted updated": 1}
    assert rows("delete from public.counted where id > 10") == {"counted deleted": 2}
    assert rows("select 1 from public.counted where id < 4 for update") == {"counted locked": 3}
    assert rows("select * from public.counted") == {}


def guard(server_dsn: str, file: Path, *more: str) -> Result:
    """Run the guard with these limits."""
    options = ["--dsn", server_dsn, "smoke", "--limits", str(file), *more]
    return CliRunner().invoke(app, options, catch_exceptions=False)
