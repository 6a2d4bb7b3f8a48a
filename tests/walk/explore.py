"""The walk itself: depth first over all states of a world that can be reached."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import psycopg

from tests.direct import Direct
from tests.transitions import transitions
from tests.walk.canonical import Key, key_of
from tests.walk.ground import Ground, Mark
from tests.walk.rules import broken
from tests.walk.seen import Seen
from tests.walk.steps import OfLease, Outcome, Step
from tests.walk.world import Promise

_DEEPEST = 200  # the walk calls itself
_MOVES = transitions()
_STATES = {state for move in _MOVES for state in move[:2]}
_SWEEPS = {"due", "expire", "deadline", "reserve"}
_CAUSES = {"give": {"fail"}, "snooze": {"release"}}  # else the verb


class BrokenRuleError(AssertionError):
    """A rule that does not hold, and the calls that lead there."""


@dataclass
class Report:
    """What a walk has seen."""

    states: int = 0
    calls: int = 0
    refusals: int = 0
    deepest: int = 0
    is_exhausted: bool = True  # every state that can be reached has been walked
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.calls / self.seconds if self.seconds else 0.0
        whole = "all" if self.is_exhausted else "not all"
        return (
            f"{self.states} states ({whole}), {self.calls} calls, {self.refusals} of them refused,"
            f" depth {self.deepest}, {self.seconds:.1f} s, {rate:.0f} calls/s"
        )


@dataclass
class Walk:
    """One walk over a world.

    Args:
        most: States after which no other is walked.
        depth: Calls after which the walk goes back. Where there is none, each state is walked once,
            however far from the beginning it was met.
        memory: As in `key_of`.
        promises: What must hold of each call beside what the call itself promises.
    """

    ground: Ground
    steps: Sequence[Step]
    most: int
    depth: int | None
    memory: float
    promises: Sequence[Promise] = ()
    report: Report = field(default_factory=Report)
    path: list[str] = field(default_factory=list)
    _known: dict[Key, int] = field(default_factory=dict)  # the fewest calls that led there

    def __post_init__(self) -> None:
        self._direct = Direct(self.ground.conn)

    def run(self) -> Report:
        """Walk from the state that is there now; it is there again at the end.

        Raises:
            BrokenRuleError: a rule does not hold.
        """
        begun = monotonic()
        here = self.ground.look()
        self._meet(here)
        self._visit(here)
        self.report.seconds = monotonic() - begun
        return self.report

    def _visit(self, here: Seen) -> None:
        """Make every call from here."""
        mark = self.ground.mark(here)
        for step in self.steps:
            if not step.can(here):
                continue
            if self.report.states >= self.most:
                self.report.is_exhausted = False
                break
            self.path.append(step.name)
            if there := self._take(step, here, mark):
                if self._meet(there):
                    self._go_on(there)
                self.ground.back(mark, there)
            self.path.pop()
        self.ground.drop(mark)

    def _go_on(self, there: Seen) -> None:
        if len(self.path) < (_DEEPEST if self.depth is None else self.depth):
            self._visit(there)
        else:
            self.report.is_exhausted = False

    def _take(self, step: Step, here: Seen, mark: Mark) -> Seen | None:
        """Make one call and check what it did; None: it was refused, and nothing has changed."""
        self.report.calls += 1
        try:
            outcome = Outcome(self.ground.call(mark, lambda: step.make(self._direct, here)))
        except psycopg.DatabaseError as error:
            self.report.refusals += 1
            self._hold([] if error.sqlstate in step.refusals else [f"refused: {error}"])
            self._hold(step.wrong(here, here, Outcome(refused=error.sqlstate)))
            return None
        there = self.ground.look()
        self._hold(step.wrong(here, there, outcome) + undeclared(step, here, there))
        for promise in self.promises:
            self._hold(promise(here, there))
        return there

    def _meet(self, there: Seen) -> bool:
        """Whether to go on from here: it is new, or was met later in a walk before."""
        depth = len(self.path)
        # what makes a call possible may be in what the key leaves out, such as an older token
        key = (*key_of(there, self.memory), *(step.can(there) for step in self.steps))
        known = self._known.get(key)
        if known is not None and (known <= depth or (known < _DEEPEST and self.depth is None)):
            return False
        self._known[key] = depth
        self.report.deepest = max(self.report.deepest, depth)
        if known is None:
            self.report.states += 1
            self._hold(self._broken(there))
        return True

    def _broken(self, there: Seen) -> list[str]:
        try:
            return broken(self.ground.conn, there)
        except psycopg.DatabaseError as error:
            return [f"the rules cannot be checked: {error}"]

    def _hold(self, wrong: list[str]) -> None:
        if wrong:
            raise BrokenRuleError("\n".join([f"after {', '.join(self.path) or 'nothing'}:", *wrong]))


def undeclared(step: Step, before: Seen, after: Seen) -> list[str]:
    """A lease that a call about it moved as the page about a lease's life does not have it."""
    if not isinstance(step, OfLease) or not {step.lease} <= before.leases.keys() & after.leases.keys():
        return []
    verb = step.name.split()[0]
    causes = _CAUSES.get(verb, {verb}) | _SWEEPS
    ways = {(origin, target) for origin, target, cause in _MOVES if cause in causes}
    state, reached = after.leases[step.lease].state, {before.leases[step.lease].state}
    while more := {target for origin, target in ways if origin in reached} - reached:
        reached |= more
    is_declared = state in reached or not reached | {state} <= _STATES
    return [] if is_declared else [f"{step.lease} is {state}, to which {step.name} does not lead"]
