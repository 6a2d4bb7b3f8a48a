"""The other queues: that they are driven as they should be, and that the questions run."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import platformdirs
import psycopg
import pytest
import typer

from benchmarks.core.load import Load
from benchmarks.core.run import Run
from lab.peers import throughput
from lab.peers.absurd import Absurd
from lab.peers.hwqueue import Hwqueue
from lab.peers.maps import maps
from lab.peers.naive import Naive
from lab.peers.node_peers import GraphileWorker, PgBoss
from lab.peers.packages import installed_version
from lab.peers.peer import UNWANTED, WANTED, Effort, NotAtHand, Peer, SqlPeer, top_up
from lab.peers.pgflow import Pgflow, Tasks
from lab.peers.pgmq import Pgmq
from lab.peers.pgqueuer import PgQueuer
from lab.peers.procrastinate import Procrastinate
from lab.peers.question import peers
from lab.peers.registry import at_hand, sql_peer
from lab.peers.routing import routing
from lab.peers.workers import workers
from tests.benchmarks.asking import ask

pytestmark = pytest.mark.embedded


def file_of(peer: str) -> Path | None:
    """The SQL of a peer that is a file, where the environment names one."""
    named = os.environ.get(f"HWQUEUE_TEST_{peer.upper()}_SQL")
    return None if named is None else Path(named)


QUEUES: list[SqlPeer] = [
    Hwqueue(),
    Hwqueue("hwqueue-counted", cpu_milli=1000, nodes=3, connections=2),
    Hwqueue("hwqueue-delete", deletes=True),
    Naive(),
    Procrastinate(),
    Procrastinate("procrastinate-delete", delete_jobs=True),
    PgQueuer(),
    Pgmq(file_of("pgmq")),
    Absurd(file_of("absurd")),
]


@pytest.fixture(params=QUEUES, ids=lambda queue: queue.name)
def queue(request: pytest.FixtureRequest) -> SqlPeer:
    found: SqlPeer = request.param
    skip_unless_at_hand(found)
    return found


@pytest.fixture
def queue_dsn(queue: SqlPeer, empty_dsn: str) -> str:
    queue.install(empty_dsn)
    return empty_dsn


def skip_unless_at_hand(peer: Peer) -> None:
    try:
        peer.version()
    except NotAtHand as error:
        pytest.skip(str(error))


def test_jobs_are_claimed_once(queue: SqlPeer, queue_dsn: str) -> None:
    queue.fill(queue_dsn, 8)
    assert queue.waiting(queue_dsn) == 8
    with closing(queue.connect(queue_dsn, 0)) as one, closing(queue.connect(queue_dsn, 1)) as other:
        claimed = one.claim(3)
        assert len(claimed) == min(3, queue.best_batch)
        also = other.claim(1)
        assert len(also) == 1
        assert also[0] not in claimed
        one.complete(claimed)
        other.complete(also)
        left = 8 - len(claimed) - len(also)
        assert queue.waiting(queue_dsn) == left
        for _ in range(left):
            one.complete(one.claim(1))
        assert one.claim(1) == []


def test_jobs_of_another_kind_are_not_claimed(queue: SqlPeer, queue_dsn: str) -> None:
    queue.fill(queue_dsn, 2, UNWANTED)
    with closing(queue.connect(queue_dsn, kind=WANTED)) as jobs:
        assert jobs.claim(2) == []
        jobs.spawn(1)
        assert len(jobs.claim(1)) == 1


def test_a_queue_is_driven_until_it_is_dry(queue: SqlPeer, queue_dsn: str) -> None:
    top_up(queue, queue_dsn, 200)
    top_up(queue, queue_dsn, 300)
    effort = Effort(min(5, queue.best_batch), connections=2, seconds=60)
    load = queue.drive(queue_dsn, effort)
    # 2 connections warm up with 10 one by one and a batch each.
    assert load.done == 300 - 2 * (10 + effort.batch)
    assert queue.waiting(queue_dsn) == 0


class Scripted:
    """A queue that works for a second at a time."""

    def __init__(self) -> None:
        self.drives = 0

    def waiting(self, _dsn: str, _kind: str) -> int:
        return 100

    def drive(self, _dsn: str, _effort: Effort) -> Load:
        self.drives += 1
        return Load(seconds=1, done=10, per_second=10 * self.drives, p50_ms=1, p99_ms=2)


@pytest.mark.parametrize(("seconds", "windows", "rate"), [(3, 3, 20), (100, 6, 35), (0.5, 1, 10)])
def test_short_backlogs_take_several_windows(
    monkeypatch: pytest.MonkeyPatch, seconds: float, windows: int, rate: float
) -> None:
    monkeypatch.setattr(throughput, "calm_down", lambda _dsn: None)
    queue = Scripted()
    load = throughput.measure(queue, "", 100, Effort(1, 1, seconds))  # type: ignore[arg-type]
    assert (load.done, load.seconds, load.per_second) == (10 * windows, windows, rate)


def test_batches_leave_work_for_everybody() -> None:
    assert throughput.usable_batch(1000, 10_000, 4) == 625
    assert throughput.usable_batch(1000, 1_000_000, 4) == 1000
    assert throughput.usable_batch(10, 10, 4) == 1


def test_what_is_not_at_hand_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotAtHand, match=r"pip install --group peers"):
        installed_version("no-such-package")
    found = at_hand(["naive", "pgmq", "absurd"], [f"absurd={tmp_path / 'no.sql'}"])
    assert [peer.name for peer in found.peers] == ["naive"]
    assert any("pgmq is not at hand: name its SQL" in note for note in found.notes)
    assert any("absurd is not at hand: there is no file" in note for note in found.notes)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: at_hand(["nobody"], []),
        lambda: at_hand(["pgmq"], []),
        lambda: at_hand([], ["pgmq"]),
        lambda: at_hand([], ["naive=x.sql"]),
        lambda: sql_peer("pg-boss", []),
        lambda: sql_peer("pgmq", []),
    ],
)
def test_wrong_peers_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(typer.BadParameter):
        wrong()


def test_node_peers_need_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _name: tmp_path)
    with pytest.raises(NotAtHand, match="npm is not on the PATH"):
        GraphileWorker().version()


@pytest.mark.slow
@pytest.mark.parametrize("peer", [GraphileWorker(), PgBoss()], ids=lambda peer: peer.name)
@pytest.mark.parametrize("batch", [1, 20])
def test_node_peers(peer: Peer, batch: int, empty_dsn: str) -> None:
    skip_unless_at_hand(peer)
    peer.install(empty_dsn)
    peer.fill(empty_dsn, 50, UNWANTED)
    top_up(peer, empty_dsn, 400)
    load = peer.drive(empty_dsn, Effort(batch, connections=2, seconds=60))
    assert 300 <= load.done <= 360  # some warm up
    assert peer.waiting(empty_dsn) == 0
    assert peer.waiting(empty_dsn, UNWANTED) == 50


def test_throughput_is_compared(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_MOST_WINDOWS", 1)
    options = ["--backlogs", "200", "--batches", "5", "--seconds", "0.01", "--connections", "1"]
    [answer] = ask(peers, run, *options, "--peer", "naive")
    assert [figure.case for figure in answer.figures] == [
        "200 waiting, batch 5: hwqueue / naive",
        "200 waiting, batch 5: hwqueue, settle_and_claim / naive",
        "200 waiting, each one's best batch: hwqueue / naive",
    ]
    assert [figure.aim is None for figure in answer.figures].count(False) == 2


def test_routing_is_compared(run: Run) -> None:
    options = ["--backlog", "50", "--wanted", "100", "--claims", "3", "--seconds", "0.02"]
    [answer] = ask(routing, run, *options, "--peer", "naive")
    assert [figure.unit for figure in answer.figures] == ["claim p50 ms"]


@pytest.mark.slow
def test_workers_are_compared(run: Run) -> None:
    [answer] = ask(workers, run, "--backlog", "2000", "--seconds", "0.02", "--concurrency", "5")
    at_hand_here = [note for note in answer.notes if "is not at hand" not in note]
    assert len(answer.figures) == len(at_hand_here)


STATES = "select step_slug, status from pgflow.step_states where run_id = %s"
STATUS = "select status, count(*) from pgflow.step_tasks group by status"
RUN = "select status from pgflow.runs where run_id = %s"


PEER = Pgflow(file_of("pgflow"), file_of("pgmq"))


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
        assert dict(connection.execute(STATES, [run]).fetchall()) == {"each": "completed", "last": "started"}
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
