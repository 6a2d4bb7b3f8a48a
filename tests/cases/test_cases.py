"""Conformance: what Kubernetes, Nomad and Fleet answer, hwqueue answers, or says why not.

The cases come from HWQUEUE_CASES_DIR, else from data/; SCHEMA.md describes them. Every case is
asked of the oracle and run on the database.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.cases import gangs, run
from tests.cases.deviations import deviations_of, read_deviations
from tests.cases.fleet import replaced
from tests.cases.model import Case, folder, lease_id, read_cases
from tests.cases.support import GANGS, REPLACES, is_score, needs
from tests.cases.test_translation import made
from tests.cases.translate import translate
from tests.direct import Direct

CASES = list(read_cases(folder()))
ABOUT_GANGS = [case for case in CASES if case.is_about_a_gang]
RUN = [case for case in CASES if not case.is_about_a_gang]
ANSWERED = [case for case in CASES if not {GANGS, REPLACES} & set(needs(case))]


def case_id(case: Case) -> str:
    """How a case is called in the test's name."""
    return case.case_id


def sampled(cases: Iterable[Case]) -> list[Any]:
    """The cases, all but the first of each suite that need the same marked as thorough.

    The oracle is asked all of them in any case (`test_upstream`).
    """
    found: list[Any] = []
    seen = set()
    for case in cases:
        kind = (case.suite, *sorted(set(needs(case))))
        found.append(pytest.param(case, marks=pytest.mark.thorough) if kind in seen else case)
        seen.add(kind)
    return found


def upstream_answer(case: Case) -> frozenset[str]:
    """The nodes that upstream lets take the lease, all filters considered where a case says so."""
    if "decision" in case.expect:
        return case.candidates if case.expect["decision"] == "allow" else frozenset()
    feasible = case.expect.get("feasible") or []
    return frozenset(case.expect.get("feasible_all_filters", feasible))


def upstream_rank(case: Case) -> list[list[str]]:
    """Groups of nodes that upstream scores alike, best first; as many as bind."""
    rank = case.expect.get("rank") or run.ranked(case.expect["raw_scores"], case.precision)
    return [sorted(group) for group in (rank[:1] if case.expect.get("finite") else rank)]


def binding(case: Case, rank: list[list[str]]) -> list[list[str]]:
    """As many groups of the rank as upstream's answer has."""
    return rank[: len(upstream_rank(case))] if case.expect.get("finite") else rank


@pytest.mark.parametrize("case", sampled(case for case in RUN if not is_score(case)), ids=case_id)
def test_filter(conn: psycopg.Connection, case: Case) -> None:
    """claim_task and match_nodes give what the oracle gives; it agrees with upstream, see below."""
    translated = translate(case)
    direct = Direct(conn)
    claims = run.run_claims(direct, case, translated)
    verdict = run.ask_oracle(case, translated)
    assert claims == run.run_match(direct, case, translated)
    assert claims.feasible == verdict.feasible
    if verdict.refused or claims.refused != run.CONTRADICTORY:
        assert claims.refused == verdict.refused


@pytest.mark.parametrize("case", sampled(case for case in RUN if is_score(case)), ids=case_id)
def test_score(conn: psycopg.Connection, case: Case) -> None:
    """match_nodes puts the nodes into the oracle's order."""
    translated = translate(case)
    scores = run.run_scores(Direct(conn), case, translated)
    assert all(map(math.isfinite, scores.values()))
    rank = binding(case, run.ranked(scores, case.precision))
    expected = run.ranked(run.oracle_scores(case, translated), case.precision)
    assert rank == binding(case, expected)


@pytest.mark.parametrize("case", ANSWERED, ids=case_id)
def test_upstream(case: Case) -> None:
    """The oracle agrees with upstream, or a deviation is listed; what is listed does deviate."""
    translated = translate(case)
    if is_score(case):
        scores = run.oracle_scores(case, translated)
        assert_raw_scores(case, scores)
        rank = binding(case, run.ranked(scores, case.precision))
        agrees = rank == upstream_rank(case)
        found = f"{rank}, upstream says {upstream_rank(case)}"
    else:
        verdict = run.ask_oracle(case, translated)
        agrees = verdict.feasible == upstream_answer(case)
        found = f"{sorted(verdict.feasible)}, upstream says {sorted(upstream_answer(case))}"
        if case.expect.get("error"):
            assert verdict.refused
    if agrees:
        assert not [item.rule for item in read_deviations() if case.case_id in item.cases]
    else:
        assert deviations_of(case), found


