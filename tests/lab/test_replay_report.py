"""Figures of a report from a hand-made ledger, and what is made of them."""

import json
from uuid import UUID, uuid4

import pytest

from hwqueue.demo import report
from hwqueue.demo.ledger import Grant, Ledger
from hwqueue.demo.model import Job, Machine, Plan, Trace

pytestmark = pytest.mark.embedded

MACHINES = (Machine("g", 8000, 8192, 2, "T4"), Machine("c", 8000, 8192, 0, None))
SHARE = Job("share", 1000, 1024, 1, 500, ("T4",), "LS", "Running", 0, 0, 60)
WHOLE = Job("whole", 1000, 1024, 2, 1000, (), "LS", "Failed", 0, 0, 60)
PLAIN = Job("plain", 1000, 1024, 0, 0, (), "BE", "Running", 0, None, 60, tags={"zone": "a"})


def _ledger(*, ended: bool = False) -> Ledger:
    """A share ran from 1 s on (with `ended` to 3 s), the plain job from 2 s on; one job waits."""
    ledger = Ledger(machines={machine.name: machine for machine in MACHINES})
    ids = {job.name: uuid4() for job in (SHARE, WHOLE, PLAIN)}
    for job in (SHARE, WHOLE, PLAIN):
        ledger.spawned(ids[job.name], job)
    share = _grant(ids["share"], "g", "share")
    ledger.granted(share, SHARE, 1.0)
    ledger.granted(_grant(ids["plain"], "c", "plain"), PLAIN, 2.0)
    if ended:
        ledger.settled(share, "completed", 3.0)
    for milliseconds in (4.0, 6.0):
        ledger.polled(milliseconds, 1)
    ledger.polled(1.0, 0)
    ledger.settled_in(9.0)
    return ledger


def _grant(lease_id: UUID, machine: str, job: str) -> Grant:
    return Grant(lease_id, 1, machine, job, 0.0, None)


def _report(ledger: Ledger, *, seed: int = 1, timed: bool = False) -> report.Report:
    return report.build(
        Trace(MACHINES, (SHARE, WHOLE, PLAIN)),
        ledger,
        mode="timed" if timed else "backlog",
        plan=Plan(seed=seed, speedup=10.0),
        seconds=4.0,
        spawn_seconds=0.5,
        pending=(),
        checked=report.Check(2, ()),
        arrival=(lambda _job: 0.5) if timed else None,
    )


def test_figures_of_a_backlog_run() -> None:
    made = _report(_ledger())
    assert (made.gpus, made.gpus_allocated, made.gpus_allocated_percent) == (2, 0.5, 25.0)
    assert made.demand_percent == 125.0
    assert made.models == (report.ModelShare("T4", 2, 0.5, 25.0),)
    assert (made.timing.claims, made.timing.claims_per_second, made.timing.claim_calls) == (2, 0.5, 2)
    assert (made.timing.claim_p50_ms, made.timing.claim_p99_ms) == (4.0, 6.0)
    assert made.timing.empty_calls == 1
    assert made.kinds == (
        report.KindCount("cpu", 1, 1, 1, 0),
        report.KindCount("share", 1, 1, 1, 0),
        report.KindCount("2 gpu", 1, 0, 0, 1),
    )
    assert made.timeline[-1] == (2.0, 25.0)
    json.dumps(made.as_json())


def test_figures_of_a_timed_run() -> None:
    whole = _report(_ledger(ended=True), timed=True)
    assert whole.timing.claims == 2
    assert whole.timing.claims_per_second is None
    assert (whole.timing.claim_p99_ms, whole.timing.settle_p50_ms) == (6.0, 9.0)
    made = whole.timed
    assert made is not None
    assert made.peak_gpu_percent == 25.0
    assert made.mean_gpu_percent == pytest.approx(25.0 * 2 / 3)  # from 1 s to 3 s of 3 s
    assert (made.wait_p50_s, made.wait_p99_s) == (5.0, 15.0)  # of the trace, ten times faster
    assert (made.outcomes, made.never_scheduled_but_ran) == ({"completed": 1, "deadline_exceeded": 0}, 1)


def test_what_a_ledger_counts() -> None:
    machines = {machine.name: machine for machine in MACHINES}
    ledger = Ledger(machines=machines)
    for _ in range(3):
        ledger.granted(_grant(uuid4(), "c", "plain"), PLAIN, 1.0)
    ledger.polled(5.0, 3)
    timing = report.timing(ledger, 2.0, paced=False)
    # claims are leases, however many a call brings
    assert (timing.claims, timing.claim_calls, timing.claims_per_second) == (3, 1, 1.5)
    ledger, lease_id = Ledger(machines=machines), uuid4()
    ledger.spawned(lease_id, PLAIN)
    ledger.deadline_passed(lease_id)
    assert (len(ledger.waiting), len(ledger.lapsed)) == (0, 1)
    ledger.granted(_grant(lease_id, "c", "plain"), PLAIN, 1.0)  # just before
    assert (len(ledger.running), len(ledger.lapsed)) == (1, 0)
    early = uuid4()  # claimed before its spawn is seen
    ledger.granted(_grant(early, "c", "plain"), PLAIN, 1.0)
    ledger.spawned(early, PLAIN)
    assert not ledger.waiting
