"""What the tests of commands share with those of whole programs."""

from tests.e2e.conftest import cli, shown

__all__ = ["cli", "shown"]
