"""What operators do from the pages: each asks first, and is put down to who did it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hwqueue.client import AsyncClient
from hwqueue.dashboard import gang_actions
from hwqueue.dashboard.action import Action, Fields, Question
from hwqueue.dashboard.auth import Viewer, viewer
from hwqueue.dashboard.csrf import read_form
from hwqueue.dashboard.ids import as_gang_id, as_lease_id, as_run_id
from hwqueue.dashboard.reads import Reads, find_node, reads
from hwqueue.dashboard.render import Links, page
from hwqueue.dashboard.runs import actions as of_runs
from hwqueue.errors import BadArgument
from hwqueue.server.problems import HTTPProblem
from hwqueue.text import number, plural
from hwqueue.types import Taint

DRAIN_MINUTES = ("", "5", "15", "60", "240")
EFFECTS = ("no_schedule", "prefer_no_schedule", "no_execute")


async def _ask_cancel(source: Reads, lease_id: str) -> Question:
    lease = await source.lease(UUID(lease_id))
    if lease.state == "claimed":
        names = await source.node_names()
        node = names.value.get(lease.node_id, "its node") if lease.node_id else "its node"
        what = (
            f"It runs on {node}: its worker is asked to stop, by its next heartbeat at the latest,"
            " and until then it keeps its room.",
        )
    else:
        what = ("It will not run. It can be requeued as long as it is kept.",)
    return Question(f"Cancel this lease of task {lease.task_name}?", what, "Cancel the lease", ("reason",))


async def _ask_requeue(source: Reads, lease_id: str) -> Question:
    lease = await source.lease(UUID(lease_id))
    return Question(
        f"Requeue this lease of task {lease.task_name}?",
        (
            f"It is {lease.state} after {plural(lease.attempt, 'attempt')}; it becomes"
            f" claimable again with all {number(lease.max_attempts)} to come.",
        ),
        "Requeue",
    )


async def _ask_cordon(source: Reads, node: str) -> Question:
    found = await source.node(node)
    return Question(
        f"Cordon {node}?",
        (f"It gets no more claims. {_running(found.claims)} on it and may end in their own time.",),
        "Cordon",
    )


async def _ask_uncordon(source: Reads, node: str) -> Question:
    await source.node(node)
    return Question(f"Uncordon {node}?", ("It may claim again at once.",), "Uncordon")


async def _ask_drain(source: Reads, node: str) -> Question:
    found = await source.node(node)
    return Question(
        f"Drain {node}?",
        (
            f"It gets no more claims. {_running(found.claims)} on it.",
            "With a deadline their workers are asked to stop by then; what is handed back can run"
            " elsewhere and uses up no attempt.",
        ),
        "Drain",
        ("deadline",),
    )


async def _ask_deregister(source: Reads, node: str) -> Question:
    found = await source.node(node)
    return Question(
        f"Deregister {node}?",
        (
            f"It leaves the fleet. {_running(found.claims)} on it: claims end at once, and each"
            " uses up an attempt.",
            "Its attestations end. A worker that still runs there registers it again.",
        ),
        "Deregister",
    )


async def _ask_taint(source: Reads, node: str) -> Question:
    found = await source.node(node)
    return Question(
        f"Taint {node}?",
        (
            f"Leases that do not tolerate the taint stay off it. {_running(found.claims)} on it:"
            " with no_execute they are asked to stop, too.",
        ),
        "Taint",
        ("taint",),
    )


async def _ask_untaint(source: Reads, node: str) -> Question:
    found = await source.node(node)
    keys = tuple(sorted({taint.key for taint in found.taints if taint.by == "operator"}))
    if not keys:
        raise BadArgument(f"{node} has no taint of an operator", hint="its own come from its worker")
    return Question(
        f"Take a taint off {node}?",
        ("Leases that it kept off may run there again.",),
        "Untaint",
        ("key",),
        keys,
    )


async def _ask_pause(source: Reads, queue: str) -> Question:
    row = await source.queue(queue)
    return Question(
        f"Pause queue {queue}?",
        (
            f"Nothing of it is granted until it is resumed: {number(row.pending)} pending.",
            f"{_running(row.claimed)} and may end in their own time; spawns go on.",
        ),
        "Pause",
    )


async def _ask_resume(source: Reads, queue: str) -> Question:
    row = await source.queue(queue)
    return Question(
        f"Resume queue {queue}?",
        (f"Its {plural(row.pending, 'pending lease')} may be claimed at once.",),
        "Resume",
    )


async def _ask_pause_webhook(source: Reads, webhook: str) -> Question:
    row = await source.webhook(webhook)
    return Question(
        f"Pause webhook {webhook}?",
        (f"Nothing is sent to it until it is resumed: {number(row.waiting)} waiting.",),
        "Pause",
    )


async def _ask_resume_webhook(source: Reads, webhook: str) -> Question:
    row = await source.webhook(webhook)
    return Question(
        f"Resume webhook {webhook}?",
        (
            f"{plural(row.waiting, 'delivery', 'deliveries')} may be sent at once, and what"
            " happened meanwhile.",
        ),
        "Resume",
    )


async def _ask_test_webhook(source: Reads, webhook: str) -> Question:
    await source.webhook(webhook)
    return Question(
        f"Test webhook {webhook}?",
        ("A request of type webhook_test is sent to its receiver.",),
        "Test",
    )


async def _ask_redeliver(source: Reads, webhook: str) -> Question:
    await source.webhook(webhook)
    return Question(
        f"Redeliver to webhook {webhook}?",
        ("Up to 1,000 dead deliveries, the oldest first, are sent again from the first attempt.",),
        "Redeliver",
    )


def _running(count: int) -> str:
    return "Nothing runs" if count == 0 else f"{plural(count, 'lease runs', 'leases run')}"


async def _cancel(client: AsyncClient, lease_id: str, fields: Fields) -> None:
    reason = fields.get("reason", "").strip() or None
    await client.cancel_lease(UUID(lease_id), reason=reason)


async def _requeue(client: AsyncClient, lease_id: str, fields: Fields) -> None:
    await client.requeue_lease(UUID(lease_id))


async def _cordon(client: AsyncClient, node: str, fields: Fields) -> None:
    await client.cordon_node(await _node_id(client, node))


async def _uncordon(client: AsyncClient, node: str, fields: Fields) -> None:
    await client.uncordon_node(await _node_id(client, node))


async def _drain(client: AsyncClient, node: str, fields: Fields) -> None:
    minutes = fields.get("deadline", "")
    if minutes not in DRAIN_MINUTES:
        raise BadArgument(f"{minutes[:20]!r} is no deadline", hint="choose one of the list")
    await client.drain_node(
        await _node_id(client, node), deadline=timedelta(minutes=int(minutes)) if minutes else None
    )


async def _deregister(client: AsyncClient, node: str, fields: Fields) -> None:
    await client.deregister_node(await _node_id(client, node))


async def _taint(client: AsyncClient, node: str, fields: Fields) -> None:
    taint = Taint(
        key=fields.get("key", "").strip(),
        value=fields.get("value", "").strip() or None,
        effect=fields.get("effect", ""),
    )
    await client.taint_node(await _node_id(client, node), taint)


async def _untaint(client: AsyncClient, node: str, fields: Fields) -> None:
    node_id = await _node_id(client, node)
    await client.untaint_node(node_id, fields.get("key", ""))


async def _pause(client: AsyncClient, queue: str, fields: Fields) -> None:
    await client.pause_queue(queue)


async def _resume(client: AsyncClient, queue: str, fields: Fields) -> None:
    await client.resume_queue(queue)


async def _pause_webhook(client: AsyncClient, webhook: str, fields: Fields) -> None:
    await client.pause_webhook(webhook)


async def _resume_webhook(client: AsyncClient, webhook: str, fields: Fields) -> None:
    await client.resume_webhook(webhook)


async def _test_webhook(client: AsyncClient, webhook: str, fields: Fields) -> None:
    await client.test_webhook(webhook)


async def _redeliver(client: AsyncClient, webhook: str, fields: Fields) -> None:
    await client.redeliver(webhook)


async def _node_id(client: AsyncClient, name: str) -> UUID:
    return (await find_node(client, name)).node_id


ACTIONS: Mapping[str, Action] = {
    "cancel": Action("lease", _ask_cancel, _cancel, "Cancelled, or asked to stop if it runs."),
    "requeue": Action("lease", _ask_requeue, _requeue, "Requeued."),
    "cordon": Action("node", _ask_cordon, _cordon, "Cordoned: it gets no more claims."),
    "uncordon": Action("node", _ask_uncordon, _uncordon, "Uncordoned: it may claim again."),
    "drain": Action("node", _ask_drain, _drain, "Draining: it gets no more claims."),
    "deregister": Action("node", _ask_deregister, _deregister, "Deregistered.", gone="fleet"),
    "taint": Action("node", _ask_taint, _taint, "Tainted."),
    "untaint": Action("node", _ask_untaint, _untaint, "The taint is off."),
    "pause": Action("queue", _ask_pause, _pause, "Paused: nothing of it is granted."),
    "resume": Action("queue", _ask_resume, _resume, "Resumed."),
    "pause-webhook": Action("webhook", _ask_pause_webhook, _pause_webhook, "Paused: nothing is sent to it."),
    "resume-webhook": Action("webhook", _ask_resume_webhook, _resume_webhook, "Resumed."),
    "test-webhook": Action("webhook", _ask_test_webhook, _test_webhook, "A test is to be sent."),
    "redeliver": Action("webhook", _ask_redeliver, _redeliver, "The dead ones are sent again."),
    **of_runs.ACTIONS,
    **gang_actions.ACTIONS,
}
_PAGES = {
    "lease": "leases",
    "node": "nodes",
    "queue": "queues",
    "webhook": "webhooks",
    "run": "runs",
    "step": "runs",
    "gang": "gangs",
}


async def ask(request: Request) -> Response:
    """The question before an action: in a dialog, or without scripts as a page."""
    acting(request)
    verb, action = _verb(request)
    subject = request.query_params.get(action.subject, "")
    question = await action.ask(reads(request), _checked(action, subject))
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
        back=Links(request)(*_page_of(action, subject)),
    )


async def act(request: Request) -> Response:
    """Do it in the name of who is signed in, and go back to where it was asked."""
    who = acting(request)
    verb, action = _verb(request)
    fields = await read_form(request)
    subject = fields.get("subject", "")
    source = reads(request)
    async with source.acting(who.actor) as client:
        await action.do(client, _checked(action, subject), fields)
    source.forget()
    back = (action.gone,) if action.gone else _page_of(action, subject)
    return RedirectResponse(Links(request)(*back, done=verb), 303)


def acting(request: Request) -> Viewer:
    """Who may act. Raises: HTTPProblem, if they may only look."""
    who = viewer(request)
    if not who.may_act:
        raise HTTPProblem(
            403,
            f"the role {who.role} sees everything and changes nothing",
            hint="it takes the role operator or admin",
        )
    return who


def _verb(request: Request) -> tuple[str, Action]:
    verb = request.path_params["verb"]
    if verb not in ACTIONS:
        raise HTTPException(404)
    return verb, ACTIONS[verb]


def _page_of(action: Action, subject: str) -> tuple[str, str]:
    """The page of what an action is done to; of a step, that of its run."""
    if action.subject == "step":
        subject = subject.partition(":")[0]
    return _PAGES[action.subject], subject


def _checked(action: Action, subject: str) -> str:
    """What an action is done to. Raises: LeaseNotFound, RunNotFound, GangNotFound."""
    if action.subject == "lease":
        return str(as_lease_id(subject))
    if action.subject == "gang":
        return str(as_gang_id(subject))
    if action.subject in ("run", "step"):
        run, colon, step = subject.partition(":")
        return f"{as_run_id(run)}{colon}{step}"
    return subject


ROUTES = [
    Route("/do/{verb}", ask, methods=["GET"]),
    Route("/do/{verb}", act, methods=["POST"]),
]
