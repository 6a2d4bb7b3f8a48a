"""Runs of workflows in tests: submitted, and driven step by step by the names of their steps."""

from collections.abc import Iterable
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from tests.calls import Calls, Row

_numbers = count(1)


def step(name: str, *after: Any, **more: Any) -> Row:
    """A step of a specification; its task has its name."""
    return {"name": name, "task": name} | ({"after": list(after)} if after else {}) | more


def each(name: str, over: Any, /, **more: Any) -> Row:
    """A map of a specification; its task has its name."""
    return step(name, kind="map", over=over, **more)


def gang(name: str, size: int, *after: Any, **more: Any) -> Row:
    """A gang of a specification; its task has its name."""
    return step(name, *after, kind="gang", size=size, **more)


class Flow:
    """A run on a queue and a node of its own."""

    def __init__(
        self,
        calls: Calls,
        steps: list[Row],
        /,
        *,
        input: Any = None,  # noqa: A002
        options: Row | None = None,
        **spec: Any,
    ) -> None:
        self.calls = calls
        self.queue = f"flow-{next(_numbers)}"
        calls.rows("create_queue", queue=self.queue, policy={"max_attempts": 1})
        self.node = uuid4()
        self.epoch = self.register("first")
        self.spec = {"name": self.queue, "queue": self.queue, "steps": steps} | spec
        submitted = calls.row("submit_spec", spec=self.spec, input=input or {}, options=options or {})
        assert submitted["created"]
        self.run: UUID = submitted["run_id"]

    def register(self, instance: str) -> int:
        """Register the node as an instance of its worker; the epoch."""
        spec = {"name": f"flow-node-{self.node}", "instance_id": instance}
        return int(self.calls.value("register_node", node=self.node, spec=spec))

    def get(self) -> Row:
        """The run as it is now."""
        return self.calls.row("get_workflow_run", run=self.run)

    @property
    def state(self) -> str:
        """The state of the run."""
        state = self.get()["state"]
        assert isinstance(state, str)
        return state

    def steps(self) -> dict[str, Row]:
        """The steps by their names."""
        return {row["step"]: row for row in self.calls.rows("list_workflow_steps", run=self.run)}

    def counts(self, step: str = "m") -> tuple[int, int, int]:
        """How many items a map has, how many of them have ended, how many of these failed."""
        row = self.steps()[step]
        return row["items"], row["items_done"], row["items_failed"]

    def lease_count(self) -> int:
        """How many leases the run has, those of items among them."""
        query = "select count(*) from hwqueue.lease where run_id = %s"
        [(number,)] = self.calls.conn.execute(query, [self.run]).fetchall()
        return int(number)

    def states(self) -> dict[str, str]:
        """The states of the steps."""
        return {name: row["state"] for name, row in self.steps().items()}

    def reasons(self) -> dict[str, str]:
        """The reasons of the steps that have one."""
        return {name: row["reason"] for name, row in self.steps().items() if row["reason"]}

    def claims(self, calls: Calls | None = None) -> dict[str, Row]:
        """Claim all that is released, by the names of the steps."""
        rows = (calls or self.calls).rows(
            "claim_task", queues=[self.queue], node=self.node, epoch=self.epoch, qty=1000
        )
        return {row["headers"]["step"]: row for row in rows}

    def items(self, qty: int = 1000) -> dict[Any, Row]:
        """Claim what is released: items of maps by their numbers, other steps by their names."""
        rows = self.calls.rows("claim_task", queues=[self.queue], node=self.node, epoch=self.epoch, qty=qty)
        return {row["headers"].get("item", row["headers"]["step"]): row for row in rows}

    def complete(self, *names: str, result: Any = None) -> None:
        """Claim what is released, which must be just these steps, and complete it."""
        claims = self.claims()
        assert set(claims) == set(names)
        for name in names:
            finish(self.calls, claims[name], result=result)

    def end_with(self, *names: str, result: Any = None) -> None:
        """Complete these steps, the last ones of the run."""
        self.complete(*names, result=result)
        assert self.state == "completed"

    def fail(self, name: str) -> None:
        """Claim what is released, which must be this step, and let it fail for good."""
        [claim] = self.claims().values()
        assert claim["headers"]["step"] == name
        fail(self.calls, claim)

    def settle(self, claim: Row, calls: Calls | None = None, **how: Any) -> None:
        """Settle a claim as a worker does, in a transaction of its own."""
        item = {"lease_id": str(claim["lease_id"]), "claim_token": claim["claim_token"]}
        [settled] = (calls or self.calls).rows(
            "settle_and_claim",
            node=self.node,
            epoch=self.epoch,
            settle=[item | ({"outcome": "complete"} | how)],
            queues=[self.queue],
            qty=0,
        )
        assert settled["verdict"] == "ok"

    def settle_each(self, claims: Iterable[Row]) -> None:
        """Complete claims, each in a transaction of its own."""
        for claim in claims:
            self.settle(claim)


def sweeps(calls: Calls, times: int) -> None:
    """Sweep so many times."""
    for _ in range(times):
        calls.rows("advance_workflows")


def finish(calls: Calls, claim: Row, *, result: Any = None) -> None:
    """Complete a claim."""
    calls.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"], result=result)


def finish_all(calls: Calls, claims: Iterable[Row]) -> None:
    """Complete claims in one call."""
    chosen = list(claims)
    left = calls.rows(
        "complete_leases",
        lease_ids=[claim["lease_id"] for claim in chosen],
        tokens=[claim["claim_token"] for claim in chosen],
    )
    assert left == []


def fail(calls: Calls, claim: Row) -> None:
    """Let a claim fail for good."""
    calls.rows(
        "fail_lease",
        lease=claim["lease_id"],
        token=claim["claim_token"],
        error={"message": "broken"},
        retry=False,
    )


def broken(calls: Calls) -> list[Row]:
    """The invariants that do not hold."""
    return calls.rows("verify_invariants")
