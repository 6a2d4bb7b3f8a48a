"""What the server is told is checked, and reaches its processes as it is."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.errors import ConfigError
from hwqueue.server.serve import _from_json, _to_json, run
from hwqueue.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("host", "auth", "effective"),
    [
        ("127.0.0.1", None, "none"),
        ("127.8.8.8", None, "none"),
        ("::1", None, "none"),
        ("localhost", None, "none"),
        ("0.0.0.0", None, "tokens"),
        ("::", None, "tokens"),
        ("10.0.0.1", None, "tokens"),
        ("localhost.example", None, "tokens"),
        ("", None, "tokens"),
        ("127.0.0.1", "tokens", "tokens"),
        ("0.0.0.0", "none", "none"),
    ],
)
def test_who_is_let_in(host: str, auth: Any, effective: str) -> None:
    assert ServerSettings(dsn="", host=host, auth=auth).effective_auth == effective


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"port": 65_536}, "port"),
        ({"pool_size": 0}, "pool_size"),
        ({"read_pool_size": True}, "read_pool_size"),
        ({"call_timeout": timedelta(0)}, "call_timeout"),
        ({"read_timeout": 5}, "read_timeout"),
        ({"rate_limit": "many"}, "rate_limit"),
        ({"max_body_bytes": 10}, "max_body_bytes"),
        ({"body_timeout": timedelta(0)}, "body_timeout"),
        ({"max_streams_per_caller": 0}, "max_streams_per_caller"),
        ({"auth": "maybe"}, "auth"),
        ({"auth": "proxy"}, "proxy_networks"),
        ({"proxy_networks": ("10.0.0.1/8",)}, "proxy_networks"),
        ({"proxy_role_header": "x-forwarded-user"}, "headers"),
        ({"proxy_role_header": "no header"}, "headers"),
        ({"cors_origins": ("*",)}, "cors_origins"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ServerSettings(dsn="", **changes)


def test_addresses_and_headers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one of uvicorn's parsers that has limits, whichever are installed."""
    told: dict[str, Any] = {}
    monkeypatch.setattr("hwqueue.server.serve._set_up_logs", lambda: None)
    monkeypatch.setattr("uvicorn.run", lambda _, **options: told.update(options))
    run(ServerSettings(dsn=""))
    assert told["http"] == "h11"


def test_they_reach_other_processes() -> None:
    settings = ServerSettings(
        dsn="x",
        auth="proxy",
        proxy_networks=("10.0.0.0/8", "::1/128"),
        rate_limit=None,
        call_timeout=timedelta(seconds=1.5),
    )
    assert _from_json(_to_json(settings)) == settings
