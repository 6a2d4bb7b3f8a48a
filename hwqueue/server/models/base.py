"""What the other models are made of."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
TEN_YEARS = 315_360_000
EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def _moment(value: Any) -> Any:
    """Only RFC 3339 text: pydantic would take numbers and dates, too."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("a time in RFC 3339 is needed, such as 2030-01-31T12:00:00Z")
    return value


def _moment_or_span(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """One complaint for both, not one for each."""
    if isinstance(value, datetime | timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TEN_YEARS:
        return timedelta(seconds=value)
    try:
        return read(_moment(value))
    except ValueError:
        raise ValueError(
            "a time in RFC 3339 is needed, such as 2030-01-31T12:00:00Z, or seconds from now, "
            f"0 to {TEN_YEARS}"
        ) from None


def _id(value: Any) -> Any:
    """Only the usual form of a UUID: pydantic would take others, too."""
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise ValueError(f"an id is needed, such as {EXAMPLE_ID}")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_moment), Field(examples=["2030-01-31T12:00:00Z"])]
"""A time, RFC 3339 with an offset."""

MomentOrSpan = Annotated[
    datetime | timedelta,
    WrapValidator(_moment_or_span),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "number", "minimum": 0, "maximum": TEN_YEARS},
            ],
            "description": "A time, or seconds from now by the database's clock.",
            "examples": ["2030-01-31T12:00:00Z", 3600],
        }
    ),
]
"""A time, or how long from now it is."""

Id = Annotated[UUID, BeforeValidator(_id), Field(examples=[EXAMPLE_ID])]
"""A UUID in its usual form."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[
    float, Field(strict=True, ge=0, le=TEN_YEARS, allow_inf_nan=False, description="Seconds.")
]
"""A span."""

BigInt = Annotated[
    int,
    PlainSerializer(str),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": "^-?[0-9]+$",
            "description": "64 bits, as text.",
            "examples": ["947000000000000000"],
        }
    ),
]
"""An integer beyond what the doubles of many JSON readers hold."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@/-]*$", max_length=100)]
"""Of a queue."""

Task = Annotated[str, Field(min_length=1, max_length=200, examples=["draw"])]
Tenant = Annotated[str, Field(min_length=1, max_length=100, examples=["film"])]
Flag = StrictBool
Whole = StrictInt

Labels = Annotated[dict[str, str], Field(examples=[{"app": "render"}])]
Object = dict[str, Any]

_PLACEMENT_CHARS = 65_536


def _short(value: Any) -> Any:
    """Refuse at once what the database would refuse for its length after a walk over all of it."""
    if not isinstance(value, dict):
        return value
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if size > _PLACEMENT_CHARS:
        raise ValueError(f"a placement may have {_PLACEMENT_CHARS} characters, this one has {size}")
    return value


Placement = Annotated[
    dict[str, Any],
    BeforeValidator(_short),
    WithJsonSchema(
        {
            "type": "object",
            "title": "Placement",
            "description": "What a lease asks of a node, in the grammar of placements; the "
            "database checks it, and names the path of what it refuses.",
            "properties": {
                "require": {"type": ["array", "null"], "description": "All must hold."},
                "prefer": {"type": ["array", "null"], "description": "The better the more hold."},
                "strength": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "maximum": 100,
                    "description": "How much the preferences count beside those of others, in "
                    "percent; 100 if left out.",
                },
                "tolerate": {
                    "type": ["array", "null"],
                    "description": "Taints that do not matter.",
                },
                "spread": {"type": ["array", "null"], "description": "How many in one domain."},
                "resources": {"type": ["object", "null"], "description": "What is set aside."},
                "isolation": {"type": ["object", "null"], "description": "Whom it shares with."},
            },
            "additionalProperties": False,
            "examples": [
                {
                    "require": [{"label": "gpu_model", "op": "in", "values": ["A100", "H100"]}],
                    "resources": {"gpu": 2, "memory_mib": 8192},
                }
            ],
        }
    ),
]
"""As it is: the one reader of the grammar is in the database."""


def example(**content: Any) -> ConfigDict:
    """The settings of a model that has this example."""
    return ConfigDict(json_schema_extra={"examples": [content]})


class Request(BaseModel):
    """Base of what callers send: nothing unknown, nothing converted."""

    # frozen ones have a hash, and what has none is copied by pydantic for each that leaves it out
    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """Base of what they get that is no row of the client's."""
