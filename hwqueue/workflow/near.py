"""Where a step runs, by where other steps have run.

.task("score", score, after="train", near=near("train", "rack", mode="require"))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hwqueue.workflow.values import StepLike, step_name

__all__ = ["Near", "near"]


@dataclass(frozen=True, slots=True)
class Near:
    """A place that is known when its step starts. Made by `near`."""

    steps: tuple[str, ...]
    what: str
    mode: str
    away: bool
    gone: str | None
    weight: int | None
    match: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As the specification of workflows has it; defaults are left out."""
        members = {
            "step": self.steps[0] if len(self.steps) == 1 else list(self.steps),
            "what": self.what,
            "mode": None if self.mode == "prefer" else self.mode,
            "away": self.away or None,
            "gone": self.gone,
            "weight": self.weight,
            "match": self.match,
        }
        return {key: value for key, value in members.items() if value is not None}


def near(
    step: StepLike | Iterable[StepLike],
    what: str = "node",
    *,
    mode: Literal["prefer", "require"] = "prefer",
    away: bool = False,
    gone: Literal["wait", "anywhere", "fail"] | None = None,
    weight: int | None = None,
    match: Literal["item"] | None = None,
) -> Near:
    """In the place where a step has run last; of several, in one of their places.

    Each step must come before, at any distance. One that never had a node has no place: then the
    step runs anywhere. The places of a map are those of its first 1,000 items, 100 at most.

    Args:
        step: A step, its name, or several.
        what: The place: `node`, `rack`, or the value of a label, `label:zone`.
        mode: `prefer`: the place is preferred; `require`: it must be there.
        away: In another place instead.
        gone: Of `require`: if no live, uncordoned node is in the place when the step is due: `wait`
            for one (None, too), run `anywhere`, or `fail` with `near_gone`.
        weight: Of `prefer`: beside the step's other preferences, 1..100; None: 100.
        match: `item`, of a map near another map: each item in the place where the item with its
            number ran; None: every item in the places of the step.
    """
    each = step if isinstance(step, Iterable) and not isinstance(step, str) else (step,)
    return Near(tuple(step_name(one) for one in each), what, mode, away, gone, weight, match)
