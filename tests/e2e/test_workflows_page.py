"""docs/use/workflows.md: its commands, in one shell, beside a worker and a server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_serve import BOUND_SECONDS, server
from tests.e2e.test_worker_examples import EXAMPLES, run_example
from tests.fix_db import strict_skip

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use" / "workflows.md"
PROGRAM = EXAMPLES / "training_flow.py"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PAGE.exists(), reason="no checkout"),
]


def blocks(kind: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Eleven pipelines")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S)


@contextmanager
def training_worker(dsn: str) -> Iterator[None]:
    """The worker of the page, in its folder."""
    [line] = blocks("shell")
    program = [sys.executable, "-c", "from hwqueue.cli.main import app; app()", "--dsn", dsn]
    tags = '{"zone": "west", "gpu": true}'
    assert line == (f"hwqueue worker run --app training_flow:app --name gpu-1 --tags '{tags}'\n")
    words = ["worker", "run", "--app", "training_flow:app", "--name", "gpu-1", "--tags", tags]
    process = subprocess.Popen([*program, *words], cwd=EXAMPLES, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(BOUND_SECONDS)


def test_what_the_page_says_works(dsn: str) -> None:
    if not any((Path(folder) / "curl").exists() for folder in os.get_exec_path()):
        strict_skip("curl is not installed")
    with server(dsn, "--auth", "tokens") as (_, url), training_worker(dsn):
        script = "\n".join(blocks("sh")).replace("http://localhost:8080", url)
        folder = Path(sys.executable).parent
        env = os.environ | {"HWQUEUE_DSN": dsn, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", script],
            env=env, cwd=EXAMPLES, capture_output=True, text=True, check=False,
            timeout=BOUND_SECONDS * script.count("\n"),  # only ends a hang: a bound for each line
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        ended = re.findall(r"of training version 1(?:, key \S+)?: (\w+)", done.stdout)
        assert ended == ["completed", "completed", "failed", "completed", "completed"]
        assert re.findall(r"of release version 1: (\w+)", done.stdout) == ["running", "completed"]
        assert "waits for signal approved until" in done.stdout
        assert '"created":false' in done.stdout
        assert "Reject: no such dataset: typo" in done.stdout
        assert "exit code 1" in done.stdout
        assert "event: ended" in done.stdout
        assert run_example(PROGRAM.name, dsn).splitlines() == [
            "completed {'model': 's3://films/prepared/model'}",
            "prepare completed 1",
            "train completed 1",
            "tell completed 1",
        ]


def test_the_page_shows_what_the_program_has() -> None:
    program = PROGRAM.read_text(encoding="utf-8")
    shown = blocks("python")
    assert len(shown) == 3
    assert [block for block in shown if block not in program] == []
