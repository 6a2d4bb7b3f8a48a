"""What the tests of figures share."""

from collections.abc import Iterator

import pytest

from hwqueue.metrics import HwqueueCollector


@pytest.fixture
def collector(dsn: str) -> Iterator[HwqueueCollector]:
    """Of the test's database."""
    made = HwqueueCollector(dsn)
    yield made
    made.close()
