"""Random workflows among workers that die, operators and open transactions, against the oracle."""

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwqueue.testing import install_clock
from tests.fix_db import fresh_database
from tests.oracle.workflows import Workflow
from tests.properties.workflow_driver import Driver, Session
from tests.properties.workflow_graphs import gangs, maps, workflows

pytestmark = pytest.mark.thorough

SESSIONS = 4
CALLS = st.lists(st.integers(0, 30), min_size=2, max_size=3)  # before each attempt goes to its end
SEEDS = st.integers(0, 2**32)


def effort(examples: int) -> settings:
    """So many examples, however long each takes."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(scope="module")
def sessions(server_dsn: str, template: str) -> Iterator[list[Session]]:
    """Sessions on one database, the first of which keeps no transaction open."""
    with fresh_database(server_dsn, template) as dsn, ExitStack() as stack:
        made = [Session(dsn) for _ in range(SESSIONS)]
        for session in made:
            stack.callback(session.close)
        install_clock(made[0].conn)
        yield made


def run_to_the_end(driver: Driver, calls: list[int]) -> None:
    """Make so many calls and go on to the end; then retry the run, as many times as is said."""
    driver.run(calls[0])
    driver.check()
    for more in calls[1:]:
        driver.retry()
        driver.run(more)
        driver.check()


@effort(10)
@given(workflow=workflows(["continue"]), calls=CALLS, seed=SEEDS)
def test_runs_end_as_the_model_says(
    sessions: list[Session], workflow: Workflow, calls: list[int], seed: int
) -> None:
    """Branches that need a failed step are skipped: each step has one end, whatever the order."""
    run_to_the_end(Driver(sessions, workflow, Random(seed)), calls)


@effort(5)
@given(workflow=maps(), calls=CALLS, seed=SEEDS)
def test_maps_end_as_the_model_says(
    sessions: list[Session], workflow: Workflow, calls: list[int], seed: int
) -> None:
    """Never more items than the window has, each once; a retry runs what has not completed."""
    run_to_the_end(Driver(sessions, workflow, Random(seed)), calls)


@effort(3)
@given(workflow=gangs(), calls=CALLS, seed=SEEDS)
def test_gangs_end_as_the_model_says(
    sessions: list[Session], workflow: Workflow, calls: list[int], seed: int
) -> None:
    """A step ends once its gang does, lost members run again, a retry runs all of them."""
    run_to_the_end(Driver(sessions, workflow, Random(seed), cancels=True), calls)


@effort(10)
@given(workflow=workflows(["continue", "finish_running", "fail_fast"]), calls=CALLS, seed=SEEDS)
def test_a_run_that_stops_releases_nothing_more(
    sessions: list[Session], workflow: Workflow, calls: list[int], seed: int
) -> None:
    """By a first failure, or a cancel: steps end as their parents say, or do not begin."""
    run_to_the_end(Driver(sessions, workflow, Random(seed), cancels=True), calls)


@pytest.mark.slow
@effort(1000)
@given(
    workflow=workflows(["continue", "finish_running", "fail_fast"], most=12),
    calls=st.lists(st.integers(0, 80), min_size=1, max_size=4),
    seed=SEEDS,
    cancels=st.booleans(),
)
def test_larger_runs(
    sessions: list[Session], workflow: Workflow, calls: list[int], seed: int, cancels: bool
) -> None:
    run_to_the_end(Driver(sessions, workflow, Random(seed), cancels=cancels), calls)
