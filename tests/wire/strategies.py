"""Blobs for the fuzzer: streams of TLVs, mostly good, and all that goes wrong with them."""

from collections.abc import Iterator

from hypothesis import strategies as st

from hwqueue.wire import (
    TAG_AFFINITY,
    TAG_CPU_ISOLATION,
    TAG_GPU_EXCLUSIVITY,
    Affinity,
    Category,
    CpuIsolation,
    Direction,
    GpuExclusivity,
    Strength,
    TargetType,
    WireIntent,
)
from tests.wire.vectors import VECTORS

Blobs = st.SearchStrategy[bytes]


def tlv(tag: int, value: bytes, excess: int = 0) -> bytes:
    """A TLV whose length is `excess` too large."""
    length = min(max(len(value) + excess, 0), 0xFFFF)
    return tag.to_bytes(2) + length.to_bytes(2) + value


def entry(category: int, strength: int, kind: int, target: bytes, excess: int) -> bytes:
    """The value of an affinity TLV whose target length is `excess` too large."""
    length = min(max(len(target) + excess, 0), 0xFFFF)
    return bytes([category, strength, kind]) + length.to_bytes(2) + target


# Few targets, so that entries meet: the same twice, contradictions.
ids = st.sampled_from([bytes(16), b"\xff" * 16, bytes(range(16))])
racks = st.sampled_from([bytes(4), b"\0\0\0\x2a", b"\xff" * 4])
names = st.one_of(
    st.sampled_from([b"d1", b"", b"\0", b"d" * 255, b"d" * 256, b"\xff\xfe", b"\xed\xa0\x80", b'"\\']),
    st.text(max_size=12).map(lambda name: name.encode(errors="surrogatepass")),
    st.binary(max_size=6),
)
slips = st.sampled_from([0] * 12 + [-1, 1, 250, 0x1000])
entries = st.one_of(
    st.builds(
        entry, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 0x81, 0x82]), st.just(1), ids, st.just(0)
    ),
    st.builds(entry, st.just(3), st.sampled_from([1, 2, 0x81, 0x82]), st.just(6), racks, st.just(0)),
    st.builds(entry, st.just(4), st.sampled_from([1, 1, 1, 2, 0x81]), st.just(5), names, st.just(0)),
    st.builds(
        entry,
        st.sampled_from([1, 2, 3, 4, 5, 0, 6, 255]),
        st.sampled_from([1, 2, 3, 0, 4, 0x7F, 0x81, 0x82, 0x83, 0x80, 0xFF]),
        st.sampled_from([1, 2, 3, 4, 5, 6, 0, 7, 255]),
        st.one_of(ids, racks, names),
        slips,
    ),
    st.binary(max_size=8),
)
classes = st.one_of(st.sampled_from([b"\0", b"\1", b"\2", b"\3", b"\4", b"\xff", b""]), st.binary(max_size=2))
tags = st.one_of(st.sampled_from([0x0901, 0x7777, 0x1009, 0x0911, 0]), st.integers(0, 0xFFFF))
tlvs = st.one_of(
    st.builds(tlv, st.just(TAG_AFFINITY), entries, slips),
    st.builds(tlv, st.just(TAG_AFFINITY), entries),
    st.builds(tlv, st.sampled_from([TAG_CPU_ISOLATION, TAG_GPU_EXCLUSIVITY]), classes),
    st.builds(tlv, tags, st.binary(max_size=5), slips),
)
streams: Blobs = st.lists(tlvs, max_size=5).map(b"".join)
noise: Blobs = st.one_of(
    st.binary(max_size=40), st.binary(max_size=40).map(lambda tail: b"\x09\x10\0\x15" + tail)
)
known: Blobs = st.sampled_from([vector.blob for vector in VECTORS])
blobs: Blobs = st.one_of(streams, known, noise, st.builds(bytes.__add__, known, known))


@st.composite
def mutants(draw: st.DrawFn) -> list[bytes]:
    """A blob and what is near it: cut at every byte, and each byte changed in a few ways."""
    blob = draw(blobs)
    changes = draw(st.lists(st.integers(1, 255), min_size=2, max_size=4, unique=True))
    return [blob, *_near(blob[:80], changes)]


def _near(blob: bytes, changes: list[int]) -> Iterator[bytes]:
    for place in range(len(blob)):
        yield blob[:place]
        yield blob[:place] + blob[place + 1 :]
        for change in changes:
            yield blob[:place] + bytes([blob[place] ^ change]) + blob[place + 1 :]


affinities = st.builds(
    Affinity,
    st.sampled_from(Category),
    st.sampled_from(Strength),
    st.sampled_from(Direction),
    st.sampled_from([TargetType.NODE, TargetType.RESOURCE, TargetType.LEASE, TargetType.SERVICE]),
    st.uuids(),
)
rack_affinities = st.builds(
    Affinity,
    st.just(Category.TOPOLOGY),
    st.sampled_from(Strength),
    st.sampled_from(Direction),
    st.just(TargetType.RACK),
    st.integers(-1, 2**32),
)
domain_affinities = st.builds(
    Affinity,
    st.just(Category.TRUST),
    st.sampled_from(Strength),
    st.sampled_from(Direction),
    st.just(TargetType.TRUST_DOMAIN),
    st.one_of(st.text(max_size=300), st.text(st.characters(), max_size=5)),
)
intents = st.builds(
    WireIntent,
    st.lists(st.one_of(affinities, rack_affinities, domain_affinities), max_size=4).map(tuple),
    st.none() | st.sampled_from(CpuIsolation),
    st.none() | st.sampled_from(GpuExclusivity),
)
