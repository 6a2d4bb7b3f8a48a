"""Nodes that are alike are judged once: that says what judging each node by itself says."""

from typing import Any

import psycopg
from hypothesis import event, given
from hypothesis import strategies as st

from tests.calls import TASK
from tests.direct import Direct
from tests.properties.cluster import CONTRADICTORY, Specs, registered
from tests.properties.node_by_node import apart
from tests.properties.strategies import NODE_IDS, resources
from tests.properties.test_agreement import start_load
from tests.properties.test_views import asked, edits, fleets

_SILENCE = "update hwqueue.node_state set seen_at = seen_at - interval '1 day' where node_id = %s"
_SERVES = "update hwqueue.node set queues = %s, tasks = %s where node_id = %s"


def twins(fleet: Specs) -> Specs:
    """The second node as the first, but for its name and its devices."""
    own = {key: fleet[1][key] for key in ("name", "gpus") if key in fleet[1]}
    alike = {key: value for key, value in fleet[0].items() if key not in ("name", "gpus")}
    return [fleet[0], alike | own, fleet[2]]


serving = st.sampled_from([{}, {"tasks": []}, {"queues": ["other"]}, {"tasks": [TASK]}])


@given(
    fleet=st.one_of(fleets, fleets.map(twins)),
    load=st.lists(resources, max_size=6),
    wanted=st.lists(asked, min_size=1, max_size=6),
    changed=st.tuples(edits, serving),
)
def test_groups_are_judged_as_their_nodes(
    conn: psycopg.Connection,
    fleet: Specs,
    load: list[dict[str, int]],
    wanted: list[dict[str, Any]],
    changed: tuple[dict[str, set[int]], dict[str, list[str]]],
) -> None:
    """Reasons word for word and in their order, and scores."""
    edited, served = changed
    direct = Direct(conn)
    with registered(direct, fleet) as (queue, epochs):
        start_load(direct, queue, epochs, load)
        for number in edited["trusted"]:
            conn.execute("select hwqueue.attest_node(%s, 'acme')", [NODE_IDS[number]])
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.cordon_node(%s)", [NODE_IDS[number]])
        for number in edited["silent"]:
            conn.execute(_SILENCE, [NODE_IDS[number]])
        conn.execute(_SERVES, [served.get("queues"), served.get("tasks"), NODE_IDS[0]])
        for placement in wanted:
            try:
                differing = apart(conn, placement, {"queue": queue, "task": TASK})
            except psycopg.DatabaseError as error:
                if error.sqlstate != CONTRADICTORY:
                    raise
                continue
            assert differing == [], (placement, fleet)
            event("judged")
        for number in edited["cordoned"]:
            conn.execute("select hwqueue.uncordon_node(%s)", [NODE_IDS[number]])
