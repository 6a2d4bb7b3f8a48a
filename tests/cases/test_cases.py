"""Conformance: what Kubernetes, Nomad and Fleet answer, hwqueue answers, or says why not.

The cases come from HWQUEUE_CASES_DIR, else from data/; SCHEMA.md describes them.
"""

import collections

import psycopg
import pytest

from tests.cases import run
from tests.cases.deviations import deviations_of, read_deviations
from tests.cases.model import Case, folder, read_cases
from tests.cases.support import SUPPORTED, WRITTEN, waits_for
from tests.direct import Direct

CASES = list(read_cases(folder()))
RUN = [case for case in CASES if waits_for(case) is None]
DEFERRED = collections.Counter(
    feature for case in CASES if (feature := waits_for(case)) is not None
)
FILTER_CASES = [case for case in RUN if not SUPPORTED[case.stages[0]].is_score]
SCORE_CASES = [case for case in RUN if SUPPORTED[case.stages[0]].is_score]
NOT_SUPPORTED = "QHC05"


def case_id(case: Case) -> str:
    """How a case is called in the test's name."""
    return case.case_id


def upstream_answer(case: Case) -> frozenset[str]:
    """The nodes that upstream lets take the lease."""
    if "decision" in case.expect:
        return case.candidates if case.expect["decision"] == "allow" else frozenset()
    return frozenset(case.expect.get("feasible", []))


@pytest.mark.parametrize("case", FILTER_CASES, ids=case_id)
def test_filter(conn: psycopg.Connection, case: Case) -> None:
    """claim_task, match_nodes and the oracle agree with upstream, or a deviation is listed."""
    translated = SUPPORTED[case.stages[0]].translate(case)
    direct = Direct(conn)
    claims = run.run_claims(direct, case, translated)
    verdict = run.ask_oracle(case, translated)
    assert claims == run.run_match(direct, case, translated)
    assert claims.feasible == verdict.feasible
    if verdict.refused or claims.refused != run.CONTRADICTORY:
        assert claims.refused == verdict.refused
    if case.expect.get("error"):
        assert claims.refused
    if claims.feasible != upstream_answer(case):
        assert deviations_of(case), f"upstream says {sorted(upstream_answer(case))}"


@pytest.mark.parametrize("case", SCORE_CASES, ids=case_id)
def test_score(conn: psycopg.Connection, case: Case) -> None:
    """match_nodes puts the nodes into upstream's order."""
    translated = SUPPORTED[case.stages[0]].translate(case)
    affinity = run.oracle_affinity(case, translated)
    if "raw_scores" in case.expect:
        weights = sum(abs(item["weight"]) for item in translated.placement["prefer"])
        raw = {name: score * weights / 100 for name, score in affinity.items()}
        assert raw == pytest.approx(case.expect["raw_scores"])
    rank = case.expect.get("rank") or run.ranked(case.expect["raw_scores"], case.precision)
    assert run.ranked(affinity, case.precision) == [sorted(group) for group in rank]
    scores = run.run_scores(Direct(conn), case, translated)
    assert run.ranked(scores, case.precision) == [sorted(group) for group in rank]


@pytest.mark.parametrize("case", FILTER_CASES, ids=case_id)
def test_deviations_are_current(case: Case) -> None:
    """A case listed by name in the deviations file does deviate."""
    listed = [item.rule for item in read_deviations() if case.case_id in item.cases]
    verdict = run.ask_oracle(case, SUPPORTED[case.stages[0]].translate(case))
    if verdict.feasible == upstream_answer(case):
        assert not listed
    else:
        assert deviations_of(case)


@pytest.mark.parametrize(
    "feature", DEFERRED, ids=lambda feature: f"deferred: {DEFERRED[feature]} need {feature}"
)
def test_deferred(conn: psycopg.Connection, feature: str) -> None:
    """What the deferred cases need is refused, not ignored: once it is built, they must run."""
    for placement in WRITTEN.get(feature, []):
        with pytest.raises(psycopg.DatabaseError) as refusal:
            Direct(conn).match(placement)
        assert refusal.value.sqlstate == NOT_SUPPORTED


def test_every_case_runs_or_waits_for_a_feature() -> None:
    """Nothing is passed over."""
    assert len(RUN) + DEFERRED.total() == len(CASES)
    assert RUN, f"no case of {folder()} can run"
