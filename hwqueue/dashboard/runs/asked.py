"""What a step asks of its node, and who asks, with amounts as all pages write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwqueue import asked as words
from hwqueue.dashboard.formatting import asks


def asked(
    placement: Mapping[str, Any] | None, came_from: Mapping[str, Any] | None
) -> list[tuple[str, list[str]]]:
    """See `hwqueue.asked.asked`."""
    return words.asked(placement, came_from, lambda name, value: asks({name: value}))
