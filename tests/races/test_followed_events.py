"""A follower of events misses none, in whatever order transactions begin, write and commit."""

import pytest

from tests.races.interleave import Actor, Actors
from tests.sql.api import Api, outlive


class Follower:
    """Reads what follows the highest id that it has seen."""

    def __init__(self, actor: Actor) -> None:
        self.api = Api(actor.conn)
        newest = self.api.rows("list_events", filter={"final": True}, limit=1)
        self.after = newest[0]["event_id"] if newest else 0

    def read(self) -> list[str]:
        """The queues of the events that are new."""
        rows = self.api.rows("list_events", after=self.after)
        self.after = max([self.after, *(row["event_id"] for row in rows)])
        return [row["queue"] for row in rows]


def pause(actor: Actor, queue: str) -> None:
    """Write an event about the queue."""
    actor.conn.execute("select hwqueue.pause_queue(p_queue => %s)", [queue])


@pytest.fixture
def queues(actor: Actors) -> list[str]:
    """Queues to write events about."""
    api = Api(actor().conn)
    made = [api.queue() for _ in range(3)]
    outlive(api.conn)
    return made


def test_who_began_first_commits_last(actor: Actors, queues: list[str]) -> None:
    """The event that is committed first waits for the one that comes before it."""
    follower, one, two = Follower(actor()), actor().begin(has_id=True), actor()
    pause(two, queues[1])
    assert follower.read() == []
    assert Api(two.conn).rows("list_events")[0]["queue"] == queues[1]  # people see it at once
    pause(one, queues[0])
    assert follower.read() == []
    one.commit()
    outlive(two.conn)
    assert follower.read() == [queues[0], queues[1]]


def test_who_began_last_writes_first(actor: Actors, queues: list[str]) -> None:
    """The order of writing is another one than that of the transactions' ids."""
    follower = Follower(actor())
    one, two = (actor().begin(has_id=True) for _ in range(2))
    pause(two, queues[1])
    pause(one, queues[0])
    one.commit()
    first = follower.read()
    assert first in ([], [queues[0]])  # other tests may have older transactions open
    two.commit()
    outlive(one.conn)
    assert first + follower.read() == [queues[0], queues[1]]


def test_one_after_the_other(actor: Actors, queues: list[str]) -> None:
    """The younger one writes when the event of the elder has been shown."""
    follower = Follower(actor())
    one, two = (actor().begin(has_id=True) for _ in range(2))
    pause(one, queues[0])
    one.commit()
    first = follower.read()
    assert first in ([], [queues[0]])
    pause(two, queues[1])
    two.commit()
    outlive(one.conn)
    assert first + follower.read() == [queues[0], queues[1]]


def test_what_is_rolled_back_holds_up_nobody(actor: Actors, queues: list[str]) -> None:
    follower, one, two = Follower(actor()), actor().begin(has_id=True), actor()
    pause(one, queues[0])
    pause(two, queues[1])
    one.rollback()
    outlive(two.conn)
    assert follower.read() == [queues[1]]


def test_above_read_committed_it_is_the_same(actor: Actors, queues: list[str]) -> None:
    """A snapshot that is older than the events says nothing about who may come before them.

    Here it is the one that wrote first, and was given its id for that, who comes last.
    """
    one, two, follower = actor(), actor(), Follower(actor())
    one.begin("repeatable read")
    one.conn.execute("select count(*) from hwqueue.queue")  # takes its snapshot
    two.begin(has_id=True)
    pause(one, queues[0])
    pause(two, queues[1])
    one.commit()
    first = follower.read()
    two.commit()
    outlive(one.conn)
    assert first == []
    assert follower.read() == [queues[1], queues[0]]


def test_beginning_amid_others(actor: Actors, queues: list[str]) -> None:
    """A follower that begins while events are under way gets them all from there on."""
    one, two = actor().begin(has_id=True), actor()
    pause(two, queues[1])
    follower = Follower(actor())
    pause(one, queues[0])
    one.commit()
    outlive(two.conn)
    assert follower.read() == [queues[0], queues[1]]
