"""The start of `hwqueue`, which every command pays for."""

import subprocess
import sys

import pytest

CODE = """
import gc
import hwqueue.cli.main
hwqueue.cli.main.app = lambda: print(gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
from hwqueue.__main__ import main
main()
"""
pytestmark = pytest.mark.thorough


def test_garbage_is_not_sought_among_what_was_imported() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.stdout == "True True\n", run.stderr
