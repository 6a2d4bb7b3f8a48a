"""Runs a translated case: on the database, as SCHEMA.md says, and through the oracle."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.calls import TASK
from tests.cases.model import Case, Translated
from tests.direct import Direct
from tests.oracle.affinity import check_placement
from tests.oracle.cluster import Cluster, Lease, Running
from tests.oracle.expressions import RefusedError
from tests.oracle.facts import Node
from tests.oracle.occupancy import may_run, preference
from tests.oracle.spread import spread_order

QUEUE = "cases"
EXPLAINED = 20  # an explanation tells so many nodes one by one
PLACEMENT_INVALID = "QHC03"
CONTRADICTORY = "QHC04"


@dataclass(frozen=True)
class Outcome:
    """The nodes that may take the lease, or the SQLSTATE with which it was refused at submit."""

    feasible: frozenset[str]
    refused: str | None = None


def run_claims(direct: Direct, case: Case, translated: Translated) -> Outcome:
    """Submit the lease, then let each candidate claim it, rolled back in between."""
    epochs = set_up(direct, translated)
    try:
        options = {**translated.lease, "placement": translated.placement}
        lease = direct.spawn(QUEUE, options)["lease_id"]
    except psycopg.DatabaseError as error:
        return Outcome(frozenset(), _refusal(error))
    direct.settle_terms()  # before the claims here, which are rolled back
    taken = set()
    for name in case.candidates:
        with direct.conn.transaction(force_rollback=True):
            rows = direct.claim(QUEUE, translated.nodes[name][0], epochs[name])
            if [row["lease_id"] for row in rows] == [lease]:
                taken.add(name)
    if len(epochs) <= EXPLAINED:
        able = {str(node) for node in direct.could_take(lease)}
        names = {name for name, (node, _) in translated.nodes.items() if str(node) in able}
        assert names & case.candidates == taken, "explain_lease says otherwise"
    return Outcome(frozenset(taken))


def run_match(direct: Direct, case: Case, translated: Translated) -> Outcome:
    """The same question to match_nodes; nodes and what runs are there already."""
    try:
        rows = direct.match(translated.placement, _match_options(translated))
    except psycopg.DatabaseError as error:
        return Outcome(frozenset(), _refusal(error))
    eligible = {row["node_name"] for row in rows if row["eligible"]}
    return Outcome(frozenset(eligible & case.candidates))


def run_scores(direct: Direct, case: Case, translated: Translated) -> Mapping[str, float]:
    """Each candidate's score by match_nodes."""
    set_up(direct, translated)
    rows = direct.match(translated.placement, _match_options(translated))
    return {row["node_name"]: row["score"] for row in rows if row["node_name"] in case.candidates}


def ask_oracle(case: Case, translated: Translated) -> Outcome:
    """What the documents say of the same lease, nodes and running leases."""
    try:
        check_placement(translated.placement)
    except RefusedError:
        return Outcome(frozenset(), PLACEMENT_INVALID)
    lease, nodes, cluster = oracle_facts(case, translated)
    return Outcome(frozenset(name for name, node in nodes.items() if not may_run(lease, node, cluster)))


def oracle_scores(case: Case, translated: Translated) -> Mapping[str, float]:
    """Each candidate's score by the documents, of the kind that the case's stages ask for."""
    lease, nodes, cluster = oracle_facts(case, translated)
    spread = spread_order(lease, list(nodes.values()), cluster)

    def preferences(node: Node) -> float:
        return preference(lease, node, cluster)

    asked: Mapping[str, Callable[[Node], float]] = {
        "score:spread": lambda node: spread[node.node_id],
        "score:nomad_spread": lambda node: 100 * spread[node.node_id],
    }
    kinds = {asked.get(stage, preferences) for stage in case.stages}
    return {name: sum(kind(node) for kind in kinds) for name, node in nodes.items()}


def oracle_facts(case: Case, translated: Translated) -> tuple[Lease, Mapping[str, Node], Cluster]:
    """The incoming lease, the candidates by name and the cluster, as the oracle knows them."""
    nodes = {name: Node.from_spec(*spec) for name, spec in translated.nodes.items()}
    running = [
        Running(
            _lease(adopted.placement, adopted.options, UUID(adopted.options["lease_id"])),
            nodes[adopted.node].node_id,
            adopted.is_leaving,
        )
        for adopted in translated.running
    ]
    lease = _lease(translated.placement, translated.lease, uuid4())
    candidates = {name: nodes[name] for name in case.candidates}
    return lease, candidates, Cluster({n.node_id: n for n in nodes.values()}, tuple(running))


def ranked(scores: Mapping[str, float], precision: int) -> list[list[str]]:
    """Groups of equal nodes, best first."""
    rounded = {name: round(score, precision) for name, score in scores.items()}
    return [
        sorted(name for name in rounded if rounded[name] == score)
        for score in sorted(set(rounded.values()), reverse=True)
    ]


def _lease(placement: Mapping[str, Any], options: Mapping[str, Any], lease_id: UUID) -> Lease:
    return Lease(lease_id, placement, options["labels"], options["tenant"], TASK)


def set_up(direct: Direct, translated: Translated) -> dict[str, int]:
    """Make the queue, register the nodes, adopt what runs; returns the nodes' epochs."""
    direct.create_queue(QUEUE, {"patience": 0})  # no better node is waited for
    epochs = {name: direct.register(*spec) for name, spec in translated.nodes.items()}
    for adopted in translated.running:
        node, _ = translated.nodes[adopted.node]
        lease = direct.adopt(QUEUE, node, adopted.options)["lease_id"]
        if adopted.is_leaving:
            direct.cancel(lease)
    return epochs


def _match_options(translated: Translated) -> dict[str, Any]:
    return {**translated.lease, "queue": QUEUE, "task": TASK}


def _refusal(error: psycopg.DatabaseError) -> str:
    if error.sqlstate not in (PLACEMENT_INVALID, CONTRADICTORY):
        raise error
    return error.sqlstate
