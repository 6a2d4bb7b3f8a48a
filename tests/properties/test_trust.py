"""Trust domains: whoever is attested for what, until when, claims agree with the oracle."""

import dataclasses
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
from hypothesis import given
from hypothesis import strategies as st

from hwqueue.testing import Clock
from tests.oracle.expressions import holds
from tests.oracle.facts import Node as Facts
from tests.sql.api import Api, Node
from tests.sql.placed import codes, spawn_placed, verdict

DOMAINS = ("a", "b", "c")
SECOND = timedelta(seconds=1)

exprs = st.recursive(
    st.sampled_from([*({"trust": domain} for domain in DOMAINS), {"label": "x", "op": "exists"}]),
    lambda inner: st.lists(st.lists(inner, min_size=1, max_size=2), min_size=2, max_size=3).map(
        lambda branches: {"any": branches}
    ),
    max_leaves=6,
)
labels = st.sampled_from([{}, {"x": 1}])
# when each attestation ends, in seconds: 0 for none, None for never
ends = st.fixed_dictionaries(dict.fromkeys(DOMAINS, st.sampled_from([0, 2, 4, None])))
Ends = dict[str, int | None]


@given(require=st.lists(exprs, min_size=1, max_size=2), label=labels, edits=st.tuples(ends, ends))
def test_claims_and_the_oracle_agree(
    conn: psycopg.Connection,
    clock: Clock,
    require: list[dict[str, Any]],
    label: dict[str, Any],
    edits: tuple[Ends, Ends],
) -> None:
    """After each edit, and at each moment between two ends."""
    clock.freeze()
    api = Api(conn)
    queue, node = api.queue(), api.node(labels=label)
    lease = spawn_placed(api, queue, require=require)
    facts = Facts.from_spec(uuid4(), {"labels": label})
    for wanted in edits:
        attest(api, clock, node, wanted)
        for passed in range(5):
            trusts = {d for d, end in wanted.items() if end is None or end > passed}
            now = dataclasses.replace(facts, trusts=frozenset(trusts))
            expected = holds(require, now)
            assert (codes(api, node, require=require) == []) == expected
            with conn.transaction(force_rollback=True):
                assert api.claimed(node, queue) == [lease] * expected
                if expected and trusts:
                    check_revocations(api, node, require, now)
            clock.advance(SECOND)
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("deregister_node", node=node.node_id)


def attest(api: Api, clock: Clock, node: Node, wanted: Ends) -> None:
    """Make the attestations of the node these."""
    for domain, end in wanted.items():
        if end == 0:
            api.rows("revoke_attestation", node=node.node_id, domain=domain)
        else:
            until = None if end is None else clock.now() + end * SECOND
            api.rows("attest_node", node=node.node_id, domain=domain, expires_at=until)


def check_revocations(api: Api, node: Node, require: list[dict[str, Any]], facts: Facts) -> None:
    """One domain after the other is revoked: the running lease goes when it cannot stay."""
    [row] = api.rows("list_leases", filter={"state": "claimed"}, limit=1)
    left = set(facts.trusts)
    for domain in sorted(facts.trusts):
        api.rows("revoke_attestation", node=node.node_id, domain=domain)
        left.discard(domain)
        may_stay = holds(require, dataclasses.replace(facts, trusts=frozenset(left)))
        assert verdict(api, node, row) == ("ok" if may_stay else "preempted")
        if not may_stay:
            return
