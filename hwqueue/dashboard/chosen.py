"""Actions on several leases: ask first, then one after the other, and say what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg
from psycopg_pool import PoolTimeout
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hwqueue.client import AsyncClient
from hwqueue.dashboard.action import verb_of
from hwqueue.dashboard.actions import acting
from hwqueue.dashboard.auth import Viewer
from hwqueue.dashboard.csrf import read_form_lists
from hwqueue.dashboard.ids import as_id
from hwqueue.dashboard.reads import Reads, reads
from hwqueue.dashboard.render import Links, page
from hwqueue.dashboard.sign_in import here
from hwqueue.errors import BadArgument, HwqueueError
from hwqueue.text import number, plural
from hwqueue.types import LeaseState

MOST = 200  # the longest page of the list


@dataclass(frozen=True, slots=True)
class ChosenAction:
    """A verb. effects: what it does to leases of some states; to those of others it does nothing.

    do: returns the state of the lease after it. done: of the leases that it was done to.
    """

    name: str
    effects: Sequence[tuple[frozenset[str], str]]
    do: Callable[[AsyncClient, UUID, str | None], Awaitable[LeaseState]]
    done: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one of them. refused: why nothing did; None: it was done."""

    lease_id: UUID
    state: str
    refused: str | None = None


ACTIONS: Mapping[str, ChosenAction] = {
    "cancel": ChosenAction(
        "Cancel",
        (
            (
                frozenset({"scheduled", "pending"}),
                "will not run; can be requeued as long as they are kept.",
            ),
            (
                frozenset({"claimed"}),
                "run now: their workers are asked to stop at the next heartbeat, and until then"
                " they keep their room.",
            ),
            (frozenset({"cancelled"}), "are cancelled already."),
        ),
        lambda client, lease_id, reason: client.cancel_lease(lease_id, reason=reason),
        "cancelled, or asked to stop",
    ),
    "requeue": ChosenAction(
        "Requeue",
        (
            (
                frozenset({"failed", "cancelled"}),
                "become claimable again, with all their attempts to come.",
            ),
        ),
        lambda client, lease_id, _: client.requeue_lease(lease_id),
        "requeued",
    ),
}


async def many(request: Request) -> Response:
    """Ask what is to become of the leases that were chosen; asked and answered, do it."""
    who = acting(request)
    verb, action = verb_of(request, ACTIONS)
    fields = await read_form_lists(request)
    leases = _chosen(fields.get("lease", []))
    back = here(Links(request), fields.get("back", [""])[-1])
    if "sure" not in fields:
        return await _ask(request, verb, leases, back)
    reason = fields.get("reason", [""])[-1].strip() or None
    outcomes = await _each(reads(request), who, action, leases, reason)
    done = [each for each in outcomes if each.refused is None]
    of_all = f"{number(len(done))} of {plural(len(outcomes), 'lease')}"
    return page(
        request,
        "many_done.html",
        f"{of_all} {action.done}",
        live=0,
        done=done,
        refused=[each for each in outcomes if each.refused is not None],
        back=back,
    )


def _chosen(texts: Sequence[str]) -> list[UUID]:
    """The leases of a form, each once. Raises: BadArgument, LeaseNotFound."""
    if not texts:
        raise BadArgument("no lease was chosen", hint="tick those that you mean")
    if len(texts) > MOST:
        raise BadArgument(f"these are more than {MOST} leases", hint="choose fewer at a time")
    return list(dict.fromkeys(as_id("lease", text) for text in texts))


async def _ask(request: Request, verb: str, leases: Sequence[UUID], back: str) -> Response:
    states = await reads(request).states(leases)
    action, counts = ACTIONS[verb], Counter(states.values())
    lines, known = [], frozenset[str]()
    for of, effect in action.effects:
        known |= of
        if count := sum(counts[state] for state in of):
            lines.append((count, effect))
    if rest := {state: count for state, count in counts.items() if state not in known}:
        told = ", ".join(f"{count} {state}" for state, count in sorted(rest.items()))
        lines.append((sum(rest.values()), f"will refuse, and stay as they are: {told}."))
    if gone := len(leases) - len(states):
        lines.append((gone, "are not there any more."))
    return page(
        request,
        "many.html",
        f"{action.name} {plural(len(leases), 'lease')}?",
        live=0,
        verb=verb,
        button=f"{action.name} {plural(len(leases), 'lease')}",
        lines=lines,
        leases=leases,
        back=back,
    )


async def _each(
    source: Reads, who: Viewer, action: ChosenAction, leases: Sequence[UUID], reason: str | None
) -> list[Outcome]:
    """Every lease in a transaction of its own: one that refuses does not keep back the others."""
    outcomes: list[Outcome] = []
    for lease_id in leases:
        try:
            async with source.acting(who.actor) as client:
                state = await action.do(client, lease_id, reason)
            outcomes.append(Outcome(lease_id, state))
        except HwqueueError as error:
            told = str(error).removeprefix(f"lease {lease_id} ")
            outcomes.append(Outcome(lease_id, "refused", told))
        except (psycopg.Error, PoolTimeout):
            lost = "the database did not answer: it may have been done, or not"
            outcomes.append(Outcome(lease_id, "unknown", lost))
            break
    rest = leases[len(outcomes) :]
    source.forget()
    return outcomes + [Outcome(each, "not tried", "it was not tried any more") for each in rest]


ROUTES = [Route("/do-many/{verb}", many, methods=["POST"])]
