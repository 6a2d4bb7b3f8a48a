"""What the laboratory needs to run inside a test: as benchmarks do."""

from tests.benchmarks.conftest import run

__all__ = ["run"]
