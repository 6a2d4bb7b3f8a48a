"""Actions on all leases that a filter means: a preview, then a page of leases in each request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hwqueue.dashboard.action import typed, verb_of
from hwqueue.dashboard.actions import acting
from hwqueue.dashboard.csrf import read_form
from hwqueue.dashboard.forms import FieldError, pairs
from hwqueue.dashboard.reads import find_node, reads
from hwqueue.dashboard.render import Links, page
from hwqueue.errors import BadArgument
from hwqueue.text import number, plural
from hwqueue.types import LeaseChanges, LeaseFilter, LeaseState

PAGE_SIZE = 500
_MOST_PAGES = 5  # of 10,000 rows, that a preview counts
FILTERS = ("state", "queue", "task", "tenant", "service", "node", "label", "error")
_WAITING = (LeaseState.SCHEDULED, LeaseState.PENDING)
_DEAD = (LeaseState.FAILED, LeaseState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FilterAction:
    """A verb. states: what it can change; usual: what it changes where the filter
    has no state; None: all of them.

    call: of `AsyncClient.change_page`. changes: of a form. field: what the form asks for.
    """

    name: str
    call: Literal["cancel", "requeue", "update", "delete"]
    states: Sequence[LeaseState]
    effect: str
    done: str
    field: Literal["reason", "priority", "to"] | None = None
    changes: Callable[[Mapping[str, str]], LeaseChanges] | None = None
    usual: Sequence[LeaseState] | None = None


def _priority(fields: Mapping[str, str]) -> LeaseChanges:
    """The priority of a form. Raises: BadArgument."""
    try:
        return {"priority": int(fields.get("priority", ""))}
    except ValueError:
        raise BadArgument(
            "the priority must be a whole number", hint="from -32768 to 32767; higher runs first"
        ) from None


def _move(fields: Mapping[str, str]) -> LeaseChanges:
    """The queue of a form. Raises: BadArgument."""
    if not (queue := typed(fields, "to")):
        raise BadArgument("no queue was chosen", hint="choose the queue to move them to")
    return {"queue": queue}


ACTIONS: Mapping[str, FilterAction] = {
    "cancel": FilterAction(
        "Cancel",
        "cancel",
        (*_WAITING, LeaseState.CLAIMED),
        "Those that wait will not run. Of those that run the workers are asked to stop at the next"
        " heartbeat.",
        "cancelled, or asked to stop",
        "reason",
    ),
    "requeue": FilterAction(
        "Requeue",
        "requeue",
        _DEAD,
        "They become claimable again, with all their attempts to come.",
        "requeued",
        usual=(LeaseState.FAILED,),
    ),
    "delete": FilterAction(
        "Delete",
        "delete",
        (LeaseState.COMPLETED, *_DEAD),
        "They go with their results and attempts. Nothing brings them back.",
        "deleted",
    ),
    "priority": FilterAction(
        "Change the priority of",
        "update",
        _WAITING,
        "They keep their attempts and get a new place in line.",
        "changed",
        "priority",
        _priority,
    ),
    "move": FilterAction(
        "Move",
        "update",
        _WAITING,
        "Attempts, retries and timeouts that they do not say themselves are the new queue's. One"
        " whose key is taken there, or whose params are too large for it, stays and is skipped.",
        "moved",
        "to",
        _move,
    ),
}


def offered(filters: Mapping[str, str]) -> list[tuple[str, str]]:
    """The verbs that fit the filter of a list, each with its name; none without a queue."""
    if not filters.get("queue"):
        return []
    return [
        (verb, action.name)
        for verb, action in ACTIONS.items()
        if not filters.get("state") or filters["state"] in action.states
    ]


def wanted_of(filters: Mapping[str, str]) -> LeaseFilter:
    """The filter of the functions, but for its queue and node. Raises: BadArgument."""
    return {
        "state": filters.get("state") or None,
        "task": filters.get("task") or None,
        "tenant": filters.get("tenant") or None,
        "service_id": filters.get("service") or None,
        "labels": dict(_labels(filters)) or None,
        "error_type": filters.get("error") or None,
    }


def _labels(filters: Mapping[str, str]) -> list[tuple[str, str]]:
    """The labels of a filter, `film=7, app=x`. Raises: BadArgument."""
    try:
        return pairs("\n".join(filters.get("label", "").split(",")), "label")
    except FieldError as error:
        raise BadArgument(str(error), hint="write labels as film=7, app=x") from None


def in_words(filters: Mapping[str, str], states: Sequence[str]) -> str:
    """A filter in words: `of queue renders, pending or scheduled, of task draw`."""
    given = [f"of queue {filters['queue']}", " or ".join(states)]
    given += [
        f"{words} {filters[name]}"
        for name, words in (
            ("task", "of task"),
            ("tenant", "of tenant"),
            ("service", "of service"),
            ("node", "running on node"),
            ("error", "that ended with the error"),
        )
        if filters.get(name)
    ]
    given += [f"with label {key}={value}" for key, value in _labels(filters)]
    return ", ".join(given)


async def ask(request: Request) -> Response:
    """What the action would do, to how many; in a dialog, or without scripts as a page."""
    acting(request)
    verb, action = verb_of(request, ACTIONS)
    filters = _filters(request.query_params)
    states = _states(action, filters)
    source = reads(request)
    wanted = wanted_of(filters) | {"state": None}
    count, is_all = await source.count_leases(
        filters["queue"], states, wanted, filters["node"] or None, most_pages=_MOST_PAGES
    )
    queues = await source.queues()
    many = f"{plural(count, 'lease')}{'' if is_all else ' or more'}"
    return page(
        request,
        "filter_ask.html",
        f"{action.name} all that match?",
        live=0,
        verb=verb,
        action=action,
        count=count,
        many=many,
        words=in_words(filters, states),
        button=f"{action.name} {many}",
        filters=filters,
        queues=[each.queue for each in queues.value if each.queue != filters["queue"]],
        back=Links(request)("leases", **filters),
    )


async def act(request: Request) -> Response:
    """Change one page of the leases, and offer the next one."""
    who = acting(request)
    verb, action = verb_of(request, ACTIONS)
    fields = await read_form(request)
    filters = _filters(fields)
    states = _states(action, filters)
    source = reads(request)
    wanted = wanted_of(filters) | {"state": filters["state"] or None}
    own: dict[str, Any] = {}
    if action.changes is not None:
        own["changes"] = action.changes(fields)
    if action.field == "reason":
        own["reason"] = typed(fields, "reason")
    async with source.acting(who.actor) as client:
        if filters["node"]:
            wanted["node_id"] = (await find_node(client, filters["node"])).node_id
        done = await client.change_page(
            action.call, filters["queue"], cursor=_cursor(fields), page_size=PAGE_SIZE, **own, **wanted
        )
    source.forget()
    changed = _number(fields, "changed") + len(done.changed)
    skipped = _number(fields, "skipped") + len(done.skipped)
    return page(
        request,
        "filter_done.html",
        f"{number(changed)} {action.done}{'' if done.next_cursor is None else ' so far'}",
        live=0,
        verb=verb,
        filters=filters,
        words=in_words(filters, states),
        of=fields.get("of", "")[:40],
        changed=changed,
        skipped=skipped,
        cursor=None if done.next_cursor is None else json.dumps(done.next_cursor),
        fields={name: fields.get(name, "") for name in ("reason", "priority", "to")},
        moves=verb == "move",
        back=Links(request)("leases", **filters),
    )


def _filters(fields: Mapping[str, str]) -> dict[str, str]:
    """The filter of a list, or of a form. Raises: BadArgument, without a queue."""
    filters = {name: fields.get(name, "").strip() for name in FILTERS}
    if not filters["queue"]:
        raise BadArgument(
            "no queue is named", hint="filter the list by a queue: all that match are of one queue"
        )
    return filters


def _states(action: FilterAction, filters: Mapping[str, str]) -> Sequence[str]:
    """The states of the leases that the action means. Raises: BadArgument."""
    if not filters["state"]:
        return [str(state) for state in action.usual or action.states]
    if filters["state"] not in action.states:
        raise BadArgument(
            f"it cannot be done to leases that are {filters['state'][:20]}",
            hint=f"choose {' or '.join(action.states)}",
        )
    return [filters["state"]]


def _cursor(fields: Mapping[str, str]) -> dict[str, Any] | None:
    """The cursor of a form; None: the first page. Raises: BadArgument."""
    if not fields.get("cursor"):
        return None
    try:
        found = json.loads(fields["cursor"])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadArgument("the form is damaged", hint="go back to the list and begin again")
    return found


def _number(fields: Mapping[str, str], name: str) -> int:
    """How many were done by the pages before, as the form says."""
    given = fields.get(name, "")
    return int(given) if given.isdecimal() and len(given) < 12 else 0


ROUTES = [
    Route("/do-all/{verb}", ask, methods=["GET"]),
    Route("/do-all/{verb}", act, methods=["POST"]),
]
