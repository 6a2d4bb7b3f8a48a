"""Steps near others, in random fleets: who may run them, and whom they suit, against a model."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.calls import Row
from tests.flows import step
from tests.sql.api import Api, Node

pytestmark = pytest.mark.thorough
_numbers = count(1)


@dataclass(frozen=True)
class Drawn:
    """A node: its rack and its zone, if it has them, and whether it is cordoned in between."""

    rack: int | None
    zone: str | None
    leaves: bool

    def place(self, number: int, what: str) -> Any:
        return {"node": number, "rack": self.rack, "label:zone": self.zone}[what]


drawn = st.builds(
    Drawn, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "east", "west"]), st.booleans()
)


@dataclass(frozen=True)
class Near:
    """What the last step asks."""

    what: str
    mode: str
    away: bool
    gone: str | None

    def as_json(self, steps: list[str]) -> dict[str, Any]:
        asked = {"step": steps, "what": self.what, "mode": self.mode, "away": self.away}
        return asked | ({"gone": self.gone} if self.gone else {})


@st.composite
def nears(draw: st.DrawFn) -> Near:
    mode = draw(st.sampled_from(["prefer", "require"]))
    away = draw(st.booleans())
    gone = st.sampled_from([None, "wait", "anywhere", "fail"])
    return Near(
        draw(st.sampled_from(["node", "rack", "label:zone"])),
        mode,
        away,
        draw(gone) if mode == "require" and not away else None,
    )


def model(fleet: list[Drawn], ran: list[int], near: Near) -> tuple[str, set[int], set[int]]:
    """The state of the step, the nodes that may run it, and those of them that suit it best."""
    there = {n for n, node in enumerate(fleet) if not node.leaves}
    places = {place for n in ran if (place := fleet[n].place(n, near.what)) is not None}
    close = {n for n in there if fleet[n].place(n, near.what) in places}
    mode = near.mode
    if near.gone in ("anywhere", "fail") and not close:
        if near.gone == "fail":
            return "failed", set(), set()
        mode = "prefer"
    if not places:
        return "running", there, there
    wanted = there - close if near.away else close
    if mode == "require":
        return "running", wanted, wanted
    return "running", there, wanted or there


@given(
    fleet=st.lists(drawn, min_size=1, max_size=5),
    parents=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    near=nears(),
)
@settings(deadline=None, max_examples=min(60, 2 * settings().max_examples))
def test_near_means_what_the_model_says(
    conn: psycopg.Connection, fleet: list[Drawn], parents: list[int], near: Near
) -> None:
    api = Api(conn)
    number = next(_numbers)
    lab = f"near-{number}"
    queue = api.queue()
    nodes: list[Node] = []
    for each in fleet:  # racks and zones of its own: a place is there while one node is
        labels = {"lab": lab} | ({"zone": f"{each.zone}-{number}"} if each.zone else {})
        rack: Row = {} if each.rack is None else {"rack": 10 * number + each.rack}
        nodes.append(api.node(labels=labels, **rack))
    ran = [number % len(fleet) for number in parents]
    names = [f"p{number}" for number in range(len(ran))]
    steps = [step(name) for name in names]
    steps += [step("last", *names), step("near", "last", near=near.as_json(names))]
    spec = {"name": lab, "queue": queue, "affinity_tags": {"lab": lab}, "steps": steps}
    run = api.row("submit_spec", spec=spec)["run_id"]
    for number in ran:  # whichever of them it is: they differ in where they run alone
        [claim] = api.claim(nodes[number], queue, qty=1)
        _complete(api, claim)
    [claim] = api.claim(nodes[0], queue, qty=1)
    for node, each in zip(nodes, fleet, strict=True):
        if each.leaves:
            api.rows("cordon_node", node=node.node_id)
    _complete(api, claim)
    state, takers, best = model(fleet, ran, near)
    [*_, found] = api.rows("list_workflow_steps", run=run)
    assert found["state"] == state
    if state == "failed":
        assert found["reason"] == "near_gone"
        return
    rows = api.rows("match_nodes", placement=found["placement"])
    by_id = {row["node_id"]: row for row in rows}
    mine = [by_id[node.node_id] for node in nodes]
    assert {n for n, row in enumerate(mine) if row["eligible"]} == takers
    scores = {n: mine[n]["score"] for n in takers}
    assert {n for n, score in scores.items() if score == max(scores.values())} == best
    for number in set(range(len(fleet))) - takers:
        assert api.claim(nodes[number], queue, qty=1) == []


def _complete(api: Api, claim: dict[str, Any]) -> None:
    api.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"])
