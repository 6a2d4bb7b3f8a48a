"""The other queues: that they are driven as they should be, and that the questions run."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.core.run import Run
from lab.peers import throughput
from lab.peers.absurd import Absurd
from lab.peers.hwqueue import Hwqueue
from lab.peers.naive import Naive
from lab.peers.peer import Effort, NotAtHand, Peer, SqlPeer, top_up
from lab.peers.pgmq import Pgmq
from lab.peers.pgqueuer import PgQueuer
from lab.peers.procrastinate import Procrastinate
from lab.peers.question import peers
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


def test_a_queue_is_driven_until_it_is_dry(queue: SqlPeer, queue_dsn: str) -> None:
    top_up(queue, queue_dsn, 200)
    top_up(queue, queue_dsn, 300)
    effort = Effort(min(5, queue.best_batch), connections=2, seconds=60)
    load = queue.drive(queue_dsn, effort)
    # 2 connections warm up with 10 one by one and a batch each.
    assert load.done == 300 - 2 * (10 + effort.batch)
    assert queue.waiting(queue_dsn) == 0


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
