"""Why leases stay pending: the queue's own explanation of one lease of each shape of job."""

from __future__ import annotations

import json
from collections import defaultdict
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.demo.ledger import Ledger
from hwqueue.demo.mapping import placement
from hwqueue.demo.report import PendingReason


async def pending_reasons(client: AsyncClient, ledger: Ledger) -> tuple[PendingReason, ...]:
    """Count waiting leases by what keeps them waiting, most leases first."""
    alike: dict[str, list[UUID]] = defaultdict(list)
    for lease_id, job in ledger.waiting.items():
        alike[json.dumps(placement(job))].append(lease_id)
    found: dict[str, PendingReason] = {}
    for leases in sorted(alike.values(), key=len, reverse=True):
        why = await client.explain_lease(leases[0])
        before = found.get(why.headline)
        found[why.headline] = PendingReason(
            code=why.code,
            permanent=why.permanent,
            leases=len(leases) + (before.leases if before else 0),
            example=before.example if before else why.words,
            message=why.headline,
        )
    return tuple(sorted(found.values(), key=lambda reason: -reason.leases))
