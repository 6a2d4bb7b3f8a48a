"""How a handler ended becomes a settlement."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from hwqueue.app import BadParams, CommandFailed, Reject, Retry, Snooze
from hwqueue.errors import ConfigError
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome
from tests.unit.claims import claim


@pytest.mark.parametrize("result", [None, 1, "ü", [1, {"a": None}], 0.5, True])
def test_json_completes(result: Any) -> None:
    assert outcome.of_result(result) == Outcome(kind="complete", result=result)
    assert outcome.of_result([result, timedelta(seconds=2)]).result == [result, 2.0]


def nested() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "result", [object(), {1, 2}, math.nan, math.inf, "a\x00b", "\ud800", {"k": b"x"}, nested()]
)
def test_anything_else_is_a_failure_for_good(result: Any) -> None:
    ended = outcome.of_result(result)
    assert (ended.kind, ended.retry) == ("fail", False)
    assert ended.error is not None
    assert ended.error["type"] == "ResultNotJson"


def raised(error: BaseException) -> Outcome:
    try:
        raise error
    except BaseException as caught:
        return outcome.of_exception(caught)


def test_an_exception_fails_with_what_can_be_stored() -> None:
    ended = raised(ValueError("no such file"))
    assert (ended.kind, ended.retry, ended.retry_at) == ("fail", True, None)
    assert ended.error is not None
    assert (ended.error["type"], ended.error["message"]) == ("ValueError", "no such file")
    assert "in raised" in ended.error["traceback"]
    ended = raised(RuntimeError("\x00\ud800" + "x" * 100_000))
    assert ended.error is not None
    assert ended.error["message"].startswith("\\0\\ud800")
    assert len(str(ended.error)) < 12_000

    class Broken(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    error = raised(Broken()).error
    assert error is not None
    assert "ZeroDivisionError in __str__" in error["message"]


def test_what_is_for_good_and_what_is_not() -> None:
    assert raised(Reject("bad input")).retry is False
    ended = raised(BadParams("params.frame is missing"))
    assert ended.retry is False
    assert ended.error == {"type": "BadParams", "message": "params.frame is missing"}
    ended = raised(CommandFailed("exit status 7: no \0 data", 7))
    message = "exit status 7: no \\0 data"
    assert ended.error == {"type": "CommandFailed", "message": message, "exit_status": 7}
    assert ended.retry
    assert outcome.of_exception(ValueError(), may_retry=False).retry is False
    assert outcome.of_exception(Retry(), may_retry=False).retry is True


def test_retry_names_its_time() -> None:
    class Odd(Retry):
        def __init__(self) -> None:
            """Says nothing, so the policy does."""

    assert raised(Odd()).retry_at is None
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert raised(Retry("later", at=at)).retry_at == at
    assert raised(Retry()).retry_at is None
    granted = claim("t")
    for span in (timedelta(0), timedelta(hours=1)):  # which the database adds to its own clock
        assert raised(Retry(after=span)).settle(granted).as_json()["retry_at"] == span


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"after": timedelta(days=3651)}, "3650 days"),
        ({"after": timedelta(days=900_000_000)}, "3650 days"),
        ({"after": timedelta(seconds=-1)}, ""),
        ({"after": timedelta(1), "at": datetime.now(UTC)}, "after or at"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2)))}, ""),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))}, ""),
        ({"at": datetime(2030, 1, 1)}, "time zone"),
        ({"at": "tomorrow"}, ""),
    ],
)
def test_times_that_nobody_can_settle_with(kind: type[Exception], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}.*{said}"):
        kind("later", **wrong)


@pytest.mark.parametrize(
    ("given", "said"), [({}, "after or at, one of them"), ({"after": timedelta(0)}, "more than zero")]
)
def test_a_snooze_has_a_time(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Snooze(**given)


def test_snooze_releases_until_its_time() -> None:
    at, hour = datetime(2030, 1, 1, tzinfo=UTC), timedelta(hours=1)
    until, later = raised(Snooze(at=at)), raised(Snooze("full", after=hour))
    assert (until.kind, until.available_at, until.delay) == ("release", at, None)
    assert (later.kind, later.available_at, later.delay) == ("release", None, hour)
    assert (until.is_snooze, later.is_snooze, outcome.RELEASED.is_snooze) == (True, True, False)
    granted = claim("t")
    assert later.settle(granted).as_json() == {
        **{"lease_id": granted.lease_id, "claim_token": 7, "outcome": "release", "delay": hour}
    }
    assert until.settle(granted).as_json()["available_at"] == at


@pytest.mark.parametrize(
    "ended",
    [
        outcome.RELEASED,
        outcome.of_result({"rows": 3}),
        outcome.failure("ProcessDied", "gone"),
        Outcome(kind="fail", error={}, retry_at=datetime(2030, 1, 1, tzinfo=UTC)),
        Outcome(kind="fail", error={}, retry_at=timedelta(days=2, microseconds=1)),
        Outcome(kind="release", delay=timedelta(days=400, microseconds=1), message="full"),
        Outcome(kind="release", available_at=datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
def test_outcomes_travel_as_text(ended: Outcome) -> None:
    assert Outcome.from_json(ended.to_json()) == ended
