"""Loads the hypothesis profile before any property test is built; marks move at every claim."""

import pytest

from tests.properties.profiles import load_profile

load_profile()


@pytest.fixture(autouse=True)
def _eager(eager_marks: None) -> None:
    """Where low-water marks can be wrong, let the tests see it."""
