"""hwqueue metrics, as somebody on call would use it."""

import re
import signal
import subprocess
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
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pooler import free_port
from hwqueue.client import Client
from tests.e2e.programs import is_blocked, ran, read_until, running
from tests.e2e.worker_support import wait_until

GONE = "host=127.0.0.1 port=1"
BOUND_SECONDS = 60.0


@pytest.fixture
def filled(dsn: str) -> str:
    """A database with a lease that waits."""
    with Client(dsn) as client:
        client.create_queue("renders")
        client.spawn_lease("renders", "draw")
    return dsn


def test_print_once(filled: str) -> None:
    run = ran(filled, "metrics", "print")
    assert run.returncode == 0, run.stderr
    assert 'hwqueue_leases{queue="renders",state="pending"} 1.0' in run.stdout.splitlines()
    assert len(list(text_string_to_metric_families(run.stdout))) > 20


def test_print_when_the_database_is_gone() -> None:
    """The textfile collector gets the bad news, too."""
    run = ran(GONE, "metrics", "print", "--timeout", "2s")
    assert run.returncode == 1
    assert "hwqueue_up 0.0" in run.stdout.splitlines()
    assert "did not answer" in run.stderr


@contextmanager
def serving(dsn: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An exporter in a process of its own, and its address."""
    with running(dsn, "metrics", "serve", "--port", str(free_port()), *options) as process:
        said = re.search(r"http://\S+", read_until(process, "http://")[-1])
        assert said is not None
        yield process, said[0]


def test_who_has_no_token_reads_nothing(filled: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a secret of some length\n")
    with serving(filled, f"--token-file={file}") as (_, address):
        for header in ({}, {"Authorization": "Bearer another"}, {"Authorization": "Bearer é"}):
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(address, headers=header), timeout=120)
            with refused.value as answer:
                assert (answer.code, b"--token-file" in answer.read()) == (401, True)
        given = {"Authorization": "Bearer a secret of some length"}
        asked = urllib.request.Request(address, headers=given)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert "hwqueue_up 1.0" in answer.read().decode().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success(filled: str, number: signal.Signals) -> None:
    with serving(filled) as (process, address):
        with urllib.request.urlopen(address, timeout=120) as answer:
            assert 'hwqueue_oldest_pending_seconds{queue="renders"}' in answer.read().decode()
        process.send_signal(number)
        assert process.wait(BOUND_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_stop_waits_for_the_database_to_answer_a_scrape(filled: str) -> None:
    with serving(filled) as (process, address), psycopg.connect(filled) as other:
        other.execute("lock table hwqueue.queue")
        scraping = threading.Thread(target=scrape, args=(address,))
        scraping.start()
        wait_until(lambda: is_blocked(filled, "hwqueue metrics"))
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: is_refused(address))
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


def is_refused(address: str) -> bool:
    """Whether nobody listens at the address any more."""
    place = urlsplit(address)
    with socket() as probe:
        return probe.connect_ex((place.hostname or "", place.port or 0)) != 0
