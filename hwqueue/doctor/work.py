"""Checks of the work: queues, workers, upkeep, invariants, and what is installed here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed_version

from packaging.requirements import Requirement

from hwqueue.doctor.facts import MOST_CLASSES, Work
from hwqueue.doctor.finding import Finding, fail, info, ok, warn
from hwqueue.text import duration, plural
from hwqueue.types import BrokenInvariant

_REAP_SECONDS = 120
_PRUNE_SECONDS = 3600
_BEHIND_SECONDS = 300
_UNTOLD_SECONDS = 900
_UNFIRED_SECONDS = 60
_SHOWN = 5
# `binary` is a part of psycopg, which is always there.
_NOT_FOR_USE = frozenset({"all", "binary", "dev", "docs", "test"})


def workers(work: Work) -> Finding:
    """Whether anybody works."""
    live = work.nodes.get("live", 0)
    if not any(work.nodes.values()):
        return warn(
            "workers",
            "no worker has ever registered",
            "start one: hwqueue worker run --app tasks:app --queue NAME",
        )
    if not live:
        return fail(
            "workers",
            f"no node is live: {_states(work.nodes)}",
            "look at the workers' logs; hwqueue node list shows who is silent since when",
        )
    return ok("workers", _states(work.nodes))


def silent(work: Work) -> Finding:
    """Whether nodes have gone without saying so."""
    count = work.nodes.get("silent", 0)
    if count:
        return warn(
            "silent nodes",
            f"{_some(count, [node.node_name for node in work.silent])} gave no sign of life",
            "restart their workers; one that will not come back: hwqueue node deregister NAME",
        )
    return ok("silent nodes", "none")


def queues(work: Work) -> Finding:
    """Whether there are queues, and none is paused."""
    paused = [queue.queue for queue in work.queues if queue.paused]
    if not work.queues:
        return warn("queues", "there are none", "make one: hwqueue queue create NAME")
    if paused:
        return warn(
            "queues",
            f"{_some(len(paused), paused)} paused",
            f"let it go on: hwqueue queue resume {paused[0]}",
        )
    return ok("queues", f"{len(work.queues)}, none paused")


def unserved(work: Work) -> list[Finding]:
    """Leases that no worker asks for, and leases that no live node may ever run, the most first.

    What is the same for several placement classes is one finding.
    """
    found: dict[tuple[bool, str, str], Counter[str]] = {}
    for row in work.reasons:
        served = row.code != "no_handler"
        if not served or row.nodes_matching == 0:
            said = f"of task {row.task_name} in queue {row.queue}: {row.message}"
            counts = found.setdefault((served, row.queue, said), Counter())
            counts.update(classes=1, leases=row.pending)
    kinds = sorted(found.items(), key=lambda kind: (kind[0][0], -kind[1]["leases"], kind[0]))
    findings = [_unserved(served, n["leases"], said) for (served, _, said), n in kinds[:_SHOWN]]
    if rest := kinds[_SHOWN:]:
        classes, leases = (sum(n[key] for _, n in rest) for key in ("classes", "leases"))
        more = f"and {plural(classes, 'more class', 'more classes')}, {plural(leases, 'lease')}"
        at_least = ", at least" if len(work.reasons) >= MOST_CLASSES else ""
        worst = fail if not rest[0][0][0] else warn
        findings.append(worst("pending leases", more + at_least, "all of them: hwqueue pending --limit 500"))
    return findings or [ok("pending leases", "none waits for a worker that is not there")]


def _unserved(served: bool, leases: int, said: str) -> Finding:
    if not served:
        advice = "start a worker with --queue and an app that has the task, or cancel them"
        return fail("pending leases", f"{leases} {said}", advice)
    advice = "hwqueue pending --kind no_match says what keeps which nodes from it"
    return warn("pending leases", f"{leases} {said}", advice)


def reaping(work: Work) -> Finding:
    """Whether claims of dead workers come back."""
    lag = work.figures["hwqueue_reap_lag_seconds"]
    if lag > _REAP_SECONDS:
        return fail(
            "reap",
            f"nobody has reaped for {duration(lag)}: leases of dead workers do not come back",
            "start a worker, or run select hwqueue.reap() every ten seconds",
        )
    return ok("reap", "it runs")


def pruning(work: Work) -> Finding:
    """Whether what is kept no longer is deleted."""
    lag = work.figures.get("hwqueue_prune_lag_seconds", 0)
    if lag > _PRUNE_SECONDS:
        return warn(
            "prune",
            f"nobody has pruned for {duration(lag)}: finished leases pile up",
            "let workers prune (--prune-interval 1m), or run select hwqueue.prune() every minute",
        )
    return ok("prune", "it runs")


def terms(work: Work) -> Finding:
    """Whether the affinity terms of leases are published."""
    count = work.figures.get("hwqueue_terms_unpublished", 0)
    if count:
        return warn(
            "affinity terms",
            f"{count:.0f} wait for older transactions to end; leases with them are not claimed",
            "end the transactions that the vacuum horizon names; if it names none, look again in a minute",
        )
    return ok("affinity terms", "all are published")


def statistics(work: Work) -> Finding:
    """Whether counters keep up."""
    lag = work.figures["hwqueue_statistics_lag_seconds"]
    if lag > _BEHIND_SECONDS:
        return warn(
            "statistics",
            f"they are {duration(lag)} behind, and alerts on them silent",
            "end the transaction that holds them back: docs/run/monitoring.md",
        )
    return ok("statistics", "they keep up")


def webhooks(work: Work) -> Finding:
    """Whether receivers take what they are told, and somebody tells them."""
    gone = [each.name for each in work.webhooks if each.paused_reason == "gone"]
    failing = [each.name for each in work.webhooks if each.failing_since and not each.paused_at]
    untold = work.figures.get("hwqueue_webhook_oldest_seconds", 0)
    if gone:
        return warn(
            "webhooks",
            f"{_some(len(gone), gone)} answered that nobody is there any more",
            "hwqueue webhook resume NAME once the receiver is back, or hwqueue webhook drop NAME",
        )
    if failing:
        return warn(
            "webhooks",
            f"the last request to {_some(len(failing), failing)} failed",
            f"its answer: hwqueue webhook deliveries {failing[0]} --state waiting",
        )
    if untold > _UNTOLD_SECONDS:
        return warn(
            "webhooks",
            f"something is not sent that happened {duration(untold)} ago or longer",
            "start a process that sends: hwqueue webhook run",
        )
    return ok("webhooks", f"{len(work.webhooks)} of them, nothing is late")


def schedules(work: Work) -> Finding:
    """Whether somebody plans and fires them, and they spawn something."""
    wrong = [each.name for each in work.schedules if each.plan_error]
    dry = [each.name for each in work.schedules if each.is_dry]
    failed = [each.name for each in work.schedules if each.last_outcome == "failed" and not each.paused_at]
    late = work.figures.get("hwqueue_schedule_oldest_due_seconds", 0)
    if wrong:
        return warn(
            "schedules",
            f"the cron expression of {_some(len(wrong), wrong)} cannot be planned",
            f"""hwqueue schedule next 'EXPR' says why; hwqueue schedule set {wrong[0]} '{{"cron": ...}}'""",
        )
    if dry:
        return warn(
            "schedules",
            f"nobody plans the next times of {_some(len(dry), dry)}",
            "run a worker whose --reap-interval is not never",
        )
    if late > _UNFIRED_SECONDS:
        return warn(
            "schedules",
            f"a time that was due {duration(late)} ago has not fired",
            "run a worker: its upkeep fires what is due",
        )
    if failed:
        return warn(
            "schedules",
            f"the last time of {_some(len(failed), failed)} spawned nothing",
            f"why: hwqueue schedule history {failed[0]}",
        )
    return ok("schedules", f"{len(work.schedules)} of them, none is late")


def limits(work: Work) -> Finding:
    """Whether limits let through what they may."""
    stuck = [each.name for each in work.limits if each.parked and not each.used and not each.closed_until]
    if stuck:
        return warn(
            "limits",
            f"leases wait, and nothing has passed: {_some(len(stuck), stuck)}",
            "run a worker: its claims and its upkeep let leases through",
        )
    return ok("limits", f"{len(work.limits)} of them let through what they may")


def tasks(work: Work) -> Finding:
    """Whether leases get the defaults that workers' apps declare, however they are spawned."""
    lacking = [each.task for each in work.tasks if each.set_at is None]
    if lacking:
        return warn(
            "defaults of tasks",
            f"the database does not have those of {_some(len(lacking), lacking)}: leases that "
            "Task.spawn did not spawn get none, no placement either",
            "hwqueue task sync --app MODULE:NAME, or workers with --sync-dsn",
        )
    return ok("defaults of tasks", "the database has those that workers declare")


