"""Jobs a second of one queue at a backlog; in several windows where the backlog is soon gone."""

from collections.abc import Sequence

from benchmarks.core.load import Load
from benchmarks.core.server import calm_down
from lab.peers.peer import Effort, Peer, top_up

_MOST_WINDOWS = 6


def measure(peer: Peer, dsn: str, backlog: int, effort: Effort) -> Load:
    """Fill up, let the server come to rest, work; again until it has worked for long enough."""
    loads: list[Load] = []
    while len(loads) < _MOST_WINDOWS and _seconds(loads) < 0.9 * effort.seconds:
        top_up(peer, dsn, backlog)
        calm_down(dsn)
        loads.append(peer.drive(dsn, effort))
    return _together(loads)


def usable_batch(batch: int, backlog: int, connections: int) -> int:
    """No larger than a quarter of what is there for each connection."""
    return max(1, min(batch, backlog // (4 * connections)))


def _together(loads: Sequence[Load]) -> Load:
    """One load for several windows; their latencies are the windows' means, weighed by time."""
    seconds = _seconds(loads)

    def mean(values: Sequence[float]) -> float:
        return sum(v * load.seconds for v, load in zip(values, loads, strict=True)) / seconds

    return Load(
        seconds=seconds,
        done=sum(load.done for load in loads),
        per_second=mean([load.per_second for load in loads]),
        p50_ms=mean([load.p50_ms for load in loads]),
        p99_ms=mean([load.p99_ms for load in loads]),
    )


def _seconds(loads: Sequence[Load]) -> float:
    return sum(load.seconds for load in loads)
