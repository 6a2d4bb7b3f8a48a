"""Connections that are given up: no other one is hit."""

import asyncio
import threading

import psycopg
import pytest

from hwqueue.connections import WatchedAsyncConnection, WatchedConnection

SLOW = "select pg_sleep(%s)"


def test_who_waits_too_long_is_told(dsn: str) -> None:
    with WatchedConnection.connect(dsn, autocommit=True) as connection:
        connection.answer_within = 30.0
        connection.execute(SLOW, [0])
        connection.answer_within = 0.1
        with pytest.raises(psycopg.OperationalError):
            connection.execute(SLOW, [60])
        assert connection.closed


async def test_so_is_who_waits_in_an_event_loop(dsn: str) -> None:
    async with await WatchedAsyncConnection.connect(dsn, autocommit=True) as connection:
        connection.answer_within = 30.0
        await connection.execute(SLOW, [0])
        connection.answer_within = 0.1
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(SLOW, [60])
        assert connection.closed


def test_nobody_hangs_up_once_the_answer_is_there(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor may be another connection's by then."""
    told: list[str] = []

    def hang_up(_: object) -> None:
        told.append("begins")
        threading.Event().wait(0.5)
        told.append("ends")

    monkeypatch.setattr("hwqueue.connections._hang_up", hang_up)
    with WatchedConnection.connect(dsn, autocommit=True) as connection:
        connection.answer_within = 0.05
        connection.execute(SLOW, [0.2])
        assert told == ["begins", "ends"]
        connection.answer_within = None


async def test_nor_in_an_event_loop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hung_up: list[object] = []
    monkeypatch.setattr("hwqueue.connections._hang_up", hung_up.append)
    async with await WatchedAsyncConnection.connect(dsn, autocommit=True) as connection:
        connection.answer_within = 0.5
        for _ in range(3):
            await connection.execute(SLOW, [0])
        await asyncio.sleep(0.6)
    assert hung_up == []
