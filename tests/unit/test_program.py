"""The start of `hwqueue`, which every command pays for; and a taken port, told before anything else."""

import re
import socket
import subprocess
import sys

import pytest

from hwqueue.cli.needed import check_address

CODE = """
import gc
import hwqueue.cli.main
hwqueue.cli.main.app = lambda: print(gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
from hwqueue.__main__ import main
main()
"""
# What only an upgrade, a server, a planner or a handler's types need.
LATE = ("alembic", "sqlalchemy", "fastapi", "pydantic", "prometheus_client", "ortools")


@pytest.mark.thorough
def test_garbage_is_not_sought_among_what_was_imported() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.stdout == "True True\n", run.stderr


def test_what_few_commands_need_is_loaded_when_they_ask_for_it() -> None:
    program = "import sys, hwqueue.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "hwqueue.cli.db" in done.stdout.split()
    assert [name for name in LATE if name in done.stdout.split()] == []


def test_a_taken_port_and_a_host_that_does_not_exist_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        where = re.escape(f"cannot listen at 127.0.0.1:{port}: ")
        with pytest.raises(OSError, match=f"^{where}Address .*in use; choose another --port"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    with pytest.raises(OSError, match=r"^cannot listen at nobody\.invalid:80: "):
        check_address("nobody.invalid", 80)
