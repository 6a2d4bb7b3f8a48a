"""`hwqueue top`: what its tables and its summary say, without a screen."""

from __future__ import annotations

from hwqueue.cli.top.frame import frame
from hwqueue.cli.top.summary import summary
from hwqueue.cli.top.tables import EVENTS, NODES, PENDING, QUEUES, RUNNING, Order, Table, arranged
from tests.unit.top_rows import event, minutes, node, reading, running


def keys(table: Table, order: Order, wanted: str = "", **facts: object) -> list[str]:  # type: ignore[type-arg]
    """Which rows are shown, in order."""
    return [table.key(row) for row, _cells in arranged(table, reading(**facts), order, wanted)]


def test_columns_take_turns_at_sorting() -> None:
    """Names rise, numbers fall; what is not known comes last both ways."""
    order = Order()
    assert keys(QUEUES, order) == ["mail", "renders", "reports"]
    order = order.next(6)
    assert keys(QUEUES, order.turned()) == ["reports", "renders", "mail"]
    order = order.next(6)
    assert keys(QUEUES, order) == ["renders", "mail", "reports"]
    order = order.next(6)
    assert keys(QUEUES, order) == ["renders", "mail", "reports"]
    assert keys(QUEUES, order.turned()) == ["mail", "renders", "reports"]
    for _ in range(4):
        order = order.next(6)
    assert order == Order()


def test_rows_are_found_and_sorted_and_move_no_cursor() -> None:
    assert keys(PENDING, Order(), "h100") == ["7"]
    assert keys(PENDING, Order(), "contended") == ["9"]
    assert keys(NODES, Order(), "silent") == [str(node(3).node_id)]
    assert keys(NODES, Order(), "nowhere") == []
    odd = reading(events=[event(1, "x", "one\ntwo\x1b[2J")])
    [(_row, cells)] = arranged(EVENTS, odd, Order(), "")
    assert cells[-1] == "one two\\x1b[2J"
    column = [column.title for column in RUNNING.columns].index("progress")
    rows = [running(1, "a", fraction=0.9), running(2, "b"), running(3, "c", fraction=0.1)]
    found = arranged(RUNNING, reading(running=rows), Order(column), "")
    assert [row.task_name for row, _ in found] == ["c", "a", "b"]


def test_the_summary_and_what_was_not_read() -> None:
    assert summary(reading()) == [
        "leases  1,208 pending, 4 running, 33 scheduled, oldest 12 min in renders, 1 of 3 queues paused",
        "stuck   412 that no node may run, 80 whose nodes are busy",
        "nodes   3 (2 live, 1 silent), CPU 7/24 (29 %), GPU 1.5/6 (25 %)",
        "ended   80 completed, 2 failed, 1 retried in the last minute  ▁▄█",
    ]
    lines = summary(reading(cut=frozenset({"pending", "nodes"})))
    assert lines[1] == "stuck   at least 412 that no node may run, at least 80 whose nodes are busy"
    assert lines[2].startswith("nodes   3+ (")


def test_a_frame_is_cut_at_its_width_and_rows_and_has_bars() -> None:
    text = frame(reading(), rows=2, width=60)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 60
    assert "Pending (the first 2)" in lines
    assert "  why        leases  oldest  match  free  queue    asks for" in lines
    assert "  no match      412  12 min      0     0  renders  gpu_model" in lines
    assert not any("zone in a" in line for line in lines)
    lines = frame(reading(), rows=5).splitlines()
    assert lines[lines.index("Running") + 1 :] == [
        "  lease     task    node    for    progress                              queue",
        "  00000001  draw    node-1  3 min  ████░░░░░░ 40 %, 40 of 100: frame 40  renders",
        "  00000002  mail    node-1  2 min  connects                              renders",
        "  00000003  resize  node-1  1 min  -                                     renders",
    ]


def test_nothing_is_said_with_what_to_do() -> None:
    empty = reading(queues=[], pending=[], nodes=[], events=[], running=[], minutes=minutes(0))
    assert summary(empty) == [
        "leases  0 pending, 0 running, 0 scheduled",
        "stuck   nothing",
        "nodes   none",
        "ended   nothing yet",
    ]
    hints = {
        "Queues": "no queues; make one: hwqueue queue create NAME",
        "Pending": "nothing waits",
        "Nodes": "no nodes; run a worker: hwqueue worker run --help",
        "Events": "no events",
        "Running": "nothing runs",
    }
    told = [line for title, hint in hints.items() for line in ("", title, f"  {hint}")]
    assert frame(empty, rows=5).splitlines()[5:] == told
