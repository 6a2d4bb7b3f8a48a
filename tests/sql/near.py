"""Runs whose steps are near others, on nodes of their own."""

from collections.abc import Sequence
from typing import Any

from tests.calls import Row
from tests.sql.api import Api, token


class Fleet:
    """A queue, nodes that have its label, and a run that is driven on them, by their numbers."""

    def __init__(self, api: Api, racks: Sequence[int | None], *steps: Row, **spec: Any) -> None:
        self.api = api
        self.queue = api.queue(max_attempts=1)
        lab = {"lab": self.queue}
        self.nodes = []
        for number, rack in enumerate(racks):
            place: Row = {} if rack is None else {"rack": rack}
            self.nodes.append(api.node(labels=lab | {"n": number, "half": number % 2}, **place))
        given = {"name": self.queue, "queue": self.queue, "steps": list(steps), "affinity_tags": lab}
        self.spec = given | spec
        self.run = api.row("submit_spec", spec=self.spec)["run_id"]

    def steps(self) -> dict[str, Row]:
        """The steps of the run."""
        return {row["step"]: row for row in self.api.rows("list_workflow_steps", run=self.run)}

    def take(self, node: int, qty: int = 1, *, fails: bool = False) -> list[Any]:
        """Let a node run what it may: items by their numbers, other steps by their names."""
        claims = self.api.claim(self.nodes[node], self.queue, qty=qty)
        for claim in claims:
            if fails:
                self.api.rows("fail_lease", **token(claim), error={"message": "no"}, retry=False)
            else:
                self.api.complete(claim)
        found = [claim["headers"].get("item", claim["headers"]["step"]) for claim in claims]
        if any(isinstance(one, int) for one in found):
            self.api.rows("advance_workflows")
        return found

    def leases(self, task: str) -> list[Row]:
        """The leases of a map's task, in the order of the items."""
        rows = self.api.rows("list_leases", filter={"queue": self.queue, "task": task}, limit=1000)
        return sorted(rows, key=lambda row: int(row["headers"]["item"]))

    def scores(self, placement: Row) -> dict[int, float]:
        """The nodes that may run what is placed so, and how well they suit it."""
        found = {row["node_id"]: row for row in self.api.rows("match_nodes", placement=placement)}
        rows = [found[node.node_id] for node in self.nodes]
        return {number: row["score"] for number, row in enumerate(rows) if row["eligible"]}

    def takers(self, step: str) -> set[int]:
        """The nodes that may run a step."""
        return set(self.scores(self.steps()[step]["placement"]))

    def takers_of_items(self, task: str) -> list[set[int]]:
        """The nodes that may run each item of a map."""
        return [set(self.scores(lease["placement"])) for lease in self.leases(task)]


def near(name: str | list[str] = "a", /, **asked: Any) -> Row:
    """What a step asks that is to be near others."""
    return {"step": name, "mode": "require"} | asked
