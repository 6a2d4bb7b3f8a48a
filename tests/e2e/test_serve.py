"""`hwqueue serve` in a process of its own, and `hwqueue token` beside it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import tenacity
from typer.testing import CliRunner

from benchmarks.core.pooler import free_port
from hwqueue.cli.main import app
from tests.e2e.programs import is_blocked, read_until, running
from tests.e2e.worker_support import wait_until
from tests.fix_db import strict_skip

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use" / "http.md"
BOUND_SECONDS = 60.0


@contextmanager
def server(dsn: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its address."""
    port = free_port()
    url = f"http://localhost:{port}"
    with running(dsn, "serve", "--port", str(port), *options) as process:
        try:
            wait_until_ready(url, process)
            yield process, url
        finally:
            # not killed at once: the processes of several would live on
            process.terminate()
            process.communicate(timeout=BOUND_SECONDS)


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    wait=tenacity.wait_fixed(0.1),
    stop=tenacity.stop_after_delay(BOUND_SECONDS),
    reraise=True,
)
def wait_until_ready(url: str, process: subprocess.Popen[str] | None = None) -> None:
    """Wait for a server; `process`: and see that it lives."""
    if process is not None and process.poll() is not None:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    assert httpx.get(f"{url}/readyz", timeout=BOUND_SECONDS).status_code == 200


def cli(dsn: str, *args: str, code: int = 0) -> str:
    """Run `hwqueue ARGS`; what it printed."""
    result = CliRunner().invoke(app, ["--dsn", dsn, *args])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_tokens_from_made_to_revoked(dsn: str) -> None:
    made = json.loads(cli(dsn, "--json", "token", "create", "ci", "--role", "viewer"))
    assert (made["name"], made["role"], made["tenant"]) == ("ci", "viewer", None)
    cli(dsn, "token", "create", "ci", "--role", "viewer", code=1)
    cli(dsn, "token", "create", "king", "--role", "king", code=2)
    bare = cli(dsn, "token", "create", "film", "--role", "producer", "--tenant", "film", "--bare")
    assert re.fullmatch(r"hwq_[\w-]{43}\n", bare)
    assert bare.strip() != made["token"]
    listed = {row["name"]: row for row in json.loads(cli(dsn, "--json", "token", "list"))}
    assert listed["film"]["tenant"] == "film"
    assert made["token"] not in json.dumps(listed)
    cli(dsn, "token", "revoke", "ci")
    cli(dsn, "token", "revoke", "ci")
    cli(dsn, "token", "revoke", "nobody", code=3)
    [row] = [row for row in json.loads(cli(dsn, "--json", "token", "list")) if row["name"] == "ci"]
    assert row["revoked_at"]


@pytest.mark.embedded
def test_a_stop_lets_what_is_under_way_finish(dsn: str) -> None:
    with server(dsn) as (process, url), psycopg.connect(dsn) as other:
        made = httpx.post(f"{url}/api/v1/queues", json={"queue": "q"})
        assert made.status_code == 201, made.text
        lease = httpx.post(f"{url}/api/v1/leases", json={"queue": "q", "task": "t"}).json()
        lease_id = lease["lease_id"]
        other.execute("select hwqueue.update_lease(%s, '{\"priority\": 3}')", [lease_id])
        answers: list[httpx.Response] = []
        waiting = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"{url}/api/v1/leases/{lease_id}/cancel", timeout=BOUND_SECONDS)
            )
        )
        waiting.start()
        wait_until(lambda: is_blocked(dsn, "hwqueue serve: calls"))
        process.send_signal(signal.SIGTERM)
        read_until(process, "Shutting down")
        other.commit()
        waiting.join(BOUND_SECONDS)
        assert [answer.json()["state"] for answer in answers] == ["cancelled"]
        assert process.wait(BOUND_SECONDS) in (0, -signal.SIGTERM)


@pytest.mark.embedded
def test_several_processes(dsn: str) -> None:
    with server(dsn, "--workers", "2", "--auth", "tokens", "--json-logs") as (_, url):
        token = cli(dsn, "token", "create", "ci", "--role", "viewer", "--bare").strip()
        headers = {"Authorization": f"Bearer {token}"}
        for _ in range(4):
            me = httpx.get(f"{url}/api/v1/me", headers=headers)
            assert me.json()["actor"] == "token:ci"
        assert httpx.get(f"{url}/api/v1/me").status_code == 401


def test_what_the_page_says_works(dsn: str) -> None:
    """Its `sh` blocks, in one shell; those it does not want run are `shell`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 5
    if not any((Path(folder) / "curl").exists() for folder in os.get_exec_path()):
        strict_skip("curl is not installed")
    with server(dsn, "--auth", "tokens") as (_, url):
        script = "\n".join(blocks).replace("http://localhost:8080", url)
        folder = Path(sys.executable).parent
        env = os.environ | {"HWQUEUE_DSN": dsn, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            env=env, capture_output=True, text=True, check=False, timeout=2 * BOUND_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert '"state":"cancelled"' in done.stdout
        assert '"paused":true' in done.stdout


@pytest.mark.embedded
def test_elsewhere_than_on_this_machine_callers_need_a_token(dsn: str) -> None:
    with server(dsn, "--host", "0.0.0.0") as (_, url):
        assert httpx.get(f"{url}/api/v1/me").status_code == 401


@pytest.mark.embedded
def test_options_that_do_not_fit(dsn: str) -> None:
    wrong = ["--auth", "proxy"], ["--auth", "maybe"], ["--auth", "tokens", "--no-auth"], ["--rate-limit", "x"]
    for options in wrong:
        cli(dsn, "serve", *options, code=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # that is no missing thing
        cli(dsn, "serve", "--no-auth", "--port", str(taken.getsockname()[1]), code=1)
