"""list_queues: what waits and runs where."""

from tests.sql.api import Api


def test_counts(api: Api) -> None:
    queue = api.queue()
    api.running(queue)
    api.spawn(queue)
    api.spawn(queue)
    api.spawn(queue, delay=60)
    empty = api.queue()
    api.rows("pause_queue", queue=empty)
    rows = {row["queue"]: row for row in api.rows("list_queues")}
    columns = ("paused", "pending", "scheduled", "claimed")
    assert [rows[queue][column] for column in columns] == [False, 2, 1, 1]
    assert [rows[empty][column] for column in columns] == [True, 0, 0, 0]
    assert list(rows) == sorted(rows)
