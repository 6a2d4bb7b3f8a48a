"""`hwqueue run` and `hwqueue worker run --shell`: commands instead of handlers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hwqueue.client import Client
from hwqueue.types import Lease, LeaseState, QueuePolicy
from tests.e2e.conftest import Shell
from tests.e2e.programs import ran, running
from tests.e2e.reading import Reader
from tests.e2e.worker_support import AT_ONCE, BOUND_SECONDS, wait_until
from tests.shell_lines import tokens

QUEUE = "jobs"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(dsn) as connected:
        connected.create_queue(QUEUE, policy=QueuePolicy(retry=AT_ONCE))
        yield connected


@contextmanager
def shell_worker(dsn: str, *more: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that runs commands; it is gone afterwards, and so is what it ran."""
    line = ("worker", "run", "--shell", "--queue", QUEUE, *more)
    quick = ("--no-detect", "--name=node-1", "--poll-interval=20ms", "--cancel-grace=2s")
    with running(dsn, *line, *quick, stderr=None, env=os.environ | environment) as process:
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(BOUND_SECONDS)


@contextmanager
def registered_worker(
    client: Client, dsn: str, *more: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """The same, once its node is there: no spawn says that there is none."""
    with shell_worker(dsn, *more, **environment) as process:
        wait_until(lambda: bool(client.list_nodes()))
        yield process


@pytest.fixture
def run(client: Client, dsn: str) -> Run:
    """Run a command to its end."""
    return partial(ran, dsn, "run", "--queue", QUEUE)


def only_lease(client: Client) -> Lease:
    [lease] = client.list_leases(queue=QUEUE)
    return client.get_lease(lease.lease_id)


def test_it_runs_as_if_it_ran_here(client: Client, dsn: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import json, os, sys\n"
        "told = {n: os.environ.get(n) for n in ('EPOCHS', 'HWQUEUE_ATTEMPT', 'HWQUEUE_DSN')}\n"
        "print(json.dumps([sys.argv[1:], told, os.getcwd(), sys.stdin.read()]))\n"
        "print('10%\\r20%\\r30%', file=sys.stderr)\n"
        "sys.stdout.write('no newline')\n"
    )
    words = ("$HOME", "a b", "--json", "-v", "--", "*", "'", "")
    with registered_worker(client, dsn, HWQUEUE_DSN=dsn):
        done = run(
            "--env", "EPOCHS=3 4", "--cwd", str(tmp_path), "--",
            sys.executable, "job.py", *words,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    told = {"EPOCHS": "3 4", "HWQUEUE_ATTEMPT": "1", "HWQUEUE_DSN": None}
    assert json.loads(first) == [list(words), told, str(tmp_path), ""]
    assert last == "no newline"
    lease = only_lease(client)
    assert done.stderr.splitlines() == [f"lease {lease.lease_id} in queue {QUEUE}; Ctrl-C cancels it", "30%"]
    assert (lease.state, lease.result) == (LeaseState.COMPLETED, {"exit_status": 0})


def test_its_exit_status_is_that_of_the_last_attempt(client: Client, dsn: str, run: Run) -> None:
    script = "echo try $HWQUEUE_ATTEMPT; echo no data >&2; exit 7"
    with shell_worker(dsn):
        done = run("--max-attempts", "2", "--", "sh", "-c", script)
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["try 1", "try 2"]
    assert "attempt 2:" in done.stderr
    assert "attempt 2 of 2 failed: CommandFailed: exit status 7: no data" in done.stderr
    error = {"type": "CommandFailed", "message": "exit status 7: no data", "exit_status": 7}
    lease = only_lease(client)
    assert (lease.state, lease.error) == (LeaseState.FAILED, error)


def test_what_comes_to_no_good_end(client: Client, dsn: str, run: Run) -> None:
    with shell_worker(dsn):
        for words, status, message in (
            (("--", "/no/such"), 127, "cannot start '/no/such'"),
            (("--", "/"), 126, "cannot start '/'"),
            (("--cwd", "/no/such", "--", "true"), 126, "cannot work in '/no/such'"),
            (("--", "sh", "-c", "kill -9 $$"), 137, "killed by signal 9"),
            (("--timeout", "300ms", "--", "sleep", "60"), 124, "ran longer than 0.3 s"),
        ):
            done = run("--max-attempts", "1", *words)
            assert done.returncode == status, done.stderr
            assert message in done.stderr
            assert only_lease(client).error["exit_status"] == status
            client.delete_leases(QUEUE, state="failed")


def test_what_is_no_command_is_dead_at_once(client: Client, dsn: str) -> None:
    bad_params: list[dict[str, Any]] = [
        *({}, {"argv": []}, {"argv": "ls"}),
        {"argv": ["ls"], "env": {"a=b": "c"}},
    ]
    with shell_worker(dsn):
        bad = [client.spawn_lease(QUEUE, "hwqueue.run", each).lease_id for each in bad_params]
        ended = client.wait_many(bad, timeout=timedelta(seconds=BOUND_SECONDS))
    assert [(lease.attempt, lease.error["type"]) for lease in ended] == [(1, "BadParams")] * 4


def running_job(client: Client, script: str) -> Callable[[], Lease]:
    """Wait until a script that has said `ready` runs."""

    def has_said() -> bool:
        leases = client.list_leases(queue=QUEUE)
        return bool(leases) and any(line.message == "ready" for line in client.lease_logs(leases[0].lease_id))

    wait_until(has_said)
    return lambda: only_lease(client)


GIVES_WAY = "trap 'echo bye; exit 0' TERM; echo ready; sleep 60 & wait"
DOES_NOT = "trap '' TERM; echo ready; sleep 60; sleep 60"


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


@pytest.mark.parametrize("script", [GIVES_WAY, DOES_NOT], ids=["gives way", "is killed"])
def test_ctrl_c_cancels_it(client: Client, dsn: str, tmp_path: Path, script: str) -> None:
    script = f"echo $$ > {tmp_path}/pid; {script}"
    line = ("run", "--queue", QUEUE, "--", "sh", "-c", script)
    with shell_worker(dsn), running(dsn, *line, stdout=subprocess.PIPE) as process:
        lease = running_job(client, script)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND_SECONDS)
        assert process.returncode == 130, err
        assert lease().state is LeaseState.CANCELLED
        assert out.splitlines() == (["ready", "bye"] if script.endswith("wait") else ["ready"])
        wait_until(lambda: has_ended(int((tmp_path / "pid").read_text())))


def test_it_goes_back_when_its_worker_stops(client: Client, dsn: str) -> None:
    client.spawn_lease(QUEUE, "hwqueue.run", {"argv": ["sh", "-c", GIVES_WAY]})
    with shell_worker(dsn, "--shutdown-timeout", "0s") as worker:
        lease = running_job(client, GIVES_WAY)
        worker.terminate()
        worker.wait(BOUND_SECONDS)
    assert (lease().state, lease().attempt) == (LeaseState.PENDING, 0)
    assert [line.message for line in client.lease_logs(lease().lease_id)] == ["ready", "bye"]


def test_it_sees_the_gpus_of_its_lease_alone(client: Client, dsn: str, run: Run) -> None:
    gpus = ("--gpu", "A100:80GiBx4")
    words = ("--placement", '{"resources": {"gpu": 2}}', "--env", "CUDA_VISIBLE_DEVICES=0,1,2,3")
    with shell_worker(dsn, *gpus):
        done = run(*words, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        none = run("--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")
    assert len(done.stdout.strip().split(",")) == 2, done
    assert none.stdout == "[]\n"


def test_without_shell_nothing_is_run(client: Client, dsn: str, run: Run) -> None:
    done = run("--detach", "--", "touch", "/tmp/never")
    assert done.returncode == 0
    assert done.stdout == f"{only_lease(client).lease_id}\n"
    refused = ran(dsn, "worker", "run", "--queue", QUEUE)
    assert refused.returncode == 2
    assert "--app is missing" in refused.stderr
    assert "hwqueue worker run --shell" in refused.stderr


def test_it_prints_what_the_command_prints(client: Client, dsn: str, run: Run) -> None:
    """Beside the tasks of an app: long lines in pieces; options of the command are its own."""
    script = "import sys; sys.stdout.write('é' * 5000 + '\\n' + chr(0) + 'end')"
    with shell_worker(dsn, "--app", "tests.e2e.worker_app:app"):
        added = client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
        done = run("--", sys.executable, "-c", script)
        assert done.stdout == f"{'é' * 2048}\n{'é' * 2048}\n{'é' * 904}\n\\0end\n"
        assert run("echo", "--json", "-v", "--dsn", "x").stdout == "--json -v --dsn x\n"
        done = ran(dsn, "--json", "run", "--queue", QUEUE, "--", "echo", "a")
        said, ended = map(json.loads, done.stdout.splitlines())
        assert (said["message"], ended["state"]) == ("a", "completed")
        assert added.result(timeout=timedelta(seconds=BOUND_SECONDS)) == 3


def test_the_page_shows_what_happens(client: Client, dsn: str, shell: Shell) -> None:
    page = Path(__file__).parents[2] / "docs" / "use" / "worker.md"
    early, later = [token for token in tokens(page, "Run commands: shell jobs") if token.info == "console"]
    shell.run("set +e")  # a job of the page fails
    reader = Reader(shell)
    reader.block(early)
    with registered_worker(client, dsn, "--label", "gpu=true"):
        reader.block(later)
    reader.finish()
