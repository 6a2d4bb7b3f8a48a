"""docs/use/producer.md: its notebook, run by a kernel."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.fix_db import strict_skip
from tests.shell_lines import part

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "examples" / "notebook.ipynb"
PAGE = ROOT / "docs" / "use" / "producer.md"
pytestmark = pytest.mark.thorough

NEEDED = ("nbclient", "ipykernel", "tqdm")


@pytest.fixture(autouse=True)
def needed() -> None:
    """What runs notebooks."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        strict_skip(f"{' and '.join(missing)} not installed")


def read() -> Any:
    import nbformat  # noqa: PLC0415 - may be missing

    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def results(notebook: Any) -> list[str]:
    """What the cells show as their values."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data["text/plain"] for output in outputs if output.output_type == "execute_result"]


def test_the_notebook_runs_and_shows_what_it_holds(
    dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nbclient import NotebookClient  # noqa: PLC0415 - may be missing

    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setenv("HWQUEUE_DSN", dsn)
    run = read()
    NotebookClient(run, timeout=120, kernel_name="python3").execute()
    assert len(results(run)) == 3
    assert results(run) == results(read())


def test_the_page_shows_cells_of_the_notebook() -> None:
    cells = "\n".join(cell.source for cell in read().cells)
    shown = re.findall(r"^```python\n(.*?)^```", part(PAGE, "In a notebook"), re.M | re.S)
    assert len(shown) >= 3
    assert [block for block in shown if block.strip() not in cells] == []
