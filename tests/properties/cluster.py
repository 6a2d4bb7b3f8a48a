"""Registers a random cluster for one example and takes it away again."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.direct import Direct
from tests.properties.strategies import NODE_IDS, node_specs

CONTRADICTORY = "QHC04"
# affinity alone, so that the score is the documented number
ONLY_AFFINITY = {"tuning": {"weight_affinity": 1, "weight_fit": 0, "weight_spread": 0}, "patience": 0}

Specs = list[dict[str, Any]]
clusters: st.SearchStrategy[Specs] = st.tuples(*map(node_specs, range(3))).map(list)
_queues = count()


@contextmanager
def registered(direct: Direct, specs: Specs) -> Iterator[tuple[str, dict[UUID, int]]]:
    """Register the nodes and make a queue of this example's own; take both away at the end."""
    queue = f"example-{next(_queues)}"
    direct.create_queue(queue, ONLY_AFFINITY)
    epochs = {node: direct.register(node, spec) for node, spec in zip(NODE_IDS[:3], specs, strict=True)}
    try:
        yield queue, epochs
    finally:
        direct.drop_queue(queue)
        for node in epochs:
            direct.deregister(node)
