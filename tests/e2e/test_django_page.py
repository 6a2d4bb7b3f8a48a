"""docs/use/web.md, done as a reader does it: its commands and files, from top to bottom."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import django
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from hwqueue.client import Client
from tests.e2e.worker_support import wait_until
from tests.shell_lines import tokens, whole_lines

PAGE = Path(__file__).parents[2] / "docs" / "use" / "web.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no checkout")


class Reader:
    """Somebody who does what the page says, in a folder of their own."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.environment = os.environ | database_of(dsn) | {"PYTHONWARNINGS": "error"}
        self.said: dict[str, str] = {}

    def run(self, line: str) -> str:
        """Run a command of the page; what it printed on both streams."""
        words = shlex.split(line)
        if words[0] == "django-admin":
            words = ["python", "-m", "django", *words[1:]]
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        self.said[line] = done.stdout
        return done.stdout

    def write(self, content: str) -> None:
        """A file of the page: its first line names it, and says if it is the end of one."""
        name, _, where = content.partition("\n")[0].removeprefix("# ").partition(", ")
        path = self.folder / name
        if django.VERSION < (6, 0):
            content = content.replace("from django.tasks", "from django_tasks")
        begun = path.read_text(encoding="utf-8") if where == "at the end" else ""
        path.write_text(begun + content, encoding="utf-8")

    @contextmanager
    def running(self, line: str) -> Iterator[None]:
        """A command that runs until it is stopped, gracefully."""
        process = subprocess.Popen(
            [sys.executable, *shlex.split(line)[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield
                process.terminate()
                said = process.communicate(timeout=60)[1]
                assert process.returncode == 0, said
            finally:
                process.kill()


def database_of(dsn: str) -> Mapping[str, str]:
    """The variables that the page's settings read."""
    named = conninfo_to_dict(dsn)
    keys = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    found = {f"DB_{name}": str(named.get(key) or "") for name, key in keys.items()}
    return {**found, "DB_PORT": str(named.get("port", "5432"))}


def test_the_page(empty_dsn: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path, empty_dsn)
    for token in tokens(PAGE, "Django"):
        if token.type == "fence" and token.info == "python":
            reader.write(token.content)
        elif token.type == "fence" and token.info == "sh":
            for line in whole_lines(token.content.splitlines()):
                follow(reader, line)
    [enqueued] = [said for line, said in reader.said.items() if "render.enqueue" in line]
    assert enqueued.splitlines()[-2:] == ["READY", "10"]
    assert "Ran 2 tests" in reader.said["python manage.py test"]


def follow(reader: Reader, line: str) -> None:
    """Do what a line says, and look at what the page promises of it."""
    if line.startswith("pip "):
        return
    if " worker run " not in line:
        reader.run(line)
        return
    with Client(reader.dsn) as client, psycopg.connect(reader.dsn, autocommit=True) as connection:
        [lease] = client.list_leases(queue="mail")
        with reader.running(line):
            wait_until(lambda: client.get_lease(lease.lease_id).finished_at is not None)
        assert client.get_lease(lease.lease_id).result == "lamp is confirmed"
        assert connection.execute("select confirmed from orders_order").fetchall() == [(True,)]
