"""Templates: the environment, and how a page becomes a response."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from hwqueue import text
from hwqueue.alike import folded
from hwqueue.dashboard import charts, formatting
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.runs.graph import count_states

STATIC = Path(__file__).parent / "static"
LIVE_SECONDS = 5
_OLD = timedelta(seconds=15)  # of a value beside newer ones: said on the page
# In groups, which the eye tells apart: what waits, what runs, where, by what rules, what is around.
NAV = (
    (("o", "Overview", ""), ("p", "Pending", "pending")),
    (
        ("l", "Leases", "leases"),
        ("a", "Gangs", "gangs"),
        ("u", "Runs", "runs"),
        ("w", "Workflows", "workflows"),
    ),
    (("f", "Fleet", "fleet"), ("c", "Classes", "classes"), ("t", "Try it", "try")),
    (
        ("q", "Queues", "queues"),
        ("d", "Schedules", "schedules"),
        ("m", "Limits", "limits"),
        ("n", "Tenants", "tenants"),
    ),
    (("e", "Events", "events"), ("h", "Webhooks", "webhooks"), ("s", "System", "system")),
)
_TAB_OF = {"nodes": "fleet"}  # pages that are reached by another one's tab

_FILTERS = (
    *(text.number, text.percent, text.plural, text.size, text.memory),
    *(text.duration, text.exact_duration, text.milliseconds, text.age, text.ago),
    *(
        formatting.absolute,
        formatting.exact,
        formatting.iso,
        formatting.short,
        formatting.cores,
        formatting.reason_words,
        formatting.core,
    ),
    *(formatting.policy, formatting.pretty, formatting.error_line, folded),
    *(formatting.glyph, formatting.tone, formatting.asks, formatting.asked, charts.spark, charts.share),
    *(charts.segments, charts.cut, count_states, formatting.parked, formatting.linked),
)


@cache
def environment() -> Environment:
    """The templates, with autoescape; a name that a page does not give is an error."""
    made = Environment(
        loader=PackageLoader("hwqueue.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {each.__name__: each for each in _FILTERS}
    return made


@cache
def static_version() -> str:
    """A hash of all static files: their addresses change when they do."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Links:
    """Addresses of the dashboard, below wherever it is mounted."""

    def __init__(self, request: Request) -> None:
        self.root = str(request.scope.get("root_path", "")).rstrip("/")

    def __call__(self, *parts: object, **query: object) -> str:
        """The address of a page; query members that are None or empty are left out."""
        path = "/".join(quote(str(part), safe="") for part in parts)
        given = {key: str(value) for key, value in query.items() if value not in (None, "")}
        return f"{self.root}/{path}" + (f"?{urlencode(given)}" if given else "")

    def static(self, name: str) -> str:
        """The address of a static file."""
        return f"{self.root}/static/{static_version()}/{name}"


def page(
    request: Request,
    template: str,
    title: str,
    *,
    read: Iterable[Cached[Any]] = (),
    live: int = LIVE_SECONDS,
    status: int = 200,
    here: str | None = None,
    **context: Any,
) -> Response:
    """A page, or only its main element when a live refresh asks for it.

    Args:
        read: The cached values that the page shows; it is as old as the oldest of them, and says
            so where that is much older than the newest.
        live: Seconds between refreshes; 0: it does not refresh itself.
        here: The tab; None: by the address.
    """
    cached = tuple(read)
    as_of = min((each.at for each in cached), default=datetime.now(UTC))
    # ages count from the newest of them: nothing that has happened lies in the future
    now = max((each.at for each in cached), default=as_of)
    links = Links(request)
    if here is None:
        here = request.url.path.removeprefix(links.root).strip("/").partition("/")[0]
    standing = request.app.state.standing
    query = f"?{request.url.query}" if request.url.query else ""
    state: Mapping[str, Any] = request.scope["dashboard"]
    made = (
        environment()
        .get_template(template)
        .render(
            title=title,
            part=request.headers.get("HX-Request") == "true",
            root=links.root,
            url=links,
            static=links.static,
            self_url=f"{request.url.path}{query}",
            nav=NAV,
            here=_TAB_OF.get(here, here),
            live=live,
            as_of=as_of,
            has_old=now - as_of > _OLD,
            away_since=min((each.stale_since for each in cached if each.stale_since), default=None),
            stale=any(each.stale for each in cached),
            version=version("hwqueue"),
            notice=request.app.state.notices.get(request.query_params.get("done")),
            **{
                "alarms": standing.alarms if standing.is_fresh else (),
                "counts_of": standing.counts if standing.is_fresh else {},
            }
            | {"charts": False, "map": False, "follows": False, "graph": None, "now": now}
            | dict(state)
            | context,
        )
    )
    return answer(request, made, status)


def fragment(request: Request, template: str, **context: Any) -> str:
    """A part of a page, for one that is there already."""
    return environment().get_template(template).render(url=Links(request), **context)


def answer(request: Request, html: str, status: int = 200) -> Response:
    """HTML with a tag by which a browser can tell that nothing has changed."""
    body = html.encode()
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:20]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Cookie, HX-Request"}
    if status == 200 and request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, status, headers, media_type="text/html")
