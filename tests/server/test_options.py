"""An option of the client is one of the HTTP API, without a line of its own there."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict
from uuid import UUID

import pytest
from pydantic import ValidationError

from hwqueue.meanings import meaning
from hwqueue.server.models.base import Request
from hwqueue.server.models.options import options_of


class Options(TypedDict, total=False):
    """Some of those of a spawn."""

    lease_id: UUID | str | None
    delay: timedelta | None
    priority: int | None
    notify: bool | None
    labels: Mapping[str, Any] | None


def test_types_follow_from_the_annotations() -> None:
    made = options_of(Options, "spawn")(Request)
    body = {"lease_id": str(UUID(int=1)), "delay": 1.5, "priority": 3, "notify": True, "labels": {"a": 1}}
    assert made.model_validate(body).model_dump(mode="json") == body
    assert made.model_validate({}).model_dump(exclude_none=True) == {}
    for name, wrong in (("lease_id", "7"), ("delay", -1), ("priority", True), ("notify", 1), ("x", 1)):
        with pytest.raises(ValidationError):
            made.model_validate({name: wrong})


def test_notes_and_examples_are_added() -> None:
    made = options_of(Options, "spawn", notes={"delay": "W."}, examples={"delay": 3})(Request)
    delay = made.model_json_schema()["properties"]["delay"]
    assert delay["description"] == meaning("spawn.delay", "W.")
    assert delay["examples"] == [3]
    with pytest.raises(TypeError, match="has no pace, size, speed"):
        options_of(Options, "spawn", kinds={"speed": int}, notes={"size": "W."}, examples={"pace": 1})


def test_what_has_no_type_in_json_or_no_meaning_is_refused() -> None:
    class Odd(TypedDict):
        raw: bytes | None

    with pytest.raises(TypeError, match=r"raw: .* has no type in JSON"):
        options_of(Odd, "spawn")
    with pytest.raises(KeyError, match="raw"):
        options_of(Odd, "spawn", kinds={"raw": str})
