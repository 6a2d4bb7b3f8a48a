"""The dataclasses: their JSON forms, and rows turned into them."""

import dataclasses
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from hwqueue import types
from hwqueue.calls import CALLS, CLAIM_TASK, SETTLE_AND_CLAIM, CallOf
from hwqueue.client._rows import decode
from hwqueue.client._settle import Batch

ID = UUID("0197f3a2-7c1e-7000-8000-000000000001")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def test_all_are_frozen_slotted_and_keyword_only() -> None:
    kinds = [kind for kind in vars(types).values() if dataclasses.is_dataclass(kind)]
    assert len(kinds) > 20
    for kind in kinds:
        parameters = kind.__dataclass_params__  # type: ignore[union-attr]
        assert parameters.frozen, kind
        assert hasattr(kind, "__slots__"), kind
        assert all(column.kw_only for column in dataclasses.fields(kind)), kind
        assert kind.__doc__, kind


def test_a_spec_of_a_node_as_json() -> None:
    spec = types.NodeSpec(
        name="n1",
        instance_id="i1",
        heartbeat_timeout=timedelta(seconds=30),
        labels={"gpu": True},
        cpu_milli=8000,
        custom={"licence": 2},
        gpus=[types.Gpu(resource_id=ID, model="A100", memory_mib=81920)],
        resources=[ID],
    )
    assert spec.as_json() == {
        "name": "n1",
        "instance_id": "i1",
        "heartbeat_timeout": 30.0,
        "labels": {"gpu": True},
        "capacity": {"cpu_milli": 8000, "licence": 2},
        "gpus": [{"resource_id": str(ID), "model": "A100", "memory_mib": 81920}],
        "resources": [str(ID)],
    }
    assert types.NodeSpec(name="n", instance_id="i", slots=0, keep_claims=True).as_json() == {
        "name": "n",
        "instance_id": "i",
        "labels": {},
        "slots": 0,
        "keep_claims": True,
    }


def claim_row(assignment: object) -> list[object]:
    return [ID, 5, 1, "q", "work", {"a": 1}, None, 2.5, AT, assignment]


def test_claims_are_decoded() -> None:
    """What a later version says besides is left out."""
    gpu = {"index": 1, "resource_id": str(ID), "model": "A100"}
    assignment = {"cpu_milli": 4000, "gpus": [gpu], "cpus": [3, 4, 35, 36], "a_later_version": True}
    with_gpu, counted_nothing = decode(CLAIM_TASK, [claim_row(assignment), claim_row(None)])
    gpus = (types.AssignedGpu(index=1, resource_id=ID, model="A100"),)
    assert with_gpu.assignment == types.Assignment(cpu_milli=4000, gpus=gpus, cpus=(3, 4, 35, 36))
    assert with_gpu.params == {"a": 1}
    assert counted_nothing.assignment is None


def test_settlements_come_back_in_the_order_given() -> None:
    def settled(ordinal: int, verdict: str, state: str | None) -> list[object]:
        values = {"kind": "settled", "ordinal": ordinal, "lease_id": ID, "verdict": verdict}
        values |= {"state": state}
        return [values.get(column) for column in SETTLE_AND_CLAIM.columns]

    done, failed = types.Settlement.complete(ID, 5), types.Settlement.fail(ID, 5, error={})
    kept = types.Settlement.complete(ID, 5, result={"n": 1})
    for mixed in ([done, kept], [failed, done], [done] * 1001):
        batch = Batch.of(mixed)
        assert (batch.completed, batch.tokens) == ([], [])
        assert [item["outcome"] for item in batch.items] == [item.outcome for item in mixed]
    claimed = ["claimed", None, None, "claimed", *claim_row(None)]
    rows = [settled(2, "lost", None), settled(1, "ok", "completed"), claimed]
    completed = (types.Verdict.OK, types.LeaseState.COMPLETED)
    answer = Batch.of([done, failed]).answer(rows)
    expected = [(1, *completed), (2, types.Verdict.LOST, None)]
    assert [(s.ordinal, s.verdict, s.state) for s in answer.settled] == expected
    assert [claim.claim_token for claim in answer.claimed] == [5]
    batch = Batch.of([done] * 3)
    assert (batch.items, batch.completed, batch.tokens) == ([], [ID] * 3, [5] * 3)
    answer = batch.answer([settled(2, "lost", None)])  # the others have no row
    expected.append((3, *completed))
    assert [(s.ordinal, s.verdict, s.state) for s in answer.settled] == expected


@pytest.mark.parametrize(
    "call", [each for each in CALLS if each.columns and each.kind], ids=lambda call: call.name
)
def test_every_row_type_is_made_of_its_columns(call: CallOf[object]) -> None:
    [made] = decode(call, [[None] * len(call.columns)])
    assert type(made) is call.kind
