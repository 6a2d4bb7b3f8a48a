"""The ring of days: what is kept, what goes, and that prune waits for nobody."""

from datetime import datetime, timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, token

pytestmark = pytest.mark.thorough

DAY = timedelta(days=1)
SLOTS = 16


@pytest.fixture(autouse=True)
def _begins_at_noon(api: Api, clock: Clock) -> None:
    """Leave nothing of the test before; days are of UTC."""
    clock.advance(40 * DAY)
    now = clock.now()
    clock.advance(DAY - (now - now.replace(hour=12, minute=0, second=0, microsecond=0)))
    api.rows("set_event_retention", days=14)
    api.rows("prune")


class Days:
    """An event a day, about one queue."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self.api, self.clock = api, clock
        self.queue = api.queue()
        self.written: list[datetime] = [clock.now()]

    def go_on(self, days: int = 1) -> None:
        """Let days go by with an event each."""
        for _ in range(days):
            self.clock.advance(DAY)
            self.written.append(self.clock.now())
            odd = len(self.written) % 2
            self.api.rows("resume_queue" if odd else "pause_queue", queue=self.queue)

    def left(self) -> list[datetime]:
        """The times of the events that are there, oldest first."""
        rows = self.api.rows("list_events", filter={"queue": self.queue})
        return [row["at"] for row in rows][::-1]


@pytest.fixture
def days(api: Api, clock: Clock) -> Days:
    return Days(api, clock)


@pytest.mark.parametrize("kept", [1, 7, 14])
def test_so_many_whole_days_are_kept(days: Days, kept: int) -> None:
    """Two and a half times round the ring."""
    days.api.rows("set_event_retention", days=kept)
    for _ in range(40):
        days.go_on()
        days.api.rows("prune")
        assert days.left() == days.written[-(kept + 1) :]


def test_a_day_is_kept_to_its_end(days: Days, clock: Clock) -> None:
    days.api.rows("set_event_retention", days=1)
    days.go_on()
    clock.advance(timedelta(hours=11, minutes=59))  # a minute to midnight
    for expected in (days.written, days.written[-1:]):
        days.api.rows("prune")
        assert days.left() == expected
        clock.advance(timedelta(minutes=2))


def test_without_prune_nothing_is_lost(days: Days, conn: psycopg.Connection) -> None:
    """New events go where old ones still are, and keep these until they are old themselves."""
    days.go_on(SLOTS + 4)
    assert days.left() == days.written
    days.api.rows("prune")
    # one day was not written into again; those before it are where the last five are
    assert days.left() == days.written[:5] + days.written[6:]
    days.go_on(2)
    days.api.rows("set_event_retention", days=7)
    days.api.rows("prune")
    days.api.rows("set_event_retention", days=14)
    young = days.written[-8:]
    left = days.left()
    assert left[-8:] == young
    assert len(left) < len(days.written)
    for _ in range(SLOTS):
        days.go_on()
        days.api.rows("prune")
    assert days.left() == days.written[-15:]


def test_a_reader_in_the_way(days: Days, conn: psycopg.Connection, dsn: str) -> None:
    """The rest is pruned all the same, and the old events later; writers go on beside an open prune."""
    claim = days.api.running(days.api.queue(retain_completed=0))
    days.api.rows("complete_lease", **token(claim))
    days.go_on(15)
    conn.execute("set lock_timeout = '77s'")
    with psycopg.connect(dsn) as reader:
        Api(reader).rows("list_events")
        assert days.api.row("prune")["leases"] == 1
        assert days.left() == days.written
        assert conn.execute("show lock_timeout").fetchone() == ("77s",)
    with psycopg.connect(dsn) as pruner:
        Api(pruner).rows("prune")
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("set lock_timeout = '10s'")
            Api(writer).rows("set_queue_policy", queue=days.queue, policy={"max_attempts": 9})
    assert days.left() == [*days.written[-15:], days.written[-1]]


@pytest.mark.parametrize("role", ["hwqueue_worker", "hwqueue_operator"])
def test_who_may_prune_erases_nothing(days: Days, conn: psycopg.Connection, role: str) -> None:
    """How long events are kept of what they did is no choice of theirs."""
    days.go_on(10)
    conn.execute(f"set session authorization {role}".encode())
    days.api.rows("prune", limit=1000)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        days.api.rows("set_event_retention", days=1)
    conn.execute("reset session authorization")
    assert days.left() == days.written


def test_bad_retentions(api: Api) -> None:
    for kept in (0, 15, None):
        assert api.refused("QHA01", "set_event_retention", days=kept).field == "p_days"
