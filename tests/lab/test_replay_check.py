"""The independent check finds every kind of wrong grant, and nothing in a right one."""

from dataclasses import replace
from typing import Any

import pytest

from hwqueue.demo.check import (
    JobFacts,
    Move,
    NodeFacts,
    Recorded,
    gpu_milli_in_use,
    violations,
)

NODES = {"n1": NodeFacts(8000, 4096, 2, {"gpu_model": "T4", "zone": "a"})}
JOBS = {
    "share": JobFacts(1000, 512, 1, 600, frozenset({"T4"})),
    "whole": JobFacts(1000, 512, 2, 1000, frozenset()),
    "other": JobFacts(1000, 512, 1, 600, frozenset({"G2"})),
    "zoned": JobFacts(1000, 512, 1, 100, frozenset(), {"zone": "b"}),
    "big": JobFacts(9000, 512, 0, 0, frozenset()),
    "fat": JobFacts(0, 9000, 0, 0, frozenset()),
}


def _move(lease: str, job: str, *devices: int, starts: bool = True, **changes: Any) -> Move:
    facts = JOBS[job]
    assignment = {
        "cpu_milli": facts.cpu_milli,
        "memory_mib": facts.memory_mib,
        "gpus": [{"index": device} for device in devices],
        "gpu_milli": facts.gpu_milli,
    }
    return Move("n1", lease, job, starts, assignment | changes)


def _check(*moves: Move, gpu_milli: list[int] | None = None) -> list[str]:
    running: dict[str, str] = {}
    for move in moves:
        if move.starts:
            running[move.lease] = move.node
        else:
            running.pop(move.lease, None)
    return violations(NODES, JOBS, moves, Recorded(running, {"n1": gpu_milli or [0, 0]}))


def test_right_grants_pass() -> None:
    assert not _check(_move("a", "share", 0), _move("b", "share", 1), gpu_milli=[600, 600])


def test_a_device_is_free_again_after_the_end() -> None:
    ended = _move("a", "share", 0, starts=False)
    assert not _check(_move("a", "share", 0), ended, _move("b", "share", 0), gpu_milli=[600, 0])


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([_move("a", "share", 0), _move("b", "share", 0)], "GPU 0 is given away to 1200 of 1000"),
        ([_move("a", "share", 1), _move("b", "whole", 0, 1)], "GPU 1 is given away to 1600"),
        ([_move("a", "other", 0)], "runs on model T4, but only G2 may do"),
        ([_move("a", "zoned", 0)], "needs zone=b, but the node has a"),
        ([_move("a", "big")], "CPU is given away to 9000 of 8000"),
        ([_move("a", "fat")], "memory is given away to 9000 of 4096"),
        ([_move("a", "whole", 0)], "got 1 GPUs instead of 2"),
        ([_move("a", "whole", 0, 0)], "devices [0, 0] are not 2"),
        ([_move("a", "share", 2)], "devices [2] are not 1 of the node's 2"),
        ([_move("a", "share", 0, gpu_milli=500)], "got 500 of a GPU instead of 600"),
        ([_move("a", "share", 0, cpu_milli=0)], "got cpu_milli 0 instead of 1000"),
        ([_move("a", "share", 0), _move("a", "share", 1)], "still runs on n1"),
        ([_move("a", "share", 0, starts=False)], "ended without running"),
        ([replace(_move("a", "share", 0), assignment=None)], "got 0 GPUs instead of 1"),
    ],
)
def test_wrong_grants_are_found(moves: list[Move], message: str) -> None:
    assert any(message in text for text in _check(*moves))


def test_the_database_must_agree() -> None:
    moves = [_move("a", "share", 0)]
    silent = Recorded({}, {"n1": [0, 0]})
    found = violations(NODES, JOBS, moves, silent)
    assert "lease a: runs on n1, but the database says None" in found
    assert "n1: GPUs are used [600, 0], but the database says [0, 0]" in found


def test_gpus_still_held() -> None:
    moves = [
        _move("a", "share", 0),
        _move("b", "whole", 0, 1),
        _move("a", "share", 0, starts=False),
    ]
    assert gpu_milli_in_use(JOBS, moves) == 2000
