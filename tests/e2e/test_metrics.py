"""hwqueue metrics, as somebody on call would use it."""

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from socket import socket
from urllib.error import HTTPError
from urllib.parse import urlsplit

import psycopg
import pytest
import tenacity
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pooler import free_port
from hwqueue.client import Client

GONE = "host=127.0.0.1 port=1"
BOUND_SECONDS = 60.0
PROGRAM = "from hwqueue.cli.main import app; app()"


def hwqueue(*arguments: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = [sys.executable, "-c", program, *arguments]
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
    run = hwqueue("--dsn", GONE, "metrics", "print", program=program)
    assert run.returncode == 2
    assert "pip install 'hwqueue[metrics]'" in run.stderr


@contextmanager
def serving(dsn: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An exporter in a process of its own, and its address."""
    command = [sys.executable, "-c", PROGRAM, "--dsn", dsn, "metrics", "serve"]
    command += ["--port", str(free_port())]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stderr is not None
            said = re.search(r"http://\S+", process.stderr.readline())
            assert said is not None
            yield process, said[0]
        finally:
            process.kill()


def test_serve(filled: str) -> None:
    with serving(filled) as (_, address):
        for _ in range(2):
            with urllib.request.urlopen(address, timeout=20) as answer:
                text = answer.read().decode()
            assert "hwqueue_up 1.0" in text.splitlines()
            assert 'hwqueue_oldest_pending_seconds{queue="renders"}' in text


def test_who_has_no_token_reads_nothing(filled: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a secret of some length\n")
    with serving(filled, f"--token-file={file}") as (_, address):
        for header in ({}, {"Authorization": "Bearer another"}, {"Authorization": "Bearer é"}):
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(address, headers=header), timeout=20)
            with refused.value as answer:
                assert (answer.code, b"--token-file" in answer.read()) == (401, True)
        given = {"Authorization": "Bearer a secret of some length"}
        asked = urllib.request.Request(address, headers=given)
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert "hwqueue_up 1.0" in answer.read().decode().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success(filled: str, number: signal.Signals) -> None:
    with serving(filled) as (process, address):
        urllib.request.urlopen(address, timeout=20).close()
        process.send_signal(number)
        assert process.wait(BOUND_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_stop_waits_for_the_database_to_answer_a_scrape(filled: str) -> None:
    with serving(filled) as (process, address), psycopg.connect(filled) as other:
        other.execute("lock table hwqueue.queue")
        scraping = threading.Thread(target=scrape, args=(address,))
        scraping.start()
        wait_until_blocked(filled)
        process.send_signal(signal.SIGTERM)
        wait_until_refused(address)
        assert process.poll() is None
        other.commit()
        assert process.wait(BOUND_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        scraping.join(BOUND_SECONDS)


def scrape(address: str) -> None:
    """Ask once; the exporter may end before it answers."""
    with suppress(OSError, HTTPException):
        urllib.request.urlopen(address, timeout=BOUND_SECONDS).close()


@tenacity.retry(
    retry=tenacity.retry_if_result(lambda waits: not waits),
    wait=tenacity.wait_fixed(0.05),
    stop=tenacity.stop_after_delay(BOUND_SECONDS),
)
def wait_until_blocked(dsn: str) -> bool:
    """Whether the exporter's call waits for a lock."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "select 1 from pg_stat_activity where application_name = 'hwqueue metrics'"
            " and wait_event_type = 'Lock' and datname = current_database()"
        )
        return bool(found.fetchall())


@tenacity.retry(
    retry=tenacity.retry_if_result(lambda refused: not refused),
    wait=tenacity.wait_fixed(0.05),
    stop=tenacity.stop_after_delay(BOUND_SECONDS),
)
def wait_until_refused(address: str) -> bool:
    """Whether nobody listens at the address any more."""
    place = urlsplit(address)
    with socket() as probe:
        return probe.connect_ex((place.hostname or "", place.port or 0)) != 0
