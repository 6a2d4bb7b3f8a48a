"""The programs and the notebook of docs/use/producer.md do what the page says."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hwqueue.client import Client
from tests.fix_db import strict_skip
from tests.shell_lines import fenced, part

PAGE = Path(__file__).parents[2] / "docs" / "use" / "producer.md"


def run(heading: str, dsn: str) -> list[str]:
    """The lines that the program below a heading prints."""
    [program] = fenced(part(PAGE, heading), "python")
    done = subprocess.run(
        [sys.executable, "-c", program], env={"HWQUEUE_DSN": dsn}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_the_second_report_is_the_first(dsn: str) -> None:
    assert run("One of a kind: unique leases", dsn) == ["True", "False", "True"]


def test_the_program_cancels_the_film(dsn: str) -> None:
    with Client(dsn) as client:
        client.create_queue("renders")
        for film in ("7", "7", "8"):
            client.spawn_lease("renders", "draw", labels={"film": film})
    told = run("Change many leases at once", dsn)
    assert (told[0], told[-1]) == ("2", "2 ()")
    with Client(dsn) as client:
        assert client.count_leases("renders", states=["pending"]) == 1
        assert client.count_leases("renders", states=["cancelled"]) == 2


NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "notebook.ipynb"


def read() -> Any:
    """The notebook, if there is what runs it."""
    if missing := [name for name in ("nbclient", "ipykernel", "tqdm") if find_spec(name) is None]:
        strict_skip(f"{' and '.join(missing)} not installed")
    import nbformat  # noqa: PLC0415 - may be missing

    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def results(notebook: Any) -> list[str]:
    """What the cells show as their values."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]


def test_the_notebook_runs_and_shows_what_it_holds(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = read()
    from nbclient import NotebookClient  # noqa: PLC0415 - may be missing

    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setenv("HWQUEUE_DSN", dsn)
    NotebookClient(run, timeout=120, kernel_name="python3").execute()
    assert len(results(run)) == 3
    assert results(run) == results(read())


def test_the_page_shows_cells_of_the_notebook() -> None:
    cells = "\n".join(cell.source for cell in read().cells)
    shown = fenced(part(PAGE, "In a notebook"), "python")
    assert len(shown) >= 3
    assert [block for block in shown if block.strip() not in cells] == []
