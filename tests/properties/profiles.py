"""How long the property tests look: HYPOTHESIS_PROFILE=ci (default, seconds) or deep (minutes)."""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings

SLOW_BY_NATURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def load_profile() -> None:
    """Register both profiles and load the one asked for."""
    # ci repeats the same examples, so that a red run is about the change it tests
    settings.register_profile(
        "ci",
        max_examples=12,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=SLOW_BY_NATURE,
        print_blob=True,
    )
    settings.register_profile(
        "deep",
        parent=settings.get_profile("ci"),
        max_examples=1500,
        stateful_step_count=80,
        derandomize=False,
        deadline=timedelta(seconds=60),
    )
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
