"""What `settle_and_claim` takes and returns: settlements in the order given, on two ways to SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from uuid import UUID

from hwqueue import types
from hwqueue.client._arguments import claim_keys
from hwqueue.client._json import plain
from hwqueue.client._rows import build

MAX_COMPLETED = 1000
"""Completions that SQL takes as lists."""
_CLAIM = tuple(types.Claim.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Settlements: as lists if all are done and have no result, which costs less; else as JSON.

    All or none, so that they are settled, and errors count them, in the order given.

    Attributes:
        items: As JSON.
        completed: Ids of leases.
        tokens: Theirs.
    """

    items: list[Any]
    completed: list[UUID]
    tokens: list[int]

    @classmethod
    def of(cls, settle: Iterable[types.Settlement | Mapping[str, Any]]) -> Batch:
        """Write settlements. Raises: BadArgument for an id or a token that is none."""
        given = list(settle)
        done = [item for item in given if _is_plain(item)]
        if len(done) < len(given) or len(done) > MAX_COMPLETED:
            return cls([plain(item, f"settle[{index}]") for index, item in enumerate(given)], [], [])
        keys = ((item.lease_id, item.claim_token) for item in done)
        return cls([], *claim_keys(keys, "settle"))

    def answer(self, rows: Iterable[Sequence[Any]]) -> types.SettledAndClaimed:
        """The rows of `settle_and_claim`; a completion without a row is done."""
        told, claimed = read_answer(rows)
        settled = {
            ordinal: types.Settled(
                ordinal=ordinal, lease_id=lease_id, verdict=types.Verdict.OK, state=types.LeaseState.COMPLETED
            )
            for ordinal, lease_id in enumerate(self.completed, 1)
        } | told
        in_order = tuple(settled[ordinal] for ordinal in sorted(settled))
        return types.SettledAndClaimed(settled=in_order, claimed=tuple(claimed))


def read_answer(rows: Iterable[Sequence[Any]]) -> tuple[dict[int, types.Settled], list[types.Claim]]:
    """What `settle_and_claim` says of settlements, by ordinal, and what it has granted."""
    told: dict[int, types.Settled] = {}
    claimed: list[types.Claim] = []
    for kind, ordinal, verdict, state, *claim in rows:
        if kind == "claimed":
            claimed.append(build(types.Claim, dict(zip(_CLAIM, claim, strict=True))))
        else:
            told[ordinal] = types.Settled(
                ordinal=ordinal,
                lease_id=claim[0],
                verdict=types.Verdict(verdict),
                state=None if state is None else types.LeaseState(state),
            )
    return told, claimed


def _is_plain(item: types.Settlement | Mapping[str, Any]) -> TypeGuard[types.Settlement]:
    return (
        isinstance(item, types.Settlement)
        and item.outcome == "complete"
        and item.result is None
        and item.traceparent is None
    )
