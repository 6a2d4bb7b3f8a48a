"""The programs of docs/howto/many_leases.md and unique.md do what the pages say."""

import re
import subprocess
import sys
from pathlib import Path

from hwqueue.client import Client

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def run(page: str, dsn: str) -> list[str]:
    """The lines that the program of a page prints."""
    [program] = re.findall(r"```python\n(.*?)```", (HOWTO / page).read_text(encoding="utf-8"), re.S)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HWQUEUE_DSN": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_second_report_is_the_first(dsn: str) -> None:
    assert run("unique.md", dsn) == ["True", "False", "True"]


def test_the_program_cancels_the_film(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        for film in ("7", "7", "8"):
            client.spawn_lease("renders", "draw", labels={"film": film})
    told = run("many_leases.md", dsn)
    assert (told[0], told[-1]) == ("2", "2 ()")
    with Client(dsn) as client:
        assert client.count_leases("renders", states=["pending"]) == 1
        assert client.count_leases("renders", states=["cancelled"]) == 2
