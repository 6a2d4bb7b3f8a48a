"""An option of the client is one of the HTTP API, without a line of its own there."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict, get_type_hints
from uuid import UUID

import pytest
from pydantic import ValidationError

from hwqueue.server.models import everywhere, gangs, leases, queues
from hwqueue.server.models.base import Request
from hwqueue.server.models.options import options_of
from hwqueue.types import EverywhereOptions, GangOptions, LeaseChanges, QueuePolicy, SpawnOptions


class Options(TypedDict, total=False):
    """Options of something."""

    node_id: UUID | str | None
    wait: timedelta | None
    count: int | None
    quick: bool | None
    labels: Mapping[str, Any] | None


def test_types_follow_from_the_annotations() -> None:
    made = options_of(Options)(Request)
    body = {
        "node_id": "01890a5d-ac96-774b-bcce-b302099a8057",
        "wait": 1.5,
        "count": 3,
        "quick": True,
        "labels": {"a": 1},
    }
    assert made.model_validate(body).model_dump(mode="json") == body
    assert made.model_validate({}).model_dump(exclude_none=True) == {}
    for name, wrong in (("node_id", "7"), ("wait", -1), ("count", True), ("quick", 1), ("x", 1)):
        with pytest.raises(ValidationError):
            made.model_validate({name: wrong})


def test_bounds_and_descriptions_are_added() -> None:
    made = options_of(Options, kinds={"count": int}, notes={"wait": "W."})(Request)
    assert made.model_json_schema()["properties"]["wait"]["description"] == "W."
    with pytest.raises(TypeError, match="has no speed"):
        options_of(Options, kinds={"speed": int})


def test_what_json_has_no_type_for_is_refused() -> None:
    class Odd(TypedDict):
        raw: bytes | None

    with pytest.raises(TypeError, match=r"raw: .* has no type in JSON"):
        options_of(Odd)


def test_the_api_has_every_option_of_the_client() -> None:
    assert leases.SpawnOptions.model_fields.keys() == get_type_hints(SpawnOptions).keys()
    assert leases.LeaseChanges.model_fields.keys() == get_type_hints(LeaseChanges).keys()
    assert gangs.GangOptions.model_fields.keys() == get_type_hints(GangOptions).keys()
    taken = get_type_hints(EverywhereOptions).keys()
    assert everywhere.EverywhereOptions.model_fields.keys() == taken
    assert queues.QueuePolicy.model_fields.keys() == get_type_hints(QueuePolicy).keys()
