"""JSON values compared the way the grammar says: by type and value, numbers numerically."""

import re
from decimal import Decimal
from typing import Any

NUMBER_TEXT = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)


def is_number(value: Any) -> bool:
    """Whether the value is a JSON number (in Python a boolean is an int, in JSON it is not)."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def is_scalar(value: Any) -> bool:
    """Whether the value may stand in `values`."""
    return isinstance(value, str | bool) or is_number(value)


def equal(left: Any, right: Any) -> bool:
    """Equal in type and value; 1 and 1.0 are one number."""
    if is_number(left) and is_number(right):
        return exact(left) == exact(right)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)


def exact(value: int | float | Decimal) -> Decimal:
    """The number that the JSON text spells, not its binary neighbour."""
    return Decimal(str(value))


def as_number(label: Any) -> Decimal | None:
    """A label as an order operator sees it: a number, or text like "-12.5"; else None."""
    if is_number(label):
        return exact(label)
    if isinstance(label, str) and NUMBER_TEXT.fullmatch(label):
        return Decimal(label)
    return None


def contains(outer: Any, inner: Any) -> bool:
    """The jsonb operator @>, below the top level: no bare scalar is found in an array."""
    if isinstance(outer, dict) and isinstance(inner, dict):
        return all(key in outer and contains(outer[key], item) for key, item in inner.items())
    if isinstance(outer, list) and isinstance(inner, list):
        return all(any(contains(have, want) for have in outer) for want in inner)
    return equal(outer, inner)
