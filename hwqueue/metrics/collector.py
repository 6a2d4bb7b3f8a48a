"""A Prometheus collector that asks the database at every scrape."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import psycopg
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from hwqueue import calls
from hwqueue.client import Client
from hwqueue.connections import WatchedConnection, with_timeouts
from hwqueue.errors import HwqueueError
from hwqueue.metrics.families import families
from hwqueue.text import first_line
from hwqueue.types import Sample

# Beyond what a statement may take: for the server to say that it has taken too long.
_GRACE_SECONDS = 2.0
_log = logging.getLogger("hwqueue.metrics")


class HwqueueCollector(Collector):
    """Reads all metrics in one call, over one connection that it keeps.

    Scrapes that come while one is under way wait for it, and all of them share the next one: there
    is never more than one query. When the database does not answer in time, the scrape has none of
    its figures, `hwqueue_up` is 0 and `hwqueue_scrape_errors_total` rises. Old figures would be
    taken for new ones; series that are missing are stale to Prometheus at once, and an alert on
    `hwqueue_up` says why.

    Args:
        conninfo: A DSN or URL as libpq takes it; empty: `PG*` variables.
        timeout: How long the database may take. Prometheus gives up after 10 s by default.
    """

    def __init__(self, conninfo: str = "", *, timeout: timedelta = timedelta(seconds=5)) -> None:
        self._conninfo = conninfo
        self._timeout = timeout
        self._turn = threading.Lock()
        self._connection: WatchedConnection | None = None
        self._began = 0.0
        self._families: list[Family] = []
        self._errors = 0

    def describe(self) -> list[Family]:
        """The families without samples, so that a registry need not scrape to learn their names."""
        return families([])

    def collect(self) -> Iterator[Family]:
        """All metrics, not older than the call."""
        asked = time.monotonic()
        with self._turn:
            # else a scrape that began after this call has just answered
            if self._began <= asked:
                self._scrape()
            answer = self._families
        return iter(answer)

    def close(self) -> None:
        """Close the connection, after a scrape under way; the next scrape opens another one."""
        with self._turn:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _scrape(self) -> None:
        self._began = time.monotonic()
        samples: list[Sample] = []
        try:
            samples = self._read()
        except (psycopg.Error, HwqueueError) as error:
            _log.warning("the database did not answer: %s", first_line(error))
            self._errors += 1
            self._disconnect()
        took = time.monotonic() - self._began
        self._families = families(
            [
                *samples,
                Sample(name="hwqueue_up", labels={}, value=float(bool(samples))),
                Sample(name="hwqueue_scrape_errors_total", labels={}, value=self._errors),
                Sample(name="hwqueue_scrape_duration_seconds", labels={}, value=took),
            ]
        )

    def _read(self) -> list[Sample]:
        if self._connection is not None:
            try:
                return self._ask(self._connection)
            except psycopg.OperationalError:
                if not self._connection.closed:
                    raise
                # the server was restarted since, or a pooler ended the connection: no failure
                self._disconnect()
        self._connection = self._connect()
        return self._ask(self._connection)

    def _ask(self, connection: WatchedConnection) -> list[Sample]:
        milliseconds = str(int(self._timeout.total_seconds() * 1000))
        with connection.transaction():
            # of the transaction, not of the session: a pooler hands sessions to others
            connection.execute(calls.LIMIT_TIME, {"milliseconds": milliseconds})
            return Client.on(connection).metrics()

    def _connect(self) -> WatchedConnection:
        """Connect so that a server that is gone without a word is noticed, too."""
        seconds = self._timeout.total_seconds()
        conninfo = with_timeouts(
            self._conninfo, seconds=int(seconds), fallback_application_name="hwqueue metrics"
        )
        connection = WatchedConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        connection.answer_within = seconds + _GRACE_SECONDS
        return connection


def registry_for(collector: HwqueueCollector) -> CollectorRegistry:
    """A registry with this collector alone: nothing about the Python process."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
