"""Try it: a node that is not there yet, or a placement that no lease has; nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.forms import (
    LEASE_FIELDS,
    NODE_FIELDS,
    Asked,
    FieldError,
    asked_by,
    asks_as,
    lease_of,
    like,
    node_of,
    place_of,
)
from hwqueue.dashboard.ids import class_number
from hwqueue.dashboard.pages.asked import number, texts
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.errors import BadArgument, ConstraintError, HwqueueError, NodeUnknown, QueueUnknown
from hwqueue.types import NodeGroup, NodeMatch

PAGE = 50
_OF_THE_FORM = (FieldError, BadArgument, ConstraintError, QueueUnknown)


@protected("/try")
async def node(request: Request) -> Response:
    """A node that is not there, and which of what is pending it would run."""
    asked, source = request.query_params, reads(request)
    given = texts(request, NODE_FIELDS)
    wanted = await source.class_asked(class_number(asked["for"])) if asked.get("for") else None
    error: HwqueueError | None = None
    left_out: tuple[str, ...] = ()
    if not any(given.values()):
        try:
            name = asked.get("like", "").strip()
            base = like(await source.node(name)) if name else {}
            filled = asked_by(wanted, base) if wanted else Asked(base)
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
        served=next((row for row in rows or () if wanted and row.class_id == wanted.class_id), None),
        error=error,
        place=place_of(error, lease=False) if error else "",
    )


@protected("/try/placement")
async def placement(request: Request) -> Response:
    """A placement, which nodes match it, and what keeps each of the others out."""
    asked, source = request.query_params, reads(request)
    given = texts(request, LEASE_FIELDS)
    if not given["placement"] and asked.get("for"):
        given |= asks_as(await source.class_asked(class_number(asked["for"])))
    error: HwqueueError | None = None
    groups: list[NodeGroup] | None = None
    rows: list[NodeMatch] = []
    names: list[str] = []
    code = asked.get("reason", "")
    at = number(request)
    if any(given.values()):
        try:
            lease = lease_of(given | {"placement": given["placement"] or "{}"})
            groups = await source.match_groups(**lease)
            names = _nearest(groups, code)
            # the words, which are most of it, of one page only
            if page_names := names[at * PAGE : (at + 1) * PAGE]:
                rows = await source.match(**lease, nodes=page_names)
        except _OF_THE_FORM as refused:
            error = refused
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
        nodes=None if groups is None else sum(group.nodes for group in groups),
        shown=rows,
        total=len(names),
        eligible=sum(group.nodes for group in groups or () if group.eligible),
        near=sum(group.nodes for group in groups or () if len(group.codes) == 1),
        reasons=_by_code(groups or ()).most_common(),
        reason=code,
        number=at,
        page_size=PAGE,
        query={**given, "reason": code},
        queues=[row.queue for row in queues.value],
    )


def _nearest(groups: Sequence[NodeGroup], code: str) -> list[str]:
    """The nodes of whom a code is told (empty: all; "-": none is), the fewest codes first."""
    found = (
        group for group in groups if not code or (group.eligible if code == "-" else code in group.codes)
    )
    ordered = sorted(found, key=lambda group: len(group.codes))
    return [name for group in ordered for name in group.node_names]


def _by_code(groups: Sequence[NodeGroup]) -> Counter[str]:
    """How many nodes each code keeps out."""
    kept_out: Counter[str] = Counter()
    for group in groups:
        kept_out.update(dict.fromkeys(group.codes, group.nodes))
    return kept_out
