"""Both readers against the vectors, every beginning of a good blob, and the caps."""

from collections.abc import Callable, Sequence
from itertools import accumulate, product

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.errors import WireInvalid
from hwqueue.wire import MAX_BYTES, MAX_ENTRIES, decode
from tests.wire.conftest import Outcome
from tests.wire.outcome import outcome
from tests.wire.strategies import entry, tlv
from tests.wire.vectors import ACCEPTED, VECTORS, Vector

ReadAll = Callable[[Sequence[bytes]], list[Outcome]]

RACK = bytes.fromhex("0910000903820600040000002a")  # preferred away from rack 42
SKIPPED = b"\x77\x77\x00\x00"


def fits(found: Outcome, vector: Vector) -> bool:
    """Whether an outcome is the one that the vector tells."""
    if vector.parsed is not None:
        return found == {"ok": vector.parsed}
    return found["error"] == "QHW01" and vector.reason in (None, found["detail"]["reason"])


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_python_reads_the_vectors(vector: Vector) -> None:
    assert fits(outcome(vector.blob), vector), outcome(vector.blob)


def test_sql_reads_the_vectors(read_all: ReadAll) -> None:
    """And gives the same reason, offset and class as Python, not only whether."""
    found = read_all([vector.blob for vector in VECTORS])
    assert [v.name for v, one in zip(VECTORS, found, strict=True) if not fits(one, v)] == []
    assert found == [outcome(vector.blob) for vector in VECTORS]


def ends(blob: bytes) -> set[int]:
    """Where a good blob may be cut: after each of its TLVs."""
    lengths, at = [0], 0
    while at < len(blob):
        lengths.append(4 + int.from_bytes(blob[at + 2 : at + 4]))
        at += lengths[-1]
    return set(accumulate(lengths))


def test_every_beginning_of_a_good_blob(read_all: ReadAll) -> None:
    """Cut within a TLV it is refused; between two it is the shorter stream."""
    pieces = [(v.blob[:cut], cut in ends(v.blob)) for v in ACCEPTED for cut in range(len(v.blob))]
    found = read_all([piece for piece, _ in pieces])
    assert found == [outcome(piece) for piece, _ in pieces]
    assert ["ok" in one for one in found] == [whole for _, whole in pieces]


@pytest.mark.parametrize(
    ("blob", "reason", "offset"),
    [
        (SKIPPED * (MAX_BYTES // 4), None, None),
        (SKIPPED * (MAX_BYTES // 4) + b"\0", "too_long", MAX_BYTES),
        (RACK * MAX_ENTRIES, None, None),
        (RACK * (MAX_ENTRIES + 1), "too_many_entries", len(RACK) * MAX_ENTRIES),
    ],
)
def test_the_caps(read_all: ReadAll, blob: bytes, reason: str | None, offset: int | None) -> None:
    [found] = read_all([blob])
    assert found == outcome(blob)
    assert found.get("detail", {}).get("reason") == reason
    assert found.get("detail", {}).get("offset") == offset


def test_a_class_that_is_refused_is_named(read_all: ReadAll) -> None:
    for code in ("03", "ff"):
        [found] = read_all([bytes.fromhex(f"09020001{code}")])
        assert found["detail"]["class"] == f"0x{code}"


@pytest.mark.parametrize("vector", ACCEPTED, ids=str)
def test_placements_are_the_same_and_normal(conn: psycopg.Connection, vector: Vector) -> None:
    """So that a blob and a placement that say the same make one class."""
    placement = decode(vector.blob).placement()
    found = conn.execute(
        "select hwqueue.wire_placement(hwqueue.parse_wire(%s)), hwqueue.normalise_placement(%s)",
        [vector.blob, Jsonb(placement)],
    )
    assert found.fetchone() == (placement, placement)


def test_refusals_tell_where() -> None:
    with pytest.raises(WireInvalid) as caught:
        decode(bytes.fromhex("0910000903830600040000002a"))
    assert (caught.value.reason, caught.value.offset) == ("reserved_strength", 5)
    assert "reserved strength at byte 5" in str(caught.value)


ANY = (0x01, 0x02, 0x81, 0x82)
# strengths by (category, target type), the top bit is "away"
ALLOWED = {
    (1, 1): ANY,
    (1, 2): ANY,
    (2, 1): ANY,
    (2, 3): ANY,
    (3, 1): ANY,
    (3, 6): ANY,
    (3, 4): (0x81, 0x82),
    (4, 5): (0x01,),
}
CLASSES = {0x0902: 3, 0x0903: 4}


def target(kind: int, number: int) -> bytes:
    """One of two targets of a type, of the right length."""
    return bytes([0x41 + number]) * {5: 3, 6: 4}.get(kind, 16)


def check(read_all: ReadAll, blobs: Sequence[bytes], accepted: Sequence[bool]) -> None:
    """Both readers accept exactly those, and give the same reasons for the others."""
    found = read_all(blobs)
    assert found == [outcome(blob) for blob in blobs]
    assert ["ok" in one for one in found] == list(accepted)


@pytest.mark.parametrize("category", [*range(8), 0x81, 0xFF])
@pytest.mark.thorough
def test_every_header(read_all: ReadAll, category: int) -> None:
    headers = list(product(range(256), [*range(9), 0x81, 0xFF]))
    blobs = [tlv(0x0910, entry(category, s, t, target(t, 0), 0)) for s, t in headers]
    check(read_all, blobs, [s in ALLOWED.get((category, t), ()) for s, t in headers])


@pytest.mark.parametrize("tag", CLASSES)
def test_every_class(read_all: ReadAll, tag: int) -> None:
    blobs = [tlv(tag, bytes([code])) for code in range(256)]
    check(read_all, blobs, [code < CLASSES[tag] for code in range(256)])


@pytest.mark.parametrize(("category", "kind"), ALLOWED)
@pytest.mark.thorough
def test_every_target_length(read_all: ReadAll, category: int, kind: int) -> None:
    strength = ALLOWED[category, kind][0]
    blobs = [tlv(0x0910, entry(category, strength, kind, b"d" * n, 0)) for n in range(260)]
    lengths = {5: range(1, 256), 6: [4]}.get(kind, [16])
    check(read_all, blobs, [n in lengths for n in range(260)])


def test_every_pair_of_entries(read_all: ReadAll) -> None:
    entries = [
        (category, strength, kind, number)
        for (category, kind), strengths in ALLOWED.items()
        for strength in strengths
        for number in (0, 1)
    ]
    pairs = list(product(entries, repeat=2))
    blobs = [b"".join(tlv(0x0910, entry(c, s, t, target(t, n), 0)) for c, s, t, n in pair) for pair in pairs]
    check(read_all, blobs, [not contradict(*pair) for pair in pairs])


def contradict(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether no node can meet both."""
    (_, strength, kind, number), (_, strength_2, kind_2, number_2) = one, other
    if kind != kind_2 or (strength & 0x7F, strength_2 & 0x7F) != (1, 1):
        return False
    if number == number_2:
        return strength != strength_2
    return (strength, strength_2) == (1, 1) and kind in (1, 6)
