"""Which features a case needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.cases.model import Case
from tests.cases.translate import STAGES, translate

TAINTS = "taints and tolerations"
OTHERS = "requirements about other leases"
RATHER_OTHERS = "preferences about other leases"
SPREAD = "spread"
RATHER_SPREAD = "spread as a preference"
GANGS = "gangs"
REPLACES = "replaces"


def needs(case: Case) -> Iterator[str]:
    """The features that the case needs.

    Raises KeyError for a stage that is not known: a new kind of case is not passed over.
    """
    if case.is_about_a_gang:
        yield GANGS
        return
    if any((lease.get("fleet") or {}).get("replaces") for lease in (case.lease, *case.running)):
        yield REPLACES
    translated = translate(case)
    placements = [translated.placement, *(adopted.placement for adopted in translated.running)]
    if any("tolerate" in placement for placement in placements) or any(
        "taints" in spec for _, spec in translated.nodes.values()
    ):
        yield TAINTS
    for placement in placements:
        if any(_is_about_leases(expr) for expr in placement.get("require", [])):
            yield OTHERS
        if any(_is_about_leases(item["when"]) for item in placement.get("prefer", [])):
            yield RATHER_OTHERS
        for spread in placement.get("spread", []):
            is_soft = "targets" in spread or spread.get("when") == "prefer"
            yield RATHER_SPREAD if is_soft else SPREAD


def is_score(case: Case) -> bool:
    """Whether the case asks for an order of nodes: not for the eligible ones, nor for a refusal."""
    return STAGES[case.stages[0]].is_score and not case.expect.get("error")


def _is_about_leases(when: Any) -> bool:
    return isinstance(when, Mapping) and ("lease" in when or "leases" in when)
