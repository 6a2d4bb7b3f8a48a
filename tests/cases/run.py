"""Runs a translated case: on the database, as SCHEMA.md says, and through the oracle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from tests.cases.model import Case, Translated
from tests.direct import Direct
from tests.oracle.affinity import affinity, check_placement
from tests.oracle.expressions import RefusedError, holds
from tests.oracle.facts import Node

QUEUE = "cases"
PLACEMENT_INVALID = "QHC03"
CONTRADICTORY = "QHC04"


@dataclass(frozen=True)
class Outcome:
    """The nodes that may take the lease, or the SQLSTATE with which it was refused at submit."""

    feasible: frozenset[str]
    refused: str | None = None


def run_claims(direct: Direct, case: Case, translated: Translated) -> Outcome:
    """Submit the lease, then let each candidate claim it, rolled back in between."""
    epochs = _register(direct, translated)
    direct.create_queue(QUEUE)
    try:
        lease = direct.spawn(QUEUE, {"placement": translated.placement})["lease_id"]
    except psycopg.DatabaseError as error:
        return Outcome(frozenset(), _refusal(error))
    taken = set()
    for name in case.candidates:
        with direct.conn.transaction(force_rollback=True):
            rows = direct.claim(QUEUE, translated.nodes[name][0], epochs[name])
            if [row["lease_id"] for row in rows] == [lease]:
                taken.add(name)
    return Outcome(frozenset(taken))


def run_match(direct: Direct, case: Case, translated: Translated) -> Outcome:
    """The same question to match_nodes; the nodes are registered already."""
    try:
        rows = direct.match(translated.placement)
    except psycopg.DatabaseError as error:
        return Outcome(frozenset(), _refusal(error))
    eligible = {row["node_name"] for row in rows if row["eligible"]}
    return Outcome(frozenset(eligible & case.candidates))


def run_scores(direct: Direct, case: Case, translated: Translated) -> Mapping[str, float]:
    """Each candidate's score by match_nodes."""
    _register(direct, translated)
    rows = direct.match(translated.placement)
    return {row["node_name"]: row["score"] for row in rows if row["node_name"] in case.candidates}


def ask_oracle(case: Case, translated: Translated) -> Outcome:
    """What the documents say of the same lease and nodes."""
    try:
        check_placement(translated.placement)
    except RefusedError:
        return Outcome(frozenset(), PLACEMENT_INVALID)
    nodes = oracle_nodes(case, translated)
    require = translated.placement["require"]
    return Outcome(frozenset(name for name, node in nodes.items() if holds(require, node)))


def oracle_affinity(case: Case, translated: Translated) -> Mapping[str, float]:
    """Each candidate's preference score by the documents."""
    nodes = oracle_nodes(case, translated)
    return {name: affinity(translated.placement, node) for name, node in nodes.items()}


def oracle_nodes(case: Case, translated: Translated) -> Mapping[str, Node]:
    """The candidates as the oracle knows them."""
    return {name: Node.from_spec(*translated.nodes[name]) for name in case.candidates}


def ranked(scores: Mapping[str, float], precision: int) -> list[list[str]]:
    """Groups of equal nodes, best first."""
    rounded = {name: round(score, precision) for name, score in scores.items()}
    return [
        sorted(name for name in rounded if rounded[name] == score)
        for score in sorted(set(rounded.values()), reverse=True)
    ]


def _register(direct: Direct, translated: Translated) -> dict[str, int]:
    nodes: Iterable[tuple[str, tuple[UUID, Mapping[str, Any]]]] = translated.nodes.items()
    return {name: direct.register(node, spec) for name, (node, spec) in nodes}


def _refusal(error: psycopg.DatabaseError) -> str:
    if error.sqlstate not in (PLACEMENT_INVALID, CONTRADICTORY):
        raise error
    return error.sqlstate
