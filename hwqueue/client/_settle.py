"""What `settle_and_claim` takes and gives: settlements in the order given, on two ways to SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard
from uuid import UUID

from hwqueue import types
from hwqueue.client._arguments import claim_key
from hwqueue.client._json import plain
from hwqueue.client._rows import build

_MAX_COMPLETED = 1000  # that SQL takes as lists
_CLAIM = tuple(types.Claim.__dataclass_fields__)


@dataclass(slots=True)
class Batch:
    """Settlements, those that are done and have no result apart: they cost half as lists.

    Attributes:
        items: The others, as JSON.
        completed: Ids of leases.
        tokens: Theirs.
    """

    items: list[Any] = field(default_factory=list)
    completed: list[UUID] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    _item_ordinals: list[int] = field(default_factory=list)
    _completed_ordinals: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, settle: Iterable[types.Settlement | Mapping[str, Any]]) -> Batch:
        """Sort settlements. Raises: BadArgument for an id or a token that is none."""
        batch = cls()
        for index, item in enumerate(settle):
            if len(batch.completed) < _MAX_COMPLETED and _is_plain(item):
                lease_id, token = claim_key(item.lease_id, item.claim_token, f"settle[{index}]")
                batch.completed.append(lease_id)
                batch.tokens.append(token)
                batch._completed_ordinals.append(index + 1)
            else:
                batch.items.append(plain(item, f"settle[{index}]"))
                batch._item_ordinals.append(index + 1)
        return batch

    def answer(self, rows: Iterable[Sequence[Any]], shard: int) -> types.SettledAndClaimed:
        """The rows of `settle_and_claim`; a completion without a row is done."""
        ordinals = [*self._item_ordinals, *self._completed_ordinals]
        settled: dict[int, types.Settled] = {}
        claimed: list[types.Claim] = []
        for kind, ordinal, verdict, state, *claim in rows:
            if kind == "claimed":
                claimed.append(build(types.Claim, dict(zip(_CLAIM, claim, strict=True))))
            else:
                place = ordinals[ordinal - 1]
                settled[place] = types.Settled(
                    ordinal=place,
                    lease_id=claim[0],
                    verdict=types.Verdict(verdict),
                    state=None if state is None else types.LeaseState(state),
                    shard_id=shard,
                )
        for place, lease_id in zip(self._completed_ordinals, self.completed, strict=True):
            if place not in settled:
                settled[place] = types.Settled(
                    ordinal=place,
                    lease_id=lease_id,
                    verdict=types.Verdict.OK,
                    state=types.LeaseState.COMPLETED,
                    shard_id=shard,
                )
        in_order = tuple(settled[place] for place in sorted(settled))
        return types.SettledAndClaimed(settled=in_order, claimed=tuple(claimed))


def _is_plain(item: types.Settlement | Mapping[str, Any]) -> TypeGuard[types.Settlement]:
    return isinstance(item, types.Settlement) and item.outcome == "complete" and item.result is None