CHECKS: Sequence[Callable[[Work], Finding]] = (
    queues,
    workers,
    silent,
    reaping,
    pruning,
    terms,
    statistics,
    webhooks,
    schedules,
    limits,
    tasks,
)
"""Those that look at what the queue says of itself, and find one thing each."""


def invariants(broken: Sequence[BrokenInvariant]) -> list[Finding]:
    """What must hold at every instant, counted again."""
    advice = "report it with the output of hwqueue db verify --json"
    found = [
        fail("invariants", f"{each.rule} does not hold for {each.subject}: {each.detail}", advice)
        for each in broken[:_SHOWN]
    ]
    if len(broken) > _SHOWN:
        found.append(fail("invariants", f"and {len(broken) - _SHOWN:,} more", advice))
    return found or [ok("invariants", "all hold")]


def extras(named: Sequence[str] | None = None) -> Finding:
    """Which extras are whole here, and which have parts that are missing or too old."""
    whole, wrong, level = [], [], info
    for extra, needed in _needed(requires("hwqueue") or [] if named is None else named).items():
        faults = [fault for each in needed if (fault := _fault(each))]
        if not faults:
            whole.append(extra)
        elif len(faults) < len(needed) or any(" is " in fault for fault in faults):
            wrong.append(f"{extra} ({', '.join(faults)})")
            level = warn if any(" is " in fault for fault in faults) else level
    if wrong:
        extra = wrong[0].partition(" ")[0]
        return level(
            "packages",
            f"incomplete extras: {'; '.join(wrong)}",
            f"pip install 'hwqueue[{extra}]', or nothing where that extra is not used",
        )
    return ok("packages", f"hwqueue {installed_version('hwqueue')} with {', '.join(whole)}")


def _needed(lines: Sequence[str]) -> Mapping[str, list[Requirement]]:
    """What each extra needs itself, other extras left out."""
    found: dict[str, list[Requirement]] = {}
    for each in map(Requirement, lines):
        if each.marker is None or each.name == "hwqueue":
            continue
        _, _, extra = str(each.marker).rpartition("extra == ")
        found.setdefault(extra.strip("\"'()"), []).append(each)
    return {extra: found[extra] for extra in sorted(found.keys() - _NOT_FOR_USE)}


def _fault(needed: Requirement) -> str | None:
    """What is wrong with a package that is needed."""
    try:
        there = installed_version(needed.name)
    except PackageNotFoundError:
        return f"no {needed.name}"
    if not needed.specifier.contains(there, prereleases=True):
        return f"{needed.name} is {there}, needed is {needed.specifier}"
    return None


def _states(nodes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in nodes.items() if count)


def _some(count: int, names: Sequence[str]) -> str:
    """A number of names of which a few are said: `3 (a, b, c)`."""
    more = ", ..." if count > _SHOWN else ""
    return f"{count} ({', '.join(names[:_SHOWN])}{more})"
