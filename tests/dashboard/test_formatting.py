"""How settings, secrets and errors are written; what is vendored is what it was."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from hwqueue.dashboard import formatting
from hwqueue.dashboard.charts import life, spark
from hwqueue.types import Attempt, Lease, LeaseState
from tests.unit.claims import bare


def test_secrets_are_not_shown() -> None:
    text = formatting.pretty({"api_key": "abc", "list": [{"Password": "def"}], "number": 2**62 + 1})
    assert "abc" not in text
    assert "def" not in text
    assert str(2**62 + 1) in text


def test_settings_are_written_exactly_and_names_sort_as_people_count() -> None:
    assert formatting.policy("claim_timeout", 90) == "1 min 30 s"
    assert formatting.policy("max_params_bytes", 65_536) == "64 KiB"
    assert formatting.policy("plain", True) == "yes"
    assert formatting.policy("earmarks", 200) == "200"
    tuning = {"notify": True, "window_size": 200, "earmark_time": 600}
    assert formatting.policy("tuning", tuning) == "notify yes, window_size 200, earmark_time 10 min"
    assert sorted(["n-10", "n-9", "m"], key=formatting.natural) == ["m", "n-9", "n-10"]


def test_the_vendored_files_are_what_the_manifest_says() -> None:
    script = Path(__file__).parents[2] / "tools" / "vendor_static.py"
    subprocess.run([sys.executable, str(script)], check=True)


def test_a_line_has_gaps_where_nothing_is_known_and_the_life_of_a_lease_none() -> None:
    assert len(spark([1.0, 2.0, None, 3.0, 4.0])) == 2
    assert spark([1.0]) == []
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def at(seconds: int) -> datetime:
        return start + timedelta(seconds=seconds)

    attempt = Attempt(
        attempt=1,
        claim_token=1,
        node_id=uuid4(),
        outcome="failed",
        claimed_at=at(10),
        ended_at=at(30),
        error=None,
    )
    lease = bare(Lease, state=LeaseState.PENDING, attempts=(attempt,), created_at=at(0), available_at=at(40))
    first, second = life(lease, at(100))
    assert [(part.state, part.left, part.width) for part in first.stretches] == [
        ("pending", 0, 10),
        ("failed", 10, 20),
    ]
    assert [(part.state, part.left, part.width) for part in second.stretches] == [
        ("scheduled", 30, 10),
        ("pending", 40, 60),
    ]
    assert second.stretches[-1].open
    again = replace(lease, attempts=(replace(attempt, outcome="completed"),))
    assert life(again, at(100))[0].stretches[1].state == "completed", "a retry of its run"
    done = replace(lease, state=LeaseState.COMPLETED, claimed_at=at(60), finished_at=at(80))
    last = life(done, at(100))[-1].stretches
    assert [part.state for part in last] == ["scheduled", "pending", "completed"]
    assert last[-1].left + last[-1].width == 100
