"""The programs of docs/use/producer.md do what the page says."""

import re
import subprocess
import sys
from pathlib import Path

from hwqueue.client import Client
from tests.shell_lines import part

PAGE = Path(__file__).parents[2] / "docs" / "use" / "producer.md"


def run(heading: str, dsn: str) -> list[str]:
    """The lines that the program below a heading prints."""
    [program] = re.findall(r"```python\n(.*?)```", part(PAGE, heading), re.S)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HWQUEUE_DSN": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_second_report_is_the_first(dsn: str) -> None:
    assert run("One of a kind: unique leases", dsn) == ["True", "False", "True"]


def test_the_program_cancels_the_film(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        for film in ("7", "7", "8"):
            client.spawn_lease("renders", "draw", labels={"film": film})
    told = run("Change many leases at once", dsn)
    assert (told[0], told[-1]) == ("2", "2 ()")
    with Client(dsn) as client:
        assert client.count_leases("renders", states=["pending"]) == 1
        assert client.count_leases("renders", states=["cancelled"]) == 2
