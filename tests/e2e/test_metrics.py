"""hwqueue metrics, as somebody on call would use it."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hwqueue.client import Client

GONE = "host=127.0.0.1 port=1"
PROGRAM = "from hwqueue.cli.main import app; app()"


def hwqueue(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def filled(dsn: str) -> str:
    """A database with a lease that waits."""
    with Client(dsn) as client:
        client.create_queue("renders")
        client.spawn_lease("renders", "draw")
    return dsn


def test_print_once(filled: str) -> None:
    run = hwqueue("--dsn", filled, "metrics", "print")
    assert run.returncode == 0, run.stderr
    assert 'hwqueue_leases{queue="renders",state="pending"} 1.0' in run.stdout.splitlines()
    assert len(list(text_string_to_metric_families(run.stdout))) > 20


def test_print_when_the_database_is_gone() -> None:
    """The textfile collector gets the bad news, too."""
    run = hwqueue("--dsn", GONE, "metrics", "print", "--timeout", "2s")
    assert run.returncode == 1
    assert "hwqueue_up 0.0" in run.stdout.splitlines()
    assert "did not answer" in run.stderr


def test_without_the_extra() -> None:
    """Everything else works, and this says what is missing."""
    program = f"import sys; sys.modules['prometheus_client'] = None; {PROGRAM}"
    command = [sys.executable, "-c", program, "--dsn", GONE, "metrics", "print"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "pip install 'hwqueue[metrics]'" in run.stderr


@contextmanager
def serving(dsn: str) -> Iterator[str]:
    """The address of an exporter in a process of its own."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", PROGRAM, "--dsn", dsn]
    process = subprocess.Popen(
        [*command, "metrics", "serve", "--port", str(port)], stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stderr is not None
            said = re.search(r"http://\S+", process.stderr.readline())
            assert said is not None
            yield said[0]
        finally:
            process.kill()


def test_serve(filled: str) -> None:
    with serving(filled) as address:
        for _ in range(2):
            with urllib.request.urlopen(address, timeout=20) as answer:
                text = answer.read().decode()
            assert "hwqueue_up 1.0" in text.splitlines()
            assert 'hwqueue_oldest_pending_seconds{queue="renders"}' in text
