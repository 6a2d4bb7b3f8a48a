"""Claims and contexts that no database knows, to call a handler directly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from hwqueue.handler import steps
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.gang import GangContext
from hwqueue.handler.steps import Memory
from hwqueue.types import AddedItem, Assignment, Checkpoint, Claim, Json, SignalTaken, SubmittedRun

_CLAIM_TIMEOUT = timedelta(minutes=1)


def make_claim(
    task: str = "test",
    params: Json = None,
    *,
    attempt: int = 1,
    queue: str = "default",
    headers: Mapping[str, Any] | None = None,
    assignment: Assignment | None = None,
    lease_id: UUID | None = None,
    claim_token: int = 1,
) -> Claim:
    """A claim that no database knows.

    Args:
        task: Name of the task.
        params: None: an empty object.
        attempt: From 1.
        assignment: What is set aside; None: nothing is counted.
        lease_id: None: a new one.
    """
    return Claim(
        lease_id=lease_id or uuid4(),
        claim_token=claim_token,
        attempt=attempt,
        queue=queue,
        task_name=task,
        params={} if params is None else params,
        headers=headers,
        score=0.0,
        expires_at=datetime.now(UTC) + _CLAIM_TIMEOUT,
        assignment=assignment,
    )


def make_context(
    params: Json = None,
    *,
    claim: Claim | None = None,
    saved: Mapping[str, Json] | None = None,
    signals: Mapping[str, Json] | None = None,
    gang: GangContext | None = None,
    **facts: Any,
) -> LeaseContext:
    """A context for a sync handler that a test calls itself.

    `extend` returns the new end and tells nobody. Set `cancelled` to test how the handler stops.
    Steps are kept in memory; a handler that waits raises `hwqueue.Suspended`.

    Args:
        params: None: an empty object.
        claim: Its claim, with params of its own; None: one is made of `params` and `facts`.
        saved: Results of steps that an earlier run has done, by name.
        signals: Payloads of the signals that are there, by name.
        gang: The gang that its lease is a member of.
        **facts: As `make_claim` takes them: `attempt=2`, `task`, `headers`, `assignment`, ...
    """
    kept = _InMemory(signals or {}, saved or {})
    given = claim or make_claim(params=params, **facts)
    return LeaseContext(claim=given, ask=kept.answer, memory=kept.memory, gang=gang)


def make_async_context(
    params: Json = None,
    *,
    claim: Claim | None = None,
    saved: Mapping[str, Json] | None = None,
    signals: Mapping[str, Json] | None = None,
    gang: GangContext | None = None,
    **facts: Any,
) -> AsyncLeaseContext:
    """The same for an async handler: see `make_context`."""
    kept = _InMemory(signals or {}, saved or {})

    async def ask(call: str, /, **arguments: Any) -> Any:
        return kept.answer(call, **arguments)

    given = claim or make_claim(params=params, **facts)
    return AsyncLeaseContext(claim=given, ask=ask, memory=kept.memory, gang=gang)


class _InMemory:
    """What the database would keep of one run: steps, which signals are there, and what was added."""

    def __init__(self, signals: Mapping[str, Json], saved: Mapping[str, Json]) -> None:
        done = Checkpoint(
            name="", status="done", state=None, saved_at=datetime.now(UTC), waits_for=None, waits_until=None
        )
        self.memory = Memory()
        self.memory.read(replace(done, name=name, state=state) for name, state in saved.items())
        self._signals = dict(signals)
        self._items: dict[str, int] = {}
        self._runs: dict[str, UUID] = {}

    def answer(self, call: str, /, **arguments: Any) -> Any:
        steps.refuse_reading(call)
        if call == "extend_claim":
            return datetime.now(UTC) + arguments["extend"]
        if call == "add_items":
            return [self._added(item["name"]) for item in arguments["items"]]
        if call == "add_steps":
            return self._run(arguments["spec"]["name"])
        if call != "take_signal":
            return None
        signal = arguments["signal"]
        if signal not in self._signals:
            return SignalTaken(verdict="none", payload=None)
        return SignalTaken(verdict="taken", payload=self._signals.pop(signal))

    def _run(self, name: str) -> SubmittedRun:
        created = name not in self._runs
        run_id = self._runs.setdefault(name, uuid4())
        return SubmittedRun(run_id=run_id, created=created, state="running")

    def _added(self, name: str) -> AddedItem:
        created = name not in self._items
        number = self._items.setdefault(name, len(self._items))
        return AddedItem(name=name, item=number, created=created)
