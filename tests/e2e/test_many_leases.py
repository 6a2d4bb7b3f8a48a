"""The Python of docs/howto/many_leases.md does what the page says."""

import re
import subprocess
import sys
from pathlib import Path

from hwqueue.client import Client

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "many_leases.md"


def test_the_program_cancels_the_film(dsn: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    with Client(dsn) as client:
        client.create_queue("renders")
        for film in ("7", "7", "8"):
            client.spawn_lease("renders", "draw", labels={"film": film})
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"HWQUEUE_DSN": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stdout.split("\n")
    assert (told[0], told[-2]) == ("2", "2 ()")
    with Client(dsn) as client:
        assert client.count_leases("renders", states=["pending"]) == 1
        assert client.count_leases("renders", states=["cancelled"]) == 2
