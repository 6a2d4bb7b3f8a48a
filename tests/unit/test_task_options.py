"""Spans and options of the wrong type are refused where they are written."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hwqueue.app import App, Retry, Snooze
from hwqueue.client import Client
from hwqueue.client._pauses import Pauses
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.placement import PLACEMENT_KEYS
from hwqueue.types import RetryPolicy

NO_SPAN = r"must be a timedelta, such as timedelta\(seconds=5\), not 5"
FIVE: Any = 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 5}, f"timeout {NO_SPAN}"),
        ({"claim_timeout": 5}, f"claim_timeout {NO_SPAN}"),
        ({"patience": 5}, f"patience {NO_SPAN}"),
        ({"retry": RetryPolicy(base=FIVE)}, rf"retry\.base {NO_SPAN}"),
        ({"retry": 3}, "retry must be a RetryPolicy or a mapping, not 3"),
        ({"max_attempts": "x"}, "max_attempts must be an int, not 'x'"),
        ({"priority": True}, "priority must be an int, not True"),
        ({"labels": {"a": 1}}, "labels must be a mapping of text to text"),
        ({"affinity_tags": "gpu"}, "affinity_tags must be a mapping, not 'gpu'"),
        ({"placement": "gpu"}, "placement must be a Placement or a mapping, not 'gpu'"),
        ({"placement": {"resource": {"gpu": 1}}}, "placement has no key 'resource'"),
    ],
)
def test_options_of_the_wrong_type_are_refused_at_the_definition(options: dict[str, Any], said: str) -> None:
    app = App()
    with pytest.raises(ConfigError, match=f"task 'draw': {said}"):
        app.task("draw", **options)
    assert not app.tasks


def test_no_plain_number_is_a_span() -> None:
    @App().task("draw")
    def draw(frame: int) -> None: ...

    with pytest.raises(BadArgument, match=f"^delay {NO_SPAN}") as caught:
        draw.with_options(delay=FIVE)
    assert caught.value.field == "delay"
    with pytest.raises(BadArgument, match="deadline must be a datetime"):
        draw.with_options(deadline=FIVE)
    with pytest.raises(BadArgument, match=f"^timeout {NO_SPAN}"):
        Pauses(FIVE)
    with pytest.raises(BadArgument, match=f"^pool_timeout {NO_SPAN}"):
        Client("dbname=none", pool_timeout=FIVE)


def test_the_keys_of_a_placement_are_those_of_the_database() -> None:
    text = Path("sql/placement/normalise.sql").read_text()
    [keys] = re.findall(r"array\[('require'[^]]*)\], p_field, 'QHC03'", text)
    assert {each.strip(" '") for each in keys.split(",")} == set(PLACEMENT_KEYS)


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_a_handler_waits_for_a_span(kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"{kind.__name__}: after {NO_SPAN}"):
        kind(after=5)


@pytest.mark.parametrize("kind", [Retry, Snooze])
@pytest.mark.parametrize("given", [5, timedelta(seconds=5)])
def test_a_span_that_was_taken_for_the_message_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(ConfigError, match="message must be text") as caught:
        kind(given)
    assert f"{kind.__name__}(after=timedelta(seconds=5))" in str(caught.value.hint)
