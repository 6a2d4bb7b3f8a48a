"""What benchmarks need to run inside a test."""

import pytest
from rich.console import Console

from benchmarks.core.run import Run


@pytest.fixture
def run(server_dsn: str) -> Run:
    """A run on the server under test that keeps its progress to itself."""
    return Run(server_dsn, Console(quiet=True))
