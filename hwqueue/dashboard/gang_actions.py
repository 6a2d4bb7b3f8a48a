"""What operators do with gangs."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.dashboard.action import Action, Fields, Question
from hwqueue.dashboard.reads import Reads
from hwqueue.text import plural


async def _ask_cancel(source: Reads, gang_id: str) -> Question:
    gang = await source.gang(UUID(gang_id))
    claimed = sum(each.state == "claimed" for each in gang.members)
    booked = sum(each.earmarked or each.reserved_until is not None for each in gang.members)
    running = claimed - booked
    waiting = booked + sum(each.state == "scheduled" for each in gang.members)
    stops = (
        f"{plural(running, 'member runs and is', 'members run and are')} asked to stop, by the next"
        " heartbeat at the latest."
    )
    words = ("other ends", "others end") if running else ("member ends", "members end")
    ends = f"{plural(waiting, *words)} within about a second."
    told = [*([stops] if running else []), *([ends] if waiting else [])]
    return Question(
        f"Cancel this gang of {plural(gang.size, 'lease')}?",
        (*told, "What has completed stays."),
        "Cancel the gang",
        ("reason",),
    )


async def _cancel(client: AsyncClient, gang_id: str, fields: Fields) -> None:
    reason = fields.get("reason", "").strip() or None
    await client.cancel_gang(UUID(gang_id), reason=reason)


ACTIONS: Mapping[str, Action] = {
    "cancel-gang": Action("gang", _ask_cancel, _cancel, "Cancelled, or being cancelled."),
}
