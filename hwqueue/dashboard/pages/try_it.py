"""Try it: a node that is not there yet, or a placement that no lease has; nothing is changed."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.door import seen
from hwqueue.dashboard.reads import Reads, reads
from hwqueue.dashboard.render import page
from hwqueue.dashboard.tries import (
    LEASE_FIELDS,
    NODE_FIELDS,
    Asked,
    FieldError,
    asked_by,
    asks_as,
    class_number,
    lease_of,
    like,
    node_of,
    place_of,
)
from hwqueue.errors import BadArgument, ConstraintError, HwqueueError, NodeUnknown, QueueUnknown
from hwqueue.types import ClassStats

PAGE = 50
_OF_THE_FORM = (FieldError, BadArgument, ConstraintError, QueueUnknown)


def _given(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    return {name: request.query_params.get(name, "").strip() for name in names}


async def node(request: Request) -> Response:
    """A node that is not there, and which of what is pending it would run."""
    asked, source = request.query_params, reads(request)
    given = _given(request, NODE_FIELDS)
    wanted = await _class(source, asked.get("for", ""))
    error: HwqueueError | None = None
    left_out: tuple[str, ...] = ()
    if not any(given.values()):
        try:
            filled = await _filled(source, asked.get("like", "").strip(), wanted)
        except NodeUnknown as unknown:
            filled, error = Asked({}), FieldError("like", str(unknown))
        given |= filled.fields
        left_out = tuple(filled.left_out)
    rows = None
    if error is None and (wanted or any(given.values())):
        try:
            rows = await source.what_if(node_of(given))
            if wanted:
                rows.sort(key=lambda row: row.class_id != wanted.class_id)
        except _OF_THE_FORM as refused:
            error = refused
    return page(
        request,
        "try_node.html",
        "Try it: a node",
        live=0,
        status=422 if error else 200,
        fields=given,
        like=asked.get("like", ""),
        wanted=wanted,
        left_out=left_out,
        rows=rows,
        total=sum(row.pending for row in rows or ()),
        served=next(
            (row for row in rows or () if wanted and row.class_id == wanted.class_id), None
        ),
        error=error,
        place=place_of(error, lease=False) if error else "",
    )


async def _class(source: Reads, text: str) -> ClassStats | None:
    """The class that somebody came from. Raises: ClassUnknown, BadArgument."""
    return await source.class_asked(class_number(text)) if text else None


async def _filled(source: Reads, name: str, wanted: ClassStats | None) -> Asked:
    """The form for a node like one that is there, for what a class asks, or for both."""
    base = like(await source.node(name)) if name else {}
    return asked_by(wanted, base) if wanted else Asked(base)


async def placement(request: Request) -> Response:
    """A placement, which nodes match it, and what keeps each of the others out."""
    asked, source = request.query_params, reads(request)
    given = _given(request, LEASE_FIELDS)
    if not given["placement"] and asked.get("for"):
        given |= asks_as(await source.class_asked(class_number(asked["for"])))
    error: HwqueueError | None = None
    rows = None
    if any(given.values()):
        try:
            rows = await source.match(**lease_of(given | {"placement": given["placement"] or "{}"}))
            rows.sort(key=lambda row: len(row.reasons))  # the nearest first, those as they were
        except _OF_THE_FORM as refused:
            error = refused
    code = asked.get("reason", "")
    reasons = Counter(code for row in rows or () for code in {each.code for each in row.reasons})
    shown = [
        row
        for row in rows or ()
        if not code
        or (row.eligible if code == "-" else code in {each.code for each in row.reasons})
    ]
    number = int(asked["page"]) if asked.get("page", "").isdecimal() else 0
    queues = await source.queues()
    return page(
        request,
        "try_placement.html",
        "Try it: a placement",
        live=0,
        status=422 if error else 200,
        fields=given,
        error=error,
        place=place_of(error, lease=True) if error else "",
        rows=rows,
        shown=shown[number * PAGE : (number + 1) * PAGE],
        total=len(shown),
        eligible=sum(row.eligible for row in rows or ()),
        near=sum(len(row.reasons) == 1 for row in rows or ()),
        reasons=reasons.most_common(),
        reason=code,
        number=number,
        page_size=PAGE,
        query={**given, "reason": code},
        queues=[row.queue for row in queues.value],
    )


ROUTES = [seen("/try", node), seen("/try/placement", placement)]
