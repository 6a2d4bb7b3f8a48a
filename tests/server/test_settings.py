"""What the server is told is checked, and reaches its processes as it is."""

from datetime import timedelta
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from hwqueue.errors import ConfigError
from hwqueue.serve import SETTINGS, run
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
        ({"max_single_body_bytes": 10}, "max_single_body_bytes"),
        ({"bytes_per_second": 0}, "bytes_per_second"),
        ({"head_timeout": timedelta(0)}, "head_timeout"),
        ({"max_connections": 1}, "max_connections"),
        ({"session_lifetime": timedelta(0)}, "session_lifetime"),
        ({"proxy_secret": "short"}, "proxy_secret"),
        ({"proxy_secret": "a secret with blanks"}, "proxy_secret"),
        ({"proxy_secret_header": "x-forwarded-user"}, "headers"),
        ({"public_url": "queue.example"}, "public_url"),
        ({"public_url": "https://queue.example/path"}, "public_url"),
        ({"public_url": "javascript://x"}, "public_url"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ServerSettings(dsn="", **changes)


def test_addresses_and_headers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one of uvicorn's parsers that has limits, whichever are installed."""
    told: dict[str, Any] = {}
    monkeypatch.setattr("hwqueue.serve._set_up_logs", lambda **_: None)
    monkeypatch.setattr("uvicorn.run", lambda _, **options: told.update(options))
    run(ServerSettings(dsn=""))
    assert issubclass(told["http"], H11Protocol)
    assert told["limit_concurrency"] == 1000


def test_they_reach_other_processes_and_show_no_secret() -> None:
    settings = ServerSettings(
        dsn="postgresql://u:s3cret@h/db",
        auth="proxy",
        proxy_networks=("10.0.0.0/8", "::1/128"),
        rate_limit=None,
        call_timeout=timedelta(seconds=1.5),
        proxy_secret="s3cret" * 6,
        proxy_tenant_required=False,
        public_url="https://queue.example",
        secure_cookies=True,
        session_dir="/somewhere",
    )
    assert SETTINGS.validate_json(SETTINGS.dump_json(settings)) == settings
    assert "s3cret" not in repr(settings)
    assert "port=8080" in repr(settings)


@pytest.mark.parametrize(
    ("host", "public_url", "said", "secure"),
    [
        ("127.0.0.1", None, None, False),
        ("0.0.0.0", None, None, True),
        ("0.0.0.0", None, False, False),
        ("127.0.0.1", None, True, True),
        ("127.0.0.1", "https://queue.example", None, True),
        ("127.0.0.1", "https://[2001:db8::1]:8443/", None, True),
        ("0.0.0.0", "http://queue.example", None, False),
    ],
)
def test_whether_cookies_are_secure(
    host: str, public_url: str | None, said: bool | None, secure: bool
) -> None:
    settings = ServerSettings(dsn="", host=host, public_url=public_url, secure_cookies=said)
    assert settings.has_secure_cookies is secure
