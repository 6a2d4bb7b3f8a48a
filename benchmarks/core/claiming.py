"""Claims in a process of their own, for as long as something else is measured."""

import multiprocessing
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle
from multiprocessing.synchronize import Event

from benchmarks.core.claimer import Claimer
from benchmarks.core.load import RanDryError
from benchmarks.core.node import Node
from benchmarks.core.spread import percentile

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["psycopg", "benchmarks.core.claiming"])
_WARM = 100  # claims before the clock starts: plans are made in them
# Set in the process by `_inherit`: they can only be inherited, not sent.
_begun: Event | None = None
_over: Event | None = None


@dataclass
class Claimed:
    """What one node claimed and settled, one by one; known when the claims are over.

    Attributes:
        milliseconds: Of each claim, commit included.
        seconds: How long claims and settlements took together.
    """

    milliseconds: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: float = 0.0

    @classmethod
    def together(cls, parts: Sequence["Claimed"]) -> "Claimed":
        """What was claimed in several stretches."""
        milliseconds = array("d", chain.from_iterable(part.milliseconds for part in parts))
        return cls(milliseconds, sum(part.seconds for part in parts))

    @property
    def p50(self) -> float:
        """Milliseconds of a claim."""
        return percentile(self.milliseconds, 50)

    @property
    def p99(self) -> float:
        """Milliseconds of a claim."""
        return percentile(self.milliseconds, 99)

    @property
    def per_second(self) -> float:
        """Leases claimed and settled."""
        return len(self.milliseconds) / self.seconds


@contextmanager
def claiming(dsn: str, *nodes: Node) -> Iterator[Claimed]:
    """Let a session claim and settle without pause while the block runs, for the nodes in turn.

    Raises: RanDryError at the end, when the leases did not last.
    """
    claimed = Claimed()
    begun, over = _CONTEXT.Event(), _CONTEXT.Event()
    with ProcessPoolExecutor(1, mp_context=_CONTEXT, initializer=_inherit, initargs=(begun, over)) as pool:
        claims = pool.submit(_claim, dsn, nodes)
        _wait(begun, claims)
        try:
            yield claimed
        finally:
            over.set()
        done = claims.result()
        claimed.milliseconds, claimed.seconds = done.milliseconds, done.seconds


def _wait(begun: Event, claims: "Future[Claimed]") -> None:
    """Wait for the first claims, or raise what ended them."""
    while not begun.wait(0.1):
        if claims.done():
            claims.result()


def _inherit(begun: Event, over: Event) -> None:
    global _begun, _over
    _begun, _over = begun, over


def _claim(dsn: str, nodes: Sequence[Node]) -> Claimed:
    assert _begun is not None
    assert _over is not None
    claimed, turns = Claimed(), cycle(nodes)
    with closing(Claimer(dsn, nodes[0])) as claimer:
        for _ in range(max(_WARM, len(nodes))):
            claimer.node = next(turns)
            # a node's first claims may find nothing: each judges some thousands of the classes
            with suppress(RanDryError):
                claimer.timed_claim()
        _begun.set()
        started = time.perf_counter()
        while not _over.is_set():
            claimer.node = next(turns)
            claimed.milliseconds.append(claimer.timed_claim())
        claimed.seconds = time.perf_counter() - started
    return claimed
