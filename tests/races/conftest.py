"""Low-water marks move at every claim: where they can be wrong, let the races see it."""

import pytest


@pytest.fixture(autouse=True)
def _eager(eager_marks: None) -> None:
    """Every test here has a database of its own."""
