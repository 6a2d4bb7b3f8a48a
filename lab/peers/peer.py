"""What these benchmarks ask of a queue, hwqueue's own included, and how they drive it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from benchmarks.core.load import Load, drive

ANY = "any"
"""The kind of work that every worker may run."""
WANTED = "wanted"
UNWANTED = "unwanted"
KINDS = (ANY, WANTED, UNWANTED)

_FILL_CHUNK = 5_000
# Enough for a session to have made its plans and to have settled on the generic ones.
WARMUP_JOBS = 10


@dataclass(frozen=True)
class Effort:
    """How a queue is worked off.

    Attributes:
        batch: Jobs in a call.
        connections: At once.
        seconds: How long, if there are jobs for so long.
    """

    batch: int
    connections: int
    seconds: float


class NotAtHand(Exception):
    """A peer that cannot run here; the message says what is missing."""


class Jobs(Protocol):
    """A connection to a queue; every call is a commit of its own.

    Attributes:
        connection: In autocommit.
    """

    connection: psycopg.Connection

    def spawn(self, count: int) -> None:
        """Add so many jobs in one call."""

    def claim(self, quantity: int) -> list[Any]:
        """Take up to so many jobs; what `complete` needs of each."""

    def complete(self, claimed: list[Any]) -> None:
        """Report what was claimed as done, in one call if the queue can."""

    def close(self) -> None:
        """Close the connection."""


class Connection:
    """What all `Jobs` share."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Peer(Protocol):
    """A queue in its best documented configuration.

    Attributes:
        best_batch: Jobs in a call at which it is fastest; 1 if it has no batches.
        routes_by: What tells its workers which jobs they may run.
        cannot: What it cannot do of what is measured here, in words.
    """

    @property
    def name(self) -> str:
        """As the command line and the figures call it."""

    @property
    def best_batch(self) -> int: ...
    @property
    def routes_by(self) -> str: ...
    @property
    def cannot(self) -> tuple[str, ...]: ...

    def version(self) -> str:
        """Which version would run.

        Raises: NotAtHand when none can.
        """

    def install(self, dsn: str) -> None:
        """Set up an empty database."""

    def fill(self, dsn: str, count: int, kind: str = ANY) -> None:
        """Add so many jobs."""

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """How many jobs of a kind are ready."""

    def drive(self, dsn: str, effort: Effort, kind: str = ANY) -> Load:
        """Claim and complete jobs with handlers that do nothing; a step is one batch."""


class SqlPeer(ABC):
    """A peer that is driven by the SQL that its workers send. Picklable."""

    name: str
    best_batch: int
    routes_by: str
    cannot: tuple[str, ...] = ()

    @abstractmethod
    def version(self) -> str:
        """See `Peer`."""

    @abstractmethod
    def install(self, dsn: str) -> None:
        """See `Peer`."""

    @abstractmethod
    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """See `Peer`."""

    @abstractmethod
    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> Jobs:
        """Open connection 0, 1, ...; it spawns and claims jobs of a kind."""

    def fill(self, dsn: str, count: int, kind: str = ANY) -> None:
        """See `Peer`."""
        jobs = self.connect(dsn, kind=kind)
        for start in range(0, count, _FILL_CHUNK):
            jobs.spawn(min(_FILL_CHUNK, count - start))
        jobs.close()

    def drive(self, dsn: str, effort: Effort, kind: str = ANY) -> Load:
        """See `Peer`."""
        opener = ClaimAndComplete(self, dsn, effort.batch, kind)
        return drive(opener, effort.connections, effort.seconds, warmup=0)


@dataclass(frozen=True)
class ClaimAndComplete:
    """Opens sessions that claim a batch, then complete it: two calls, two commits."""

    peer: SqlPeer
    dsn: str
    batch: int
    kind: str = ANY

    def __call__(self, number: int) -> "ClaimAndCompleteSession":
        jobs = self.peer.connect(self.dsn, number, self.kind)
        # one by one and as they will come: a queue may have a statement for each
        for quantity in (*[1] * WARMUP_JOBS, self.batch):
            jobs.complete(jobs.claim(quantity))
        return ClaimAndCompleteSession(jobs, self.batch)


class ClaimAndCompleteSession:
    """One connection that works off jobs."""

    def __init__(self, jobs: Jobs, batch: int) -> None:
        self._jobs = jobs
        self._batch = batch

    def step(self) -> int:
        """Claim and complete one batch."""
        claimed = self._jobs.claim(self._batch)
        if claimed:
            self._jobs.complete(claimed)
        return len(claimed)

    def close(self) -> None:
        """Close the connection."""
        self._jobs.close()


def top_up(peer: Peer, dsn: str, ready: int, kind: str = ANY) -> None:
    """Add jobs until so many are ready."""
    missing = ready - peer.waiting(dsn, kind)
    if missing > 0:
        peer.fill(dsn, missing, kind)


def count(dsn: str, query: str, *values: Any) -> int:
    """The number that a query gives."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return int(row[0])


def run_script(dsn: str, script: str) -> None:
    """Run SQL of several statements in one transaction."""
    with psycopg.connect(dsn) as connection:
        connection.execute(script.encode())
