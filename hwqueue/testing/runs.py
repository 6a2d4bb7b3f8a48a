"""What a drain did: the handlers that it ran, and how each of them ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from hwqueue.error_text import error_line
from hwqueue.testing.nodes import MadeUpNode
from hwqueue.types import Claim, Json, LeaseState
from hwqueue.worker.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One handler that has run, and what became of its lease.

    Attributes:
        claim: What it ran on: `claim.task_name`, `claim.params`, `claim.attempt`, ...
        node: What claimed it: `node.name`, `node.spec.rack`, ...
        outcome: `complete`, `fail`, `release` or `suspend`, with the result or the error as it was
            settled.
        exception: What the handler raised; None where it raised nothing.
        state: The lease's after the settlement: `scheduled` when it is tried again later; None when
            there is no such lease any more.
    """

    claim: Claim
    node: MadeUpNode
    outcome: Outcome
    exception: BaseException | None
    state: LeaseState | None

    @property
    def result(self) -> Json:
        """What the handler returned, as it is kept; None unless the lease completed."""
        return self.outcome.result

    def __str__(self) -> str:
        """In one line."""
        claim = self.claim
        said = f"lease {claim.lease_id} of task {claim.task_name!r}, attempt {claim.attempt}"
        said += f": {self.state.value if self.state else 'gone'}"
        if self.outcome.kind != "fail":
            return said
        return f"{said}: {error_line(self.outcome.error)}"


@dataclass(frozen=True, slots=True)
class Drained(Sequence[Run]):
    """The runs of a drain, in their order."""

    runs: tuple[Run, ...]

    @property
    def completed(self) -> tuple[Run, ...]:
        """Those whose lease completed."""
        return self._that_are("complete")

    @property
    def failed(self) -> tuple[Run, ...]:
        """Attempts that failed, those that were tried again included."""
        return self._that_are("fail")

    @property
    def results(self) -> list[Json]:
        """What the handlers of completed leases returned."""
        return [run.result for run in self.completed]

    def _that_are(self, kind: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.outcome.kind == kind)

    def __len__(self) -> int:
        """How many handlers ran."""
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        """The runs."""
        return iter(self.runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Run]: ...

    def __getitem__(self, index: int | slice) -> Any:
        """By position."""
        return self.runs[index]


def raise_for(run: Run) -> None:
    """Raise why the attempt failed; an AssertionError where the handler raised nothing."""
    if run.outcome.kind == "fail":
        raise run.exception or AssertionError(str(run))
