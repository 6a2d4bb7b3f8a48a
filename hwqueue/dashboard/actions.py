"""What operators do from the pages: each asks first, and is put down to who did it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hwqueue.client import AsyncClient
from hwqueue.dashboard import limits as of_limits
from hwqueue.dashboard.action import Action, Fields, Question, typed, verb_of
from hwqueue.dashboard.auth import Viewer, viewer
from hwqueue.dashboard.csrf import read_form
from hwqueue.dashboard.ids import as_id
from hwqueue.dashboard.reads import Reads, find_node, reads, span_of
from hwqueue.dashboard.render import Links, page
from hwqueue.dashboard.runs import actions as of_runs
from hwqueue.errors import BadArgument
from hwqueue.server.problems import HTTPProblem
from hwqueue.text import number, plural
from hwqueue.types import FiredTime, Gang, Lease, Node, Taint

DRAIN_MINUTES = ("", "5", "15", "60", "240")
EFFECTS = ("no_schedule", "prefer_no_schedule", "no_execute")


def _running(count: int) -> str:
    return "Nothing runs" if count == 0 else f"{plural(count, 'lease runs', 'leases run')}"


async def _lease_and_node(source: Reads, lease_id: str) -> tuple[Lease, str]:
    """A lease, and the name of its node."""
    lease = await source.lease(lease_id)
    if lease.node_id is None:
        return lease, "its node"
    return lease, (await source.node_names()).value.get(lease.node_id, "its node")


def _ask_cancel(found: tuple[Lease, str]) -> Question:
    lease, node = found
    what = (
        f"It runs on {node}: its worker is asked to stop, by its next heartbeat at the latest,"
        " and until then it keeps its room."
        if lease.state == "claimed"
        else "It will not run. It can be requeued as long as it is kept."
    )
    return Question(f"Cancel this lease of task {lease.task_name}?", (what,), "Cancel the lease", ("reason",))


def _ask_untaint(node: Node) -> Question:
    keys = tuple(sorted({taint.key for taint in node.taints if taint.by == "operator"}))
    if not keys:
        raise BadArgument(f"{node.name} has no taint of an operator", hint="its own come from its worker")
    what = ("Leases that it kept off may run there again.",)
    return Question(f"Take a taint off {node.name}?", what, "Untaint", ("key",), keys)


def _ask_cancel_gang(gang: Gang) -> Question:
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


def _ask_backfill(times: Sequence[FiredTime]) -> Question:
    wanted = [f"{each.fire_at:%Y-%m-%d %H:%M} UTC" for each in times if each.outcome == "would_spawn"]
    what = ("Each spawns what it would have spawned then; those that have fired do not fire again.",)
    button = f"Backfill {plural(len(wanted), 'time')}"
    return Question(f"{button}?", what, button, things=tuple(("scheduled", each) for each in wanted))


async def _backfill(client: AsyncClient, subject: str, _: Fields) -> None:
    since, until, name = span_of(subject)
    await client.backfill_schedule(name, since, until, dry_run=False)


def _to_node(
    call: Callable[[AsyncClient, UUID, Fields], Awaitable[object]],
) -> Callable[[AsyncClient, str, Fields], Awaitable[object]]:
    """What is done to the node of a name."""

    async def do(client: AsyncClient, name: str, fields: Fields) -> object:
        return await call(client, (await find_node(client, name)).node_id, fields)

    return do


async def _drain(client: AsyncClient, node_id: UUID, fields: Fields) -> None:
    minutes = fields.get("deadline", "")
    if minutes not in DRAIN_MINUTES:
        raise BadArgument(f"{minutes[:20]!r} is no deadline", hint="choose one of the list")
    await client.drain_node(node_id, deadline=timedelta(minutes=int(minutes)) if minutes else None)


async def _taint(client: AsyncClient, node_id: UUID, fields: Fields) -> None:
    key, value = typed(fields, "key") or "", typed(fields, "value")
    await client.taint_node(node_id, Taint(key=key, value=value, effect=fields.get("effect", "")))


_NAMED: Mapping[str, tuple[Callable[[Reads, str], Awaitable[Any]], str]] = {
    "node": (Reads.node, "{0.name}"),
    "queue": (Reads.queue, "queue {0.queue}"),
    "webhook": (Reads.webhook, "webhook {0.name}"),
    "schedule": (Reads.schedule, "schedule {0.name}"),
}


def _named(
    subject: str,
    button: str,
    tell: Callable[[Any], tuple[str, ...]],
    do: Callable[[AsyncClient, Any, Fields], Awaitable[object]],
    done: str,
    *,
    fields: tuple[str, ...] = (),
    gone: str | None = None,
) -> Action[Any]:
    """An action on something with a name, whose question is its button; `tell`: what happens."""
    find, named = _NAMED[subject]

    def ask(found: Any) -> Question:
        return Question(f"{button} {named.format(found)}?", tell(found), button, fields)

    return Action(subject, find, ask, _to_node(do) if subject == "node" else do, done, gone)


ACTIONS: Mapping[str, Action[Any]] = {
    "cancel": Action(
        "lease",
        _lease_and_node,
        _ask_cancel,
        lambda client, lease_id, fields: client.cancel_lease(lease_id, reason=typed(fields, "reason")),
        "Cancelled, or asked to stop if it runs.",
    ),
    "requeue": Action(
        "lease",
        Reads.lease,
        lambda lease: Question(
            f"Requeue this lease of task {lease.task_name}?",
            (
                f"It is {lease.state} after {plural(lease.attempt, 'attempt')}; it becomes"
                f" claimable again with all {number(lease.max_attempts)} to come.",
            ),
            "Requeue",
        ),
        lambda client, lease_id, _: client.requeue_lease(lease_id),
        "Requeued.",
    ),
    "cordon": _named(
        "node",
        "Cordon",
        lambda node: (
            f"It gets no more claims. {_running(node.claims)} on it and may end in their own time.",
        ),
        lambda client, node_id, _: client.cordon_node(node_id),
        "Cordoned: it gets no more claims.",
    ),
    "uncordon": _named(
        "node",
        "Uncordon",
        lambda _: ("It may claim again at once.",),
        lambda client, node_id, _: client.uncordon_node(node_id),
        "Uncordoned: it may claim again.",
    ),
    "drain": _named(
        "node",
        "Drain",
        lambda node: (
            f"It gets no more claims. {_running(node.claims)} on it.",
            "With a deadline their workers are asked to stop by then; what is handed back can run"
            " elsewhere and uses up no attempt.",
        ),
        _drain,
        "Draining: it gets no more claims.",
        fields=("deadline",),
    ),
    "deregister": _named(
        "node",
        "Deregister",
        lambda node: (
            f"It leaves the fleet. {_running(node.claims)} on it: claims end at once, and each"
            " uses up an attempt.",
            "Its attestations end. A worker that still runs there registers it again.",
        ),
        lambda client, node_id, _: client.deregister_node(node_id),
        "Deregistered.",
        gone="fleet",
    ),
    "taint": _named(
        "node",
        "Taint",
        lambda node: (
            f"Leases that do not tolerate the taint stay off it. {_running(node.claims)} on it:"
            " with no_execute they are asked to stop, too.",
        ),
        _taint,
        "Tainted.",
        fields=("taint",),
    ),
    "untaint": Action(
        "node",
        Reads.node,
        _ask_untaint,
        _to_node(lambda client, node_id, fields: client.untaint_node(node_id, fields.get("key", ""))),
        "The taint is off.",
    ),
    "pause": _named(
        "queue",
        "Pause",
        lambda row: (
            f"Nothing of it is granted until it is resumed: {number(row.pending)} pending.",
            f"{_running(row.claimed)} and may end in their own time; spawns go on.",
        ),
        lambda client, queue, _: client.pause_queue(queue),
        "Paused: nothing of it is granted.",
    ),
    "resume": _named(
        "queue",
        "Resume",
        lambda row: (f"Its {plural(row.pending, 'pending lease')} may be claimed at once.",),
        lambda client, queue, _: client.resume_queue(queue),
        "Resumed.",
    ),
    "pause-webhook": _named(
        "webhook",
        "Pause",
        lambda row: (f"Nothing is sent to it until it is resumed: {number(row.waiting)} waiting.",),
        lambda client, webhook, _: client.pause_webhook(webhook),
        "Paused: nothing is sent to it.",
    ),
    "resume-webhook": _named(
        "webhook",
        "Resume",
        lambda row: (
            f"{plural(row.waiting, 'delivery', 'deliveries')} may be sent at once, and what"
            " happened meanwhile.",
        ),
        lambda client, webhook, _: client.resume_webhook(webhook),
        "Resumed.",
    ),
    "test-webhook": _named(
        "webhook",
        "Test",
        lambda _: ("A request of type webhook_test is sent to its receiver.",),
        lambda client, webhook, _: client.test_webhook(webhook),
        "A test is to be sent.",
    ),
    "redeliver": Action(
        "webhook",
        Reads.webhook,
        lambda row: Question(
            f"Redeliver to webhook {row.name}?",
            ("Up to 1,000 dead deliveries, the oldest first, are sent again from the first attempt.",),
            "Redeliver",
        ),
        lambda client, webhook, _: client.redeliver(webhook),
        "The dead ones are sent again.",
    ),
    "pause-schedule": _named(
        "schedule",
        "Pause",
        lambda _: ("Nothing fires until it is resumed; what is due meanwhile does not fire then.",),
        lambda client, schedule, fields: client.pause_schedule(schedule, typed(fields, "reason")),
        "Paused: nothing fires.",
        fields=("reason",),
    ),
    "resume-schedule": _named(
        "schedule",
        "Resume",
        lambda _: ("It fires from now on; what was due meanwhile does not.",),
        lambda client, schedule, _: client.resume_schedule(schedule),
        "Resumed.",
    ),
    "trigger-schedule": _named(
        "schedule",
        "Run now",
        lambda row: (f"It spawns {row.spec.get('task') or row.spec.get('workflow')} once, at once.",),
        lambda client, schedule, _: client.trigger_schedule(schedule),
        "Fired: what came of it is below.",
    ),
    "backfill": Action(
        "times",
        Reads.backfill,
        _ask_backfill,
        _backfill,
        "Fired: what came of it is below.",
    ),
    "cancel-gang": Action(
        "gang",
        Reads.gang,
        _ask_cancel_gang,
        lambda client, gang_id, fields: client.cancel_gang(gang_id, reason=typed(fields, "reason")),
        "Cancelled, or being cancelled.",
    ),
    **of_limits.ACTIONS,
    **of_runs.ACTIONS,
}
_PAGES = {
    "lease": "leases",
    "node": "nodes",
    "queue": "queues",
    "webhook": "webhooks",
    "schedule": "schedules",
    "times": "schedules",
    "run": "runs",
    "step": "runs",
    "gang": "gangs",
    "lane": "limits",
}


async def ask(request: Request) -> Response:
    """The question before an action: in a dialog, or without scripts as a page."""
    verb, action = verb_of(request, ACTIONS)
    acting(request, is_for_admins=action.is_for_admins)
    subject = request.query_params.get(action.subject, "")
    question = await action.question(reads(request), _checked(action, subject))
    return page(
        request,
        "ask.html",
        question.headline,
        live=0,
        verb=verb,
        kind=action.subject,
        subject=subject,
        question=question,
        minutes=DRAIN_MINUTES,
        effects=EFFECTS,
        spans=of_limits.SPANS,
        back=Links(request)(*_page_of(action, subject)),
    )


async def act(request: Request) -> Response:
    """Do it in the name of who is signed in, and go back to where it was asked."""
    verb, action = verb_of(request, ACTIONS)
    who = acting(request, is_for_admins=action.is_for_admins)
    fields = await read_form(request)
    subject = fields.get("subject", "")
    source = reads(request)
    async with source.acting(who.actor) as client:
        await action.do(client, _checked(action, subject), fields)
    source.forget()
    back = (action.gone,) if action.gone else _page_of(action, subject)
    return RedirectResponse(Links(request)(*back, done=verb), 303)


def acting(request: Request, *, is_for_admins: bool = False) -> Viewer:
    """Who may act. Raises: HTTPProblem, if they may only look, or it is for admins."""
    who = viewer(request)
    if is_for_admins and not who.may_administer:
        raise HTTPProblem(403, f"the role {who.role} may not do this", hint="it takes the role admin")
    if not who.may_act:
        raise HTTPProblem(
            403,
            f"the role {who.role} sees everything and changes nothing",
            hint="it takes the role operator or admin",
        )
    return who


def _page_of(action: Action[Any], subject: str) -> tuple[str, str]:
    """The page of what an action is done to; of a step, that of its run, of a lane, its limit's.

    Raises: BadArgument.
    """
    if action.subject == "step":
        subject = subject.partition(":")[0]
    elif action.subject == "times":
        subject = span_of(subject)[2]
    elif action.subject == "lane":
        subject = of_limits.lane_of(subject)[0]
    return _PAGES[action.subject], subject


def _checked(action: Action[Any], subject: str) -> str:
    """What an action is done to. Raises: LeaseNotFound, RunNotFound, GangNotFound."""
    if action.subject in ("lease", "gang"):
        return str(as_id(action.subject, subject))
    if action.subject in ("run", "step"):
        run, colon, step = subject.partition(":")
        return f"{as_id('run', run)}{colon}{step}"
    return subject


ROUTES = [
    Route("/do/{verb}", ask, methods=["GET"]),
    Route("/do/{verb}", act, methods=["POST"]),
]
