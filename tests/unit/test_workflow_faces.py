"""Each public function of workflows and durable steps has its faces: Python, CLI, HTTP."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("workflows", "runs", "run_reports", "checkpoints", "children")
MODULES = [ROOT / "sql" / "api" / f"{name}.sql" for name in NAMES]
FACES = {"Python": "client/_async", "the command line": "cli", "HTTP": "server/routers"}

OF_PAGES = "for the pages of the dashboard; what it is made of can be read elsewhere"
OF_WORKERS = "workers call it, through their Python client"
OF_CLAIMS = "a handler calls it with the token of its claim"
WITHOUT = {
    ("submit_spec", "the command line"): "define the file, then run it: a name is to be found again",
    ("submit_workflows", "the command line"): "a loop of `workflow run --key` does not submit twice",
    ("submit_workflows", "HTTP"): "a request for each, with an Idempotency-Key",
    ("run_input", "the command line"): "`workflow status --json` has the input",
    ("run_input", "HTTP"): "`GET /runs/{run_id}` has the input",
    ("advance_workflows", "the command line"): OF_WORKERS,
    ("advance_workflows", "HTTP"): OF_WORKERS,
    ("take_ended_runs", "the command line"): OF_WORKERS,
    ("take_ended_runs", "HTTP"): OF_WORKERS,
    ("preview_retry", "the command line"): "--dry-run is the retry itself, rolled back",
    **{
        (function, face): OF_CLAIMS
        for face in ("the command line", "HTTP")
        for function in (
            "save_checkpoint",
            "checkpoints",
            "take_signal",
            "suspend_lease",
            "add_items",
            "add_steps",
        )
    },
    **{
        (function, face): OF_PAGES
        for face in ("the command line", "HTTP")
        for function in ("get_run_workflow", "list_step_details", "summarise_runs")
    },
}


def public() -> list[str]:
    """The functions of the modules in `sql/api`."""
    begins = re.compile(r"^create or replace function hwqueue\.(\w+)", re.MULTILINE)
    return [name for module in MODULES for name in begins.findall(module.read_text())]


@pytest.mark.parametrize("face", FACES)
def test_each_function_has_this_face_or_a_reason(face: str) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "hwqueue" / FACES[face]).rglob("*.py"))
    called = {name for name in public() if re.search(rf"\b{name}\(|\bClient\.{name}\b", text)}
    without = {name for name, where in WITHOUT if where == face}
    assert set(public()) - called == without
