"""Events and completions that commit late: followers and webhooks miss none."""

import json
from collections.abc import Iterator

import pytest

from tests.races.interleave import TIMEOUT, Actor, Actors
from tests.sql.api import Api, outlive, token

CODES = {"codes": ["queue_paused", "lease_completed"]}


@pytest.fixture
def api(actor: Actors) -> Iterator[Api]:
    """A session, and a webhook `hook`."""
    api = Api(actor().conn)
    api.rows("set_webhook", name="hook", url="https://hooks.example/", options=CODES)
    yield api
    api.rows("drop_webhook", name="hook")


def sent(api: Api) -> list[str]:
    """The queues that are told of now."""
    rows = api.rows("claim_deliveries", limit=1000)
    return [json.loads(row["body"])["data"]["queue"] for row in rows]


def test_an_event_with_a_lower_id_commits_later(actor: Actors, api: Api) -> None:
    first, second = api.queue(), api.queue()
    late, other = actor().begin(has_id=True), actor()
    Api(late.conn).rows("pause_queue", queue=first)  # draws the lower id
    Api(other.conn).rows("pause_queue", queue=second)
    assert sent(api) == []
    late.commit()
    outlive(api.conn)
    assert sorted(sent(api)) == sorted([first, second])
    assert sent(api) == []


def test_the_late_one_has_written_nothing_yet(actor: Actors, api: Api) -> None:
    """The routing must not pass the id that its event will have."""
    first, second = api.queue(), api.queue()
    late, other = actor().begin(has_id=True), actor()
    Api(other.conn).rows("pause_queue", queue=second)
    assert sent(api) == []
    Api(late.conn).rows("pause_queue", queue=first)
    late.commit()
    outlive(api.conn)
    assert sorted(sent(api)) == sorted([first, second])


def test_an_event_from_before_another_server_was_noticed(actor: Actors, api: Api) -> None:
    """Its id follows the former base; the cursor must not go on to the raised one before."""
    first, second = api.queue(), api.queue()
    api.rows("reap")
    api.conn.execute("update hwqueue.installation set timeline = timeline - 1, server_started_at = null")
    late = actor().begin()
    Api(late.conn).rows("pause_queue", queue=first)
    api.rows("pause_queue", queue=second)
    api.rows("reap")  # notices another server, and raises the base
    told = sent(api)
    late.commit()
    outlive(api.conn)
    assert sorted(told + sent(api)) == sorted([first, second])


def test_what_is_rolled_back_is_not_told(actor: Actors, api: Api) -> None:
    late = actor().begin(has_id=True)
    Api(late.conn).rows("pause_queue", queue=api.queue())
    late.rollback()
    outlive(api.conn)
    assert sent(api) == []


def test_a_completion_that_commits_late(actor: Actors, api: Api) -> None:
    queue, node = api.queue(), api.node()
    open_claim, claim = api.running(queue, node), api.running(queue, node)
    late = actor().begin()
    Api(late.conn).rows("complete_lease", **token(open_claim))
    api.complete(claim)
    api.rows("reap")
    assert sent(api) == []  # what ended later is not told either
    late.commit()
    outlive(api.conn)
    for _ in range(2):  # the first one notes a moment, the second one may count up to it
        api.rows("reap")
        outlive(api.conn)
    assert sent(api) == [queue, queue]
    api.rows("reap")
    assert sent(api) == []


def test_two_that_send_get_different_deliveries(actor: Actors, api: Api) -> None:
    queue = api.queue()
    api.rows("pause_queue", queue=queue)
    outlive(api.conn)
    one, two = actor().begin(), actor()
    assert sent(Api(one.conn)) == [queue]
    two.begin()
    assert sent(Api(two.conn)) == []  # waits for nobody, routes nothing twice
    two.commit()
    one.rollback()
    outlive(api.conn)
    assert sent(api) == [queue]  # what was claimed in vain
    assert sent(api) == []


def test_sent_again_by_a_call_that_waited_for_the_webhook(actor: Actors, api: Api) -> None:
    """It reads the clock when it has the webhook: senders do not begin behind what it writes."""
    queue = api.queue()
    api.rows("pause_queue", queue=queue)
    outlive(api.conn)
    [row] = api.rows("claim_deliveries", limit=10)
    delivery, attempt = row["delivery_id"], row["attempt"]
    api.rows("settle_delivery", delivery=delivery, attempt=attempt, result={"status": 200})
    holder, late = actor().begin(), actor()
    Api(holder.conn).rows("set_webhook", name="hook", url="https://other.example/", options=CODES)
    late.begin()
    again = late.parked(lambda d: Api(d.conn).value("redeliver", name="hook", delivery=delivery))
    for _ in range(2):
        api.rows("reap")
    holder.commit()
    assert again.result(TIMEOUT) == 1
    api.rows("reap")
    late.commit()
    assert sent(api) == [queue]


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
