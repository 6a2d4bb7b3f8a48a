"""The list of planted bugs fits the code: `make mutants` can be trusted before a release."""

from pathlib import Path

import pytest

from tests.mutants.planted import ROOT, Mutant, all_mutants

MUTANTS = all_mutants()
LEAST = 180


def test_there_are_many_of_both_languages() -> None:
    assert len(MUTANTS) >= LEAST
    assert {Path(mutant.file).suffix for mutant in MUTANTS} >= {".sql", ".py"}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_fits_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text()
        assert not name or f"def {name.split('::')[-1].split('[')[0]}(" in text, test
