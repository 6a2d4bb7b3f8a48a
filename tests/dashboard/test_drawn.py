"""Small drawings and sums of the pages: runs as bars, waits as a histogram, failures by error."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.dashboard.charts import Bucket, buckets, run_bars
from hwqueue.dashboard.history import Supply, supply_of
from hwqueue.dashboard.pages.queues import hour_of
from hwqueue.types import FleetSample, Minute, RunSummary, Sample
from tests.dashboard.conftest import Pages, granted
from tests.dashboard.test_pages import check

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


def run(minutes: float | None, state: Any = "completed") -> RunSummary:
    """A run that took so long; None: it goes on."""
    run_id = uuid4()
    ended = None if minutes is None else BEGAN + timedelta(minutes=minutes)
    return RunSummary(
        run_id=run_id, workflow="w", version=1, state=state, reason=None, tenant="", labels={}, attempt=1,
        submitted_at=BEGAN, finished_at=ended, parent_run_id=None, root_run_id=run_id,
    )  # fmt: skip


def test_runs_are_as_high_as_long() -> None:
    bars = run_bars([run(None, "running"), run(2), run(0)], BEGAN + timedelta(minutes=4))
    assert [(bar.run.state, bar.height) for bar in bars] == [
        ("completed", 4),
        ("completed", 22),
        ("running", 44),
    ]
    assert run_bars([], BEGAN) == []


def bucket(le: str, value: float, queue: str = "q") -> Sample:
    return Sample(name="waits_bucket", labels={"queue": queue, "le": le}, value=value)


def test_waits_by_bucket_without_what_is_empty_at_the_ends() -> None:
    samples = [bucket("+Inf", 9), bucket("1", 2), bucket("10", 9), bucket("0.1", 0), bucket("5", 2)]
    assert buckets([*samples, bucket("1", 7, "other")], "waits", "q") == [
        Bucket(1, 2),
        Bucket(5, 0),
        Bucket(10, 7),
    ]
    assert buckets([bucket("+Inf", 3), bucket("1", 0)], "waits", "q") == [Bucket(None, 3)]
    assert buckets([bucket("1", 0)], "waits", "q") == []


def test_supply_is_of_the_last_sample_the_most_asked_for_first() -> None:
    def sample(minute: int, name: str, used: float, present: float, waiting: float) -> FleetSample:
        at = BEGAN + timedelta(minutes=minute)
        return FleetSample(at=at, name=name, used=used, present=present, waiting=waiting)

    samples = [
        sample(0, "T4", 9, 9, 9),
        sample(1, "A100", 3, 4, 0),
        sample(1, "", 0, 0, 2),
        sample(1, "K80", 0, 0, 0),
    ]
    assert supply_of(samples) == [Supply("any model", 0, 0, 2), Supply("A100", 3, 1, 0)]
    assert supply_of([]) == []


def test_the_last_hour_of_a_queue() -> None:
    def minute(number: int, completed: int, wait: float | None) -> Minute:
        return Minute(
            minute=BEGAN + timedelta(minutes=number), claims=0, completed=completed, failed=1, cancelled=0,
            retried=0, expired=0, wait_p50=None, wait_p95=wait, run_p50=None, run_p95=None,
        )  # fmt: skip

    hour = hour_of(
        [minute(0, 50, 99), *(minute(number, 10, number) for number in range(1, 6)), minute(6, 3, None)]
    )
    assert (hour.rate, hour.failed, hour.wait_p95) == (10, 7, 5)
    nothing = hour_of([minute(0, 0, None)])
    assert (nothing.rate, nothing.wait_p95) == (0, None)


async def test_failures_by_error_lead_to_those_leases(pages: Pages, sql: Client) -> None:
    sql.create_queue("renders", policy={"max_attempts": 1})
    for number in range(3):
        sql.spawn_lease("renders", "draw")
        claim = granted(sql, "renders", name=f"n-{number}")
        kind = "Broken" if number else "TimeoutError"
        sql.fail_lease(
            claim.lease_id, claim.claim_token, error={"type": kind, "message": f"{number}"}, retry=False
        )
    page = await pages.page("/leases?state=failed")
    check(page)
    listed = page.partition('aria-label="By error"')[2].partition("</section>")[0]
    assert listed.index("Broken: 2") < listed.index("TimeoutError: 0")
    assert "Broken: 1" not in listed
    assert 'data-l="leases">2<' in listed
    assert "state=failed&amp;task=draw&amp;error=Broken" in listed
    page = await pages.page("/leases?state=failed&task=draw&error=Broken")
    assert page.count('<tr id="lease-') == 2
    assert "By error" not in page