@pytest.mark.parametrize("case", ABOUT_GANGS, ids=case_id)
def test_gang(conn: psycopg.Connection, case: Case) -> None:
    """A tick decides as upstream does, or a deviation is listed; what is listed does deviate."""
    decision, expected = gangs.decide(Direct(conn), case), case.expect["decision"]
    if decision == expected:
        assert not [item.rule for item in read_deviations() if case.case_id in item.cases]
    else:
        assert deviations_of(case), f"{decision}, upstream says {expected}"


def assert_raw_scores(case: Case, scores: Mapping[str, float]) -> None:
    """Where upstream gives sums of weights, the scores are those sums, scaled."""
    if "raw_scores" in case.expect:
        prefer = translate(case).placement.get("prefer", [])  # left out where none has a weight
        weights = sum(abs(item["weight"]) for item in prefer)
        raw = {name: score * weights / 100 for name, score in scores.items()}
        assert raw == pytest.approx(case.expect["raw_scores"])


def preferring(stage: str, lease: Mapping[str, Any], expect: Mapping[str, Any]) -> Case:
    """A case that asks for an order of two nodes, or what is given instead."""
    nodes = [{"name": name, "labels": {"zone": name, "app": "web"}} for name in ("a", "b")]
    return replace(made(stage, lease, nodes=nodes), expect=expect)


IN_A = {"labels": [{"key": "zone", "op": "In", "values": ["a"]}]}
NOT_VALID = {"topology_key": "zone", "selector": {"exprs": [{"key": "a", "op": "Gt", "values": ["1"]}]}}
LIKE_A = {"key": "zone", "op": "=", "value": "a"}
RATHER = {
    "refused": preferring(
        "score:lease_affinity",
        {"lease_affinity": {"preferred": [{"weight": 5, "term": NOT_VALID}]}},
        {"error": "invalid_selector"},
    ),
    "of weight 0": preferring(
        "score:node_affinity:raw",
        {"node_affinity": {"preferred": [{"weight": 0, "term": IN_A}]}},
        {"raw_scores": {"a": 0, "b": 0}},
    ),
    "of weight 0, kept": preferring(
        "score:nomad_affinity", {"affinities": [LIKE_A | {"weight": 0}]}, {"rank": [["a", "b"]]}
    ),
    "of weights 0 and 1": preferring(
        "score:nomad_affinity",
        {"affinities": [LIKE_A | {"weight": 0}, LIKE_A | {"value": "b", "weight": 1}]},
        {"rank": [["b"], ["a"]]},
    ),
}


@pytest.mark.parametrize("case", RATHER.values(), ids=RATHER)
@pytest.mark.thorough
def test_preferences_that_are_refused_or_weigh_nothing(conn: psycopg.Connection, case: Case) -> None:
    """No shipped case of a scoring stage has such; the suite that is given may."""
    ask = test_score if is_score(case) else test_filter
    ask(conn, case)
    test_upstream(case)
    wrong = replace(case, expect={"rank": [["a"], ["b"]], "raw_scores": {"a": 1, "b": 0}})
    with pytest.raises(AssertionError):
        test_upstream(wrong)


def test_there_are_cases() -> None:
    assert RUN, f"no case of {folder()} can run"


REPLACING = [case for case in read_cases(folder()) if REPLACES in needs(case)]


@pytest.mark.parametrize("case", REPLACING, ids=lambda case: case.case_id)
def test_it_is_placed_and_the_other_one_moves(conn: psycopg.Connection, case: Case) -> None:
    """What Fleet decides: to allow it, to allow it and move what it replaces, or neither."""
    direct, translated = Direct(conn), translate(case)
    epochs = run.set_up(direct, translated)
    olds = [lease_id(name) for name in replaced(case)][:1]  # one at a time
    options = {**translated.lease, "placement": translated.placement}
    if olds:
        options["replaces"] = {"lease": str(olds[0]), "then": "requeue"}
    lease = direct.spawn(run.QUEUE, options)["lease_id"]
    direct.settle_terms()
    direct.reap()
    [node] = case.candidates
    able = None if olds else direct.could_take(lease)
    stopped = {
        found["lease_id"]: direct.lease(found["lease_id"])
        for found in direct.rows("list_leases", filter={"state": "claimed"})
        if found["lease_id"] != lease and direct.lease(found["lease_id"])["stop_reason"] == "preempted"
    }
    assert stopped.keys() <= set(olds)
    for old, found in stopped.items():
        direct.release(old, found["claim_token"])
    direct.reap()
    rows = direct.claim(run.QUEUE, translated.nodes[node][0], epochs[node])
    assert [row["lease_id"] for row in rows] in ([lease], [])
    assert able in (None, {translated.nodes[node][0]} if rows else set())
    moved = [direct.lease(old)["state"] for old in stopped] == ["pending"]
    placed = "allow_and_move" if moved else "allow"
    assert case.expect["decision"] == (placed if rows else "deny")
