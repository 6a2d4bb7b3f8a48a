"""All there is in the small: every header of an entry, every class, every pair of entries.

What is expected is written down here once more, byte by byte, and asks neither reader.
"""

from collections.abc import Callable, Sequence
from itertools import product

import pytest

from tests.wire.conftest import Outcome
from tests.wire.outcome import outcome
from tests.wire.strategies import entry, tlv

ReadAll = Callable[[Sequence[bytes]], list[Outcome]]

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
