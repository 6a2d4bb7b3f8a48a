"""Any bytes at all: both readers agree, and neither fails in any other way than by refusing.

HYPOTHESIS_PROFILE=deep looks at several hundred thousand blobs.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import psycopg
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from hwqueue.errors import WireInvalid
from hwqueue.wire import WireIntent, decode, encode
from tests.wire.conftest import Outcome
from tests.wire.outcome import outcome
from tests.wire.strategies import blobs, intents, mutants
from tests.wire.vectors import ACCEPTED

ReadAll = Callable[[Sequence[bytes]], list[Outcome]]

counts: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _told(request: pytest.FixtureRequest) -> object:
    """Print what was looked at, where a run asks for it with -s."""
    yield
    print(f"\n{counts.total()} blobs: {dict(counts.most_common())}")


@given(near=mutants())
def test_both_readers_agree(read_all: ReadAll, near: list[bytes]) -> None:
    expected = [outcome(blob) for blob in near]
    assert read_all(near) == expected
    for one in expected:
        found = one.get("detail", {"reason": "accepted"})["reason"]
        counts[found] += 1
        event(found)


@given(some=st.lists(blobs, min_size=1, max_size=20))
@example(some=[vector.blob for vector in ACCEPTED])
def test_what_is_accepted_means_the_same(conn: psycopg.Connection, some: list[bytes]) -> None:
    """The same placement in both, and the same intent once more when it is written and read."""
    for blob in some:
        if "ok" not in outcome(blob):
            continue
        intent = decode(blob)
        assert decode(encode(intent)) == intent
        assert WireIntent.from_json(intent.as_json()) == intent
        found = conn.execute("select hwqueue.wire_placement(%s)", [Jsonb(intent.as_json())])
        assert found.fetchone() == (intent.placement(),)


@given(intent=intents)
def test_what_is_written_can_be_read(intent: WireIntent) -> None:
    """Or it is not written: nothing is written as something else."""
    try:
        blob = encode(intent)
    except (WireInvalid, TypeError) as error:
        event(type(error).__name__)
        return
    kept = tuple(dict.fromkeys(intent.affinity))  # the same entry twice is one
    assert decode(blob) == WireIntent(kept, intent.cpu_isolation, intent.gpu_exclusivity)
