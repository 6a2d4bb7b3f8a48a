"""The deviations file, and the conditions that its rules name."""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import nomad
from tests.cases.model import Case, namespace_of
from tests.cases.run import oracle_facts
from tests.cases.translate import translate
from tests.oracle.cluster import names, place_of
from tests.oracle.values import NUMBER_TEXT

FILE = Path(__file__).parent / "deviations.toml"


@dataclass(frozen=True)
class Deviation:
    """One choice of the design that some cases contradict."""

    rule: str
    cases: frozenset[str]
    sentence: str


def read_deviations() -> list[Deviation]:
    """Every entry of deviations.toml; raises ValueError for a rule that is not defined here."""
    entries = tomllib.loads(FILE.read_text())["deviation"]
    unknown = {entry["rule"] for entry in entries} - RULES.keys()
    if unknown:
        raise ValueError(f"{FILE} names rules that deviations.py does not define: {unknown}")
    return [Deviation(entry["rule"], frozenset(entry["cases"]), entry["sentence"]) for entry in entries]


def deviations_of(case: Case) -> list[Deviation]:
    """The listed deviations that may change this case."""
    rules = GANG_RULES if case.is_about_a_gang else RULES
    return [
        deviation
        for deviation in read_deviations()
        if case.case_id in deviation.cases or (deviation.rule in rules and rules[deviation.rule](case))
    ]


def _orders_text(case: Case) -> bool:
    return any(
        text is not None and not NUMBER_TEXT.fullmatch(text)
        for item in _constraints(case, *nomad.ORDER_OPS)
        for text in (item.get("value"), *_labels(case, item))
    )


def _orders_fractions(case: Case) -> bool:
    ordered = {item["key"] for item in _node_terms(case) if item["op"] in ("Gt", "Lt")}
    return any("." in node.get("labels", {}).get(key, "") for node in case.nodes for key in ordered)


def _lacks_both_sides(case: Case) -> bool:
    return any(
        item.get("value") is None
        and item["key"] not in node.get("labels", {})
        and item.get("value_key") not in node.get("labels", {})
        for item in _constraints(case, "!=", "not")
        for node in case.nodes
    )


def _has_refused_pattern(case: Case) -> bool:
    return any(
        item.get("value") is None or "(?" in item["value"] or len(item["value"]) > 200
        for item in _constraints(case, "regexp")
    )


def _is_wished_for(case: Case) -> bool:
    lease, _, cluster = oracle_facts(case, translate(case))
    return "score:lease_affinity" in case.stages and any(
        names(term, claim.lease, lease)
        for claim in cluster.running
        for term in _wishes(claim.lease.placement)
    )


def _wishes(placement: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from (item["when"] for item in placement.get("prefer", []))
    yield from (term for term in placement.get("require", []) if not term.get("away"))


def _is_met_more_than_once(case: Case) -> bool:
    lease, _, cluster = oracle_facts(case, translate(case))
    return any(
        count > 1
        for item in lease.placement.get("prefer", [])
        if "leases" in item["when"]
        for place, count in Counter(
            place_of(item["when"], lease, cluster.nodes[claim.node_id], cluster)
            for claim in cluster.running
            if names(item["when"], lease, claim.lease)
        ).items()
        if place is not None
    )


def _leaving_is_wanted(case: Case) -> bool:
    wanted = case.lease.get("lease_affinity") or {}
    return any(lease.get("terminating") for lease in case.running) and bool(
        wanted.get("required") or wanted.get("preferred")
    )


def _runs_outside_of_the_domains(case: Case) -> bool:
    terms = (case.lease.get("lease_affinity") or {}).get("required") or []
    used = {lease.get("node") for lease in case.running}
    return any(
        node["name"] in used and term["topology_key"] not in (node.get("labels") or {})
        for term in terms
        for node in case.nodes
    )


def _tolerates_every_key_without_exists(case: Case) -> bool:
    return any(
        not item.get("key") and item.get("op") != "Exists" for item in case.lease.get("tolerations") or []
    )


def _has_several_scores(case: Case) -> bool:
    return sum(stage.startswith("score:") for stage in case.stages) > 1


def _keeps_a_part(case: Case) -> bool:
    return "gang_give_up" in case.stages and case.expect["decision"] == "keep"


def _names_no_gang(case: Case) -> bool:
    known = {(namespace_of(gang), gang["name"]) for gang in case.gangs}
    lease = case.lease
    return "gang" in lease and (namespace_of(lease), lease["gang"]) not in known


def _constraints(case: Case, *ops: str) -> Iterator[Mapping[str, Any]]:
    return (item for item in case.lease.get("constraints", []) if item["op"] in ops)


def _labels(case: Case, item: Mapping[str, Any]) -> Iterator[str | None]:
    for node in case.nodes:
        yield node.get("labels", {}).get(item["key"])
        yield node.get("labels", {}).get(item.get("value_key"))


def _node_terms(case: Case) -> Iterator[Mapping[str, Any]]:
    for affinity in (case.lease.get("node_affinity"), case.options.get("queue_affinity")):
        for term in (affinity or {}).get("required") or []:
            yield from term.get("labels") or []


GANG_RULES: Mapping[str, Callable[[Case], bool]] = {
    "a gang that lacks a member keeps what it has": _keeps_a_part,
    "a lease names a gang that is not there": _names_no_gang,
}
RULES: Mapping[str, Callable[[Case], bool]] = {
    **GANG_RULES,
    "text is ordered": _orders_text,
    "a label with a fraction is ordered": _orders_fractions,
    "unequal though both sides are missing": _lacks_both_sides,
    "a pattern beyond the limits": _has_refused_pattern,
    "what running leases prefer scores": _is_wished_for,
    "a preference counts how many leases meet it": _is_met_more_than_once,
    "a lease asked to stop is wanted": _leaving_is_wanted,
    "a member of the group runs outside of the domains": _runs_outside_of_the_domains,
    "a toleration of every key that is not exists": _tolerates_every_key_without_exists,
    "several scores are averaged": _has_several_scores,
}
