"""Why leases stay pending: `match_nodes` judges every shape of pending job on every node."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hwqueue.client import AsyncClient
from hwqueue.demo.ledger import Ledger
from hwqueue.demo.mapping import TASK, placement
from hwqueue.demo.model import Job
from hwqueue.demo.report import PendingReason
from hwqueue.types import NodeMatch

# A fit that appeared between the last claim and this question; a drained backlog has none.
CLAIMABLE = "claimable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason that holds for one shape of job; see `PendingReason`."""

    code: str
    permanent: bool
    message: str


async def pending_reasons(client: AsyncClient, ledger: Ledger, queue: str) -> tuple[PendingReason, ...]:
    """Count waiting leases by what keeps them waiting, most leases first."""
    leases: Counter[Verdict] = Counter()
    examples: dict[Verdict, str] = {}
    alike: dict[str, list[Job]] = defaultdict(list)
    for job in ledger.waiting.values():
        alike[json.dumps(placement(job))].append(job)
    for jobs in sorted(alike.values(), key=len, reverse=True):
        matches = await client.match_nodes(placement(jobs[0]), queue=queue, task=TASK)
        verdict = verdict_of(matches)
        leases[verdict] += len(jobs)
        examples.setdefault(verdict, describe(jobs[0]))
    return tuple(
        PendingReason(verdict.code, verdict.permanent, count, examples[verdict], verdict.message)
        for verdict, count in leases.most_common()
    )


async def why_waiting(client: AsyncClient, job: Job, queue: str) -> str:
    """Say in one line what keeps one job waiting."""
    verdict = verdict_of(await client.match_nodes(placement(job), queue=queue, task=TASK))
    return f"{verdict.code}: {verdict.message}"


def describe(job: Job) -> str:
    """Say in one line what a job asks for."""
    parts = [f"{job.cpu_milli / 1000:g} cores", f"{job.memory_mib / 1024:.4g} GiB"]
    if job.num_gpu:
        parts.insert(0, f"{job.num_gpu * job.gpu_milli / 1000:g} GPU")
    if job.gpu_models:
        parts.append("|".join(job.gpu_models))
    parts += [f"{key}={value}" for key, value in job.tags.items()]
    return ", ".join(parts)


def verdict_of(matches: Sequence[NodeMatch]) -> Verdict:
    """Pick the reason that holds nearly everywhere among the nodes that come closest."""
    if any(match.eligible for match in matches):
        return Verdict(CLAIMABLE, False, "a node could take it now")
    could = [match for match in matches if not any(reason.permanent for reason in match.reasons)]
    seen = Counter(
        (reason.code, reason.message)
        for match in could or matches
        for reason in match.reasons
        if could or reason.permanent
    )
    if not seen:
        return Verdict("no_node", True, "no node is registered")
    codes: Counter[str] = Counter()
    for (code, _), count in seen.items():
        codes[code] += count
    code = codes.most_common(1)[0][0]
    message = next(text for (found, text), _ in seen.most_common() if found == code)
    return Verdict(code, not could, message)
