"""Log lines as text and as JSON, and the lease that they belong to."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from hwqueue import LeaseLogFilter, logs
from hwqueue.logs import JsonFormatter, TextFormatter, about
from tests.unit.claims import claim


def record(message: str, *args: object, **more: Any) -> logging.LogRecord:
    made = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "shop.py", 7, message, args, more.pop("exc_info", None), **more
    )
    assert LeaseLogFilter().filter(made)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    parsed = json.loads(line)
    assert isinstance(parsed, dict)
    return parsed


def test_a_line_of_json_has_time_level_logger_message_and_every_extra() -> None:
    line = as_json(record("%s is\nlate", "mail", extra={"order": UUID(int=7), "n": 1}))
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {
        **{"level": "WARNING", "logger": "shop", "message": "mail is\nlate"},
        **{"order": str(UUID(int=7)), "n": 1},
    }
    assert as_json(record("late", extra={"level": "none"}))["level"] == "WARNING"  # it hides nothing
    try:
        raise RuntimeError("smtp down")
    except RuntimeError:
        line = as_json(record("oops", exc_info=sys.exc_info()))
    assert line["exception"].endswith("RuntimeError: smtp down")


@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
def test_without_a_lease_there_are_no_fields(formatter: type[logging.Formatter]) -> None:
    assert "lease_id" not in formatter().format(record("hello"))


def test_what_is_logged_about_a_lease_says_which() -> None:
    granted = claim("mail")
    with about(granted):
        made = record("sending\nto x")
        assert vars(record("of another", extra={"lease_id": "other"}))["lease_id"] == "other"
    expected = {"lease_id": str(granted.lease_id), "task": "mail", "queue": "default", "attempt": 2}
    assert as_json(made).items() >= expected.items()
    first, second = TextFormatter().format(made).splitlines()
    fields = f"[lease_id={granted.lease_id} task=mail queue=default attempt=2]"
    assert first.endswith(f" WARNING shop: sending {fields}")
    assert second == "  to x"
    assert not hasattr(record("after"), "lease_id")


def test_what_an_exception_says_begins_no_line_and_moves_no_cursor() -> None:
    forged = "2030-01-02 03:04:05,678 ERROR shop: forged"
    try:
        raise RuntimeError(f"a\n{forged}\r{forged}\x85{forged}\x1b[2J\x07")
    except RuntimeError:
        made = record(f"oops\n{forged}", exc_info=sys.exc_info())
    text = TextFormatter().format(made)
    first, *others = text.split("\n")
    assert "oops" in first
    assert all(line.startswith("  ") for line in others)
    assert {each for each in text if not each.isprintable()} == {"\n"}
    assert r"\x1b[2J\x07" in text
    with about(claim("mail\nERROR forged")):
        assert r"task=mail\nERROR forged" in TextFormatter().format(record("x"))


async def test_asyncio_tasks_and_threads_are_told_apart() -> None:
    first, second = claim("a"), claim("b")
    seen: dict[str, str] = {}
    both = asyncio.Barrier(2)

    async def handle(name: str) -> None:
        with about(first if name == "a" else second):
            await both.wait()
            seen[name] = vars(record("x"))["task"]

    def other() -> None:
        seen["thread"] = getattr(record("x"), "task", "none")

    await asyncio.gather(handle("a"), handle("b"))
    with about(first):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == {"a": "a", "b": "b", "thread": "none"}


@pytest.fixture
def _root_is_kept() -> Iterator[None]:
    root, alembic = logging.getLogger(), logging.getLogger("alembic")
    before = root.handlers[:], root.level, alembic.level
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, alembic.level = before
    logs._settings = None


@pytest.mark.usefixtures("_root_is_kept")
def test_the_root_logger_is_set_up_and_noise_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert logs.settings_in_force() is None
    logs.set_up(logs.LogSettings("json", "info"))
    logging.getLogger("alembic.runtime.plugins").info("setting up a plugin")
    logging.getLogger("httpx").info("HTTP Request: POST /settle")
    logging.getLogger("shop").debug("too low")
    logging.getLogger("shop").info("an order")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "an order"
    assert logs.settings_in_force() == ("json", "info")
    logs.set_up(logs.LogSettings("text", "debug"))
    logging.getLogger("alembic.runtime.plugins").info("setting up a plugin")
    assert capsys.readouterr().err.endswith("INFO alembic.runtime.plugins: setting up a plugin\n")
