"""Whatever operators can read is read by the question `views`."""

import re
from urllib.parse import urlsplit

import pytest

from benchmarks.core.looks import PATHS
from hwqueue.dashboard.pages import ROUTES
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings

pytestmark = pytest.mark.embedded


def test_every_page_and_every_read_of_the_api_is_measured() -> None:
    described = create_app(ServerSettings(dsn="")).openapi()["paths"]
    api = [path for path, methods in described.items() if "get" in methods]
    assert len(api) > 20
    pages = [route.path for route in ROUTES]
    asked = [urlsplit(path).path for path in PATHS]
    unread = [path for path in [*api, *pages] if not any(map(_pattern(path).fullmatch, asked))]
    assert unread == [
        "/api/v1/leases/{lease_id}/logs/stream",
        "/api/v1/runs/{run_id}/stream",
        "/api/v1/events/stream",
        "/events/stream",
    ]


def _pattern(path: str) -> "re.Pattern[str]":
    """What addresses of a path look like, with {...} where an id or a name goes."""
    return re.compile(re.sub(r"{\w+(:\w+)?}", r"({\\w+}|others)", path))
