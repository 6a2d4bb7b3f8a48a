"""What a command loads before it does anything: shells and scripts start them by the hundred."""

import subprocess
import sys

# What only an upgrade, a server, a planner or a handler's types need.
LATE = ("alembic", "sqlalchemy", "fastapi", "pydantic", "prometheus_client", "ortools")


def test_what_few_commands_need_is_loaded_when_they_ask_for_it() -> None:
    program = "import sys, hwqueue.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "hwqueue.cli.db" in done.stdout.split()
    assert [name for name in LATE if name in done.stdout.split()] == []
