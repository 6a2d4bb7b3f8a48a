"""Plant each bug in turn and run the tests that must catch it.

A mutant is caught when a test fails with it. Errors outside of tests (a fixture, a collection) do
not count: a schema that cannot be installed says nothing about the tests.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hwqueue.embedded import EmbeddedServer
from tests.conftest import EMBEDDED
from tests.fix_db import THROWAWAY
from tests.mutants.planted import Mutant, all_mutants, copy_project

_LONGEST_SECONDS = 900  # the tests of one mutant take seconds, some of them a minute

app = typer.Typer(add_completion=False)
console = Console(highlight=False, soft_wrap=True)


class Trial:
    """A copy of the project, and a server that all runs of tests share."""

    def __init__(self, root: Path, dsn: str) -> None:
        self.root = root
        self._environment = os.environ | {
            "HWQUEUE_TEST_DSN": dsn,
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def failures(self, tests: Sequence[str], *, stop: bool = True) -> tuple[list[str], str]:
        """Run tests in the copy: the names of those that failed, and what pytest printed.

        Raises:
            RuntimeError: nothing failed, yet pytest could not run the tests, or they hang.
        """
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-x"] if stop else []
        environment = dict(self._environment)
        texts = [(self.root / test.split("::")[0]).read_text(encoding="utf-8") for test in tests]
        if any(test.split("/")[1] in EMBEDDED for test in tests) or "mark.embedded" in "".join(texts):
            # these are left out where a server is named: they start one for themselves
            del environment["HWQUEUE_TEST_DSN"]
        try:
            ran = subprocess.run(
                [*command, f"--junitxml={report}", *tests],
                cwd=self.root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_LONGEST_SECONDS if stop else None,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"pytest {' '.join(tests)} did not end: {error}") from error
        cases = ET.parse(report).getroot().iter("testcase") if report.exists() else ()
        failed = [str(case.get("name")) for case in cases if case.find("failure") is not None]
        if ran.returncode and not failed:
            raise RuntimeError(f"pytest {' '.join(tests)} could not run:\n{ran.stdout[-3000:]}")
        return failed, ran.stdout


def chosen(names: Sequence[str]) -> list[Mutant]:
    """The mutants of these names; without any, all.

    Raises:
        typer.BadParameter: there is no mutant of a name.
    """
    mutants = all_mutants()
    known = {mutant.name for mutant in mutants}
    if unknown := sorted(set(names) - known):
        raise typer.BadParameter(f"no mutant is called {', '.join(unknown)}; see --list")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def check_unplanted(trial: Trial, mutants: Sequence[Mutant]) -> None:
    """Refuse to go on where tests fail without any bug: then a failure would say nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    console.print(f"without a bug: {len(tests)} files and tests", end=" ... ")
    failed, output = trial.failures(tests, stop=False)
    if failed:
        console.print(f"failed: {', '.join(failed)}")
        sys.stdout.write(output[-6000:])
        raise typer.Exit(1)
    console.print("passed")


def survives(trial: Trial, mutant: Mutant) -> bool:
    """Plant one bug, run its tests, say what came of it."""
    console.print(f"{mutant.name}: {mutant.breaks}", end=" ... ")
    try:
        mutant.edit(trial.root)
        failed, _ = trial.failures(mutant.tests)
    except (RuntimeError, ValueError) as error:
        console.print(f"[bold red]BROKEN[/]\n{error}")
        return True
    finally:
        mutant.undo(trial.root)
    console.print(f"caught by {failed[0]}" if failed else "[bold red]SURVIVED[/]")
    return not failed


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="Only these mutants.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List them, run nothing.")] = False,
    unplanted: Annotated[
        bool, typer.Option("--unplanted/--no-unplanted", help="First the tests without any bug.")
    ] = True,
) -> None:
    """Plant known bugs, one at a time, in a copy of the project: the tests must catch each.

    Example: python -m tests.mutants key-without-tenant
    """
    mutants = chosen(names or ())
    if show:
        for mutant in mutants:
            console.print(f"{mutant.name:34} {mutant.file}: {mutant.breaks}")
        return
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hwqueue-mutants-")))
        # A server that is not root's must be able to look into it.
        root.chmod(0o755)
        copy_project(root / "copy")
        trial = Trial(root / "copy", os.environ.get("HWQUEUE_TEST_DSN") or server(stack, root))
        if unplanted:
            check_unplanted(trial, mutants)
        survivors = [mutant.name for mutant in mutants if survives(trial, mutant)]
    console.print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    if survivors:
        console.print(f"not caught: {', '.join(survivors)}")
        raise typer.Exit(1)


def server(stack: ExitStack, root: Path) -> str:
    """Start a throwaway server that ends with the stack; its DSN."""
    started = EmbeddedServer(root / "server", settings=THROWAWAY)
    stack.callback(started.stop)
    return started.ensure_running()
