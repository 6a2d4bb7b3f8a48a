"""nginx with deploy/sso/nginx.conf before a server; a stand-in for oauth2-proxy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.core.pooler import free_port
from hwqueue import Client
from tests.e2e.test_serve import cli, server, wait_until_ready
from tests.fix_db import strict_skip

CONF = Path(__file__).parents[2] / "deploy" / "sso" / "nginx.conf"
SECRET = "0123456789abcdef" * 2
FORGED = {
    "X-Forwarded-User": "mallory",
    "X-Forwarded-Role": "admin",
    "X-Forwarded-Tenant": "*",
    "X-Hwqueue-Proxy-Secret": SECRET,
}
pytestmark = pytest.mark.embedded
Ask = Callable[..., httpx.Response]


class SignIn(BaseHTTPRequestHandler):
    """What oauth2-proxy answers: who somebody is, as a cookie says it, or a page to sign in."""

    def do_GET(self) -> None:
        groups = re.search(r"groups=([^;]*)", self.headers.get("Cookie", ""))
        asked = self.path == "/oauth2/auth"
        self.send_response(202 if asked and groups else 401 if asked else 200)
        if groups:
            self.send_header("X-Auth-Request-Email", "ada@example.org")
            self.send_header("X-Auth-Request-Groups", groups[1])
        self.end_headers()
        if not asked:
            self.wfile.write(f"then {self.headers['X-Auth-Request-Redirect']}".encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def configuration(listen: int, upstream: str, sign_in: int) -> str:
    """The file as deployed, with other addresses and without TLS."""
    text = re.sub(r"^ *ssl_certificate.*\n", "", CONF.read_text(encoding="utf-8"), flags=re.M)
    for deployed, tried in {
        "listen 443 ssl;": f"listen 127.0.0.1:{listen};",
        "http://127.0.0.1:8080": upstream,
        "127.0.0.1:4180": f"127.0.0.1:{sign_in}",
        "SECRET;": f"{SECRET};",
    }.items():
        assert deployed in text
        text = text.replace(deployed, tried)
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {name};\n" for name in paths)
    top = "daemon off; master_process off; pid nginx.pid; error_log stderr; events {}\n"
    return f"{top}http {{ access_log off;\n{temporary}{text}}}\n"


@contextmanager
def nginx(folder: Path, text: Callable[[int], str]) -> Iterator[str]:
    """A running nginx, and its address."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        strict_skip("nginx is not installed: apt-get install nginx")
    port = free_port()
    (folder / "nginx.conf").write_text(text(port), encoding="utf-8")
    command = [program, "-p", str(folder), "-e", "stderr", "-c", "nginx.conf"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.fixture
def ask(dsn: str, tmp_path: Path) -> Iterator[Ask]:
    """Ask through nginx, with a queue there to be paused."""
    with Client(dsn) as client:
        client.create_queue("renders")
    (tmp_path / "secret").write_text(SECRET)
    options = ["--auth", "proxy", "--proxy-network", "127.0.0.1/32"]
    options += ["--proxy-secret-file", str(tmp_path / "secret")]
    options += ["--public-url", "https://queue.example"]
    stand_in = ThreadingHTTPServer(("127.0.0.1", 0), SignIn)
    threading.Thread(target=stand_in.serve_forever, daemon=True).start()
    with server(dsn, *options) as (_, url):
        upstream = url.replace("localhost", "127.0.0.1")
        with nginx(tmp_path, lambda port: configuration(port, upstream, stand_in.server_port)) as address:

            def get(path: str, groups: str | None = None, **headers: str) -> httpx.Response:
                known = {} if groups is None else {"Cookie": f"groups={groups}"}
                return httpx.get(f"{address}{path}", headers=known | headers, timeout=60)

            wait_until_ready(address)
            yield get
    stand_in.shutdown()
    stand_in.server_close()


def test_groups_become_roles(ask: Ask) -> None:
    for groups, buttons in {
        "queue-operators": True,
        "staff,queue-admins": True,
        "queue-admins,queue-viewers": True,  # the first that fits
        "queue-viewers,staff": False,
    }.items():
        page = ask("/queues/renders", groups)
        assert page.status_code == 200, page.text
        assert "ada@example.org" in page.text
        assert (">Pause<" in page.text) is buttons, groups


def test_others_do_not_get_in(ask: Ask) -> None:
    stranger = ask("/queues/renders?a=1&b=2")
    assert (stranger.status_code, stranger.text) == (403, "then /queues/renders?a=1&b=2")
    without_role = ask("/queues/renders", "staff,old-queue-admins,queue-admins-too")
    assert without_role.status_code == 403
    assert "no role that is known" in without_role.text


def test_nobody_names_themselves(ask: Ask) -> None:
    viewer = ask("/queues/renders", "queue-viewers", **FORGED)
    assert "ada@example.org" in viewer.text
    assert ">Pause<" not in viewer.text
    assert "mallory" not in viewer.text
    assert ask("/queues/renders", "staff", **FORGED).status_code == 403
    assert ask("/api/v1/me", "queue-admins", **FORGED).status_code == 401


def test_programs_have_tokens(ask: Ask, dsn: str) -> None:
    token = cli(dsn, "token", "create", "ci", "--role", "viewer", "--bare").strip()
    me = ask("/api/v1/me", Authorization=f"Bearer {token}")
    assert me.json()["actor"] == "token:ci"
