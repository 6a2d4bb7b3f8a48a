"""What the Python codec makes of a blob, in the form that the tests ask the database for."""

from typing import Any

from hwqueue.errors import WireInvalid
from hwqueue.wire import decode


def outcome(blob: bytes) -> dict[str, Any]:
    """The parsed form, or the refusal; `field` is what the tests name their argument."""
    try:
        return {"ok": decode(blob).as_json()}
    except WireInvalid as error:
        return {"error": error.sqlstate, "detail": error.detail | {"field": "blob"}}
