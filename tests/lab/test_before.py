"""Two schemas side by side: here the same one twice."""

from pathlib import Path

from benchmarks.core.run import Run
from lab.before import before
from tests.benchmarks.asking import ask

_ROOT = Path(__file__).parents[2]


def test_the_question(run: Run) -> None:
    [answer] = ask(before, run, "--checkout", str(_ROOT), "--pairs", "20", "--blocks", "3")
    claims, settlements, *_ = answer.figures
    for figure in (claims, settlements):
        assert figure.ratio is not None
        assert figure.aim is not None
        assert figure.value.median > 0
