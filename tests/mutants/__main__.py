"""`python -m tests.mutants`, or `make mutants`."""

from tests.mutants.run import app

app(prog_name="python -m tests.mutants")
