"""The params blob: what a lease asks of its node, as bytes; docs/reference/wire.md has the layout.

    blob = encode(WireIntent(affinity=(away_from_rack,), cpu_isolation=CpuIsolation.WHOLE_CORE))
    decode(blob).placement()  # the same in the grammar of placements

TLVs back to back: tag u16, length u16, value; every integer is big-endian. Tags that others read
are skipped, and named in `unknown_tags`. One bad byte refuses the whole blob. The database reads a
blob by the same rules (`parse_wire`), so what `decode` takes, a spawn takes as its option `wire`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from hwqueue.errors import BadArgument, WireInvalid

MAX_BYTES = 4096
"""The longest blob that is read."""

MAX_ENTRIES = 64
"""The most affinity entries that are read, the same one twice counted twice."""

MAX_DOMAIN_BYTES = 255
"""The longest name of a trust domain."""

TAG_CPU_ISOLATION = 0x0902
TAG_GPU_EXCLUSIVITY = 0x0903
TAG_AFFINITY = 0x0910

_AWAY = 0x80
_ID_BYTES = 16
_RACK_BYTES = 4
_HEADER = struct.Struct(">HH")  # of a TLV
_ENTRY = struct.Struct(">BBBH")  # category, strength, target type, length of the target


class Category(StrEnum):
    """What kind of closeness an entry is about."""

    RESOURCE = "resource"
    STATE = "state"
    TOPOLOGY = "topology"
    TRUST = "trust"


class Strength(StrEnum):
    """Whether a node must (filter) or should (score)."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Direction(StrEnum):
    """With the target, or away from it."""

    TOWARD = "toward"
    AWAY = "away"


class TargetType(StrEnum):
    """What the target is: an id, the number of a rack, or the name of a trust domain."""

    NODE = "node_id"
    RESOURCE = "resource_id"
    LEASE = "lease_id"
    SERVICE = "service_id"
    TRUST_DOMAIN = "trust_domain"
    RACK = "rack_id"


class CpuIsolation(StrEnum):
    """How much of its cores a lease has to itself."""

    BEST_EFFORT = "best_effort"
    WHOLE_CORE = "whole_core"
    STRICT_ISOLATED = "strict_isolated"


class GpuExclusivity(StrEnum):
    """How much of its GPUs a lease has to itself."""

    SHARED = "shared"
    SESSION_EXCLUSIVE = "session_exclusive"
    DEVICE_EXCLUSIVE = "device_exclusive"
    PARTITION_EXCLUSIVE = "partition_exclusive"


# The byte of each; what is named but reserved is None.
_CATEGORIES: Mapping[int, Category | None] = {**dict(enumerate(Category, 1)), 5: None}
_STRENGTHS: Mapping[int, Strength | None] = {**dict(enumerate(Strength, 1)), 3: None}
_TARGET_TYPES = dict(enumerate(TargetType, 1))
_CPU_CLASSES = dict(enumerate(CpuIsolation))
_GPU_CLASSES = dict(enumerate(GpuExclusivity))

_ALLOWED = {
    Category.RESOURCE: {TargetType.NODE, TargetType.RESOURCE},
    Category.STATE: {TargetType.NODE, TargetType.LEASE},
    Category.TOPOLOGY: {TargetType.NODE, TargetType.RACK, TargetType.SERVICE},
    Category.TRUST: {TargetType.TRUST_DOMAIN},
}
# A node is one node in one rack: required toward two of them, nothing is left.
_ONE_OF_A_KIND = {TargetType.NODE, TargetType.RACK}

_KINDS = {
    TargetType.NODE: "node",
    TargetType.RESOURCE: "resource",
    TargetType.LEASE: "lease",
    TargetType.SERVICE: "service",
    TargetType.TRUST_DOMAIN: "trust",
    TargetType.RACK: "rack",
}
_LISTED = {TargetType.NODE, TargetType.RESOURCE, TargetType.RACK}

_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Affinity:
    """One entry. target: a UUID; for racks an int, 0..2**32-1; for trust domains their name."""

    category: Category
    strength: Strength
    direction: Direction
    target_type: TargetType
    target: UUID | int | str

    def as_json(self) -> dict[str, Any]:
        """The entry as `parse_wire` returns it; ids are 32 hex digits."""
        return {
            "category": self.category.value,
            "strength": self.strength.value,
            "direction": self.direction.value,
            "target_type": self.target_type.value,
            "target": self.target.hex if isinstance(self.target, UUID) else self.target,
        }

    def expression(self) -> dict[str, Any]:
        """The entry as an expression of the grammar; its strength is not part of it."""
        target = str(self.target) if isinstance(self.target, UUID) else self.target
        # in the order in which jsonb keeps keys, for `_normal_set`
        return {
            **({"away": True} if self.direction is Direction.AWAY else {}),
            _KINDS[self.target_type]: [target] if self.target_type in _LISTED else target,
            **({"domain": "node"} if self.target_type is TargetType.LEASE else {}),
        }


@dataclass(frozen=True, slots=True)
class WireIntent:
    """What a blob asks for.

    affinity: in the order of the blob, each entry once. A class that is None is not asked for, and
    the node's default holds. unknown_tags: the tags that were skipped, in the order of the blob;
    they are for others, so `encode` does not write them and comparisons leave them out.
    """

    affinity: tuple[Affinity, ...] = ()
    cpu_isolation: CpuIsolation | None = None
    gpu_exclusivity: GpuExclusivity | None = None
    unknown_tags: tuple[int, ...] = field(default=(), compare=False)

    def as_json(self) -> dict[str, Any]:
        """The parsed form, the same JSON as `parse_wire` returns in SQL."""
        return {
            "affinity": [entry.as_json() for entry in self.affinity],
            "cpu_isolation": self.cpu_isolation and self.cpu_isolation.value,
            "gpu_exclusivity": self.gpu_exclusivity and self.gpu_exclusivity.value,
            "unknown_tags": [f"0x{tag:04x}" for tag in self.unknown_tags],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WireIntent:
        """Read what `as_json` returns; members may be left out, `unknown_tags` is not read.

        Raises: BadArgument, naming the field. What bytes cannot say, `encode` refuses.
        """
        known = {"affinity", "cpu_isolation", "gpu_exclusivity", "unknown_tags"}
        _check_members(value, known, "intent")
        entries = value.get("affinity", [])
        if not isinstance(entries, list):
            raise _bad_value("affinity", "a list of entries")
        return cls(
            affinity=tuple(_read_entry(item, f"affinity[{n}]") for n, item in enumerate(entries)),
            cpu_isolation=_read_class(value, "cpu_isolation", CpuIsolation),
            gpu_exclusivity=_read_class(value, "gpu_exclusivity", GpuExclusivity),
        )

    def placement(self) -> dict[str, Any]:
        """The same in the grammar of placements, in normal form, as `wire_placement` in SQL.

        Preferences weigh 100; a lease is met on its node; a service has the domain that was
        declared for it; a GPU class asks for a device.
        """
        isolation = {"cpu": self.cpu_isolation, "gpu": self.gpu_exclusivity}
        members: dict[str, Any] = {
            "require": _normal_set(
                entry.expression() for entry in self.affinity if entry.strength is Strength.REQUIRED
            ),
            "prefer": _normal_set(
                {"when": [entry.expression()], "weight": 100}
                for entry in self.affinity
                if entry.strength is Strength.PREFERRED
            ),
            "resources": {"gpu": 1} if self.gpu_exclusivity else {},
            "isolation": {kind: name.value for kind, name in isolation.items() if name},
        }
        return {key: value for key, value in members.items() if value}


def decode(blob: bytes) -> WireIntent:
    """Read a blob.

    Raises: WireInvalid, with the reason and the offset of the byte at fault.
    """
    if len(blob) > MAX_BYTES:
        raise _invalid("too_long", MAX_BYTES)
    entries: dict[Affinity, int] = {}  # each with where it begins
    classes: dict[int, StrEnum] = {}
    unknown_tags: list[int] = []
    entry_count = at = 0
    while at < len(blob):
        if len(blob) - at < _HEADER.size:
            raise _invalid("truncated_tlv_header", at)
        tag, length = _HEADER.unpack_from(blob, at)
        start = at + _HEADER.size
        value = blob[start : start + length]
        if len(value) < length:
            raise _invalid("truncated_tlv_value", at + 2)
        if tag == TAG_AFFINITY:
            entry_count += 1
            if entry_count > MAX_ENTRIES:
                raise _invalid("too_many_entries", at)
            entries.setdefault(_decode_entry(value, start), at)
        elif tag in (TAG_CPU_ISOLATION, TAG_GPU_EXCLUSIVITY):
            name = _decode_class(value, start, tag)
            if tag in classes:  # neither the first nor the last is the safe one
                raise _invalid("duplicate_tlv", at)
            classes[tag] = name
        else:
            unknown_tags.append(tag)
        at = start + length
    if (contradicting := _contradicting(list(entries))) is not None:
        raise _invalid("contradictory", entries[contradicting])
    cpu, gpu = classes.get(TAG_CPU_ISOLATION), classes.get(TAG_GPU_EXCLUSIVITY)
    return WireIntent(
        affinity=tuple(entries),
        cpu_isolation=None if cpu is None else CpuIsolation(cpu),
        gpu_exclusivity=None if gpu is None else GpuExclusivity(gpu),
        unknown_tags=tuple(unknown_tags),
    )


def encode(intent: WireIntent) -> bytes:
    """Write a blob: the entries in their order, then CPU isolation, then GPU exclusivity.

    Raises: WireInvalid for what `decode` would refuse; TypeError for a target of the wrong kind.
    """
    parts = [_tlv(TAG_AFFINITY, _encode_entry(entry)) for entry in intent.affinity]
    if intent.cpu_isolation is not None:
        parts.append(_tlv(TAG_CPU_ISOLATION, bytes([_code(_CPU_CLASSES, intent.cpu_isolation)])))
    if intent.gpu_exclusivity is not None:
        code = _code(_GPU_CLASSES, intent.gpu_exclusivity)
        parts.append(_tlv(TAG_GPU_EXCLUSIVITY, bytes([code])))
    blob = b"".join(parts)
    decode(blob)
    return blob


def _decode_entry(value: bytes, at: int) -> Affinity:
    """Read one entry; the order of the checks decides nothing but the reason."""
    if len(value) < _ENTRY.size:
        raise _invalid("truncated_entry", at)
    category_code, strength_code, type_code, length = _ENTRY.unpack_from(value)
    category = _named(_CATEGORIES, category_code, "category", "category_not_in_v1", at)
    strength = _named(_STRENGTHS, strength_code & 0x7F, "strength", "reserved_strength", at + 1)
    direction = Direction.AWAY if strength_code & _AWAY else Direction.TOWARD
    target_type = _named(_TARGET_TYPES, type_code, "target_type", "", at + 2)
    if target_type not in _ALLOWED[category]:
        raise _invalid("target_type_not_allowed", at + 2)
    if category is Category.TRUST and strength is Strength.PREFERRED:
        raise _invalid("strength_not_allowed", at + 1)  # a soft trust rule is a weaker one
    if (target_type, direction) in (
        (TargetType.TRUST_DOMAIN, Direction.AWAY),
        (TargetType.SERVICE, Direction.TOWARD),
    ):
        raise _invalid("direction_not_allowed", at + 1)
    target = value[_ENTRY.size :]
    if length > len(target):
        raise _invalid("truncated_entry", at + 3)
    if length < len(target):
        raise _invalid("trailing_bytes_in_entry", at + _ENTRY.size + length)
    found: UUID | int | str
    if target_type is TargetType.TRUST_DOMAIN:
        found = _decode_domain(target, at + _ENTRY.size)
    elif length != (_RACK_BYTES if target_type is TargetType.RACK else _ID_BYTES):
        raise _invalid("bad_target_length", at + 3)
    else:
        found = int.from_bytes(target) if target_type is TargetType.RACK else UUID(bytes=target)
    return Affinity(category, strength, direction, target_type, found)


def _decode_domain(name: bytes, at: int) -> str:
    """Read a trust domain, byte for byte: folding case or blanks would let other names in."""
    if not name:
        raise _invalid("empty_trust_domain", at)
    if len(name) > MAX_DOMAIN_BYTES or b"\0" in name:  # no text of Postgres holds a zero byte
        raise _invalid("invalid_trust_domain", at)
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise _invalid("invalid_utf8", at) from None


def _decode_class(value: bytes, at: int, tag: int) -> StrEnum:
    if len(value) != 1:
        raise _invalid("bad_length", at - 2)
    names: Mapping[int, StrEnum] = _CPU_CLASSES if tag == TAG_CPU_ISOLATION else _GPU_CLASSES
    if value[0] not in names:
        reason = "sentinel_class" if value[0] == 0xFF else "unknown_class"
        raise _invalid(reason, at, {"class": f"0x{value[0]:02x}"})
    return names[value[0]]


def _contradicting(entries: list[Affinity]) -> Affinity | None:
    """The first entry that no node can meet beside an earlier one."""
    required = [entry for entry in entries if entry.strength is Strength.REQUIRED]
    return next(
        (
            later
            for place, later in enumerate(required)
            if any(_collide(earlier, later) for earlier in required[:place])
        ),
        None,
    )


def _collide(one: Affinity, other: Affinity) -> bool:
    if one.target_type is not other.target_type:
        return False
    if one.target == other.target:
        return one.direction is not other.direction
    toward = one.direction is other.direction is Direction.TOWARD
    return toward and one.target_type in _ONE_OF_A_KIND


def _encode_entry(entry: Affinity) -> bytes:
    target = _encode_target(entry)
    away = _AWAY if entry.direction is Direction.AWAY else 0
    return (
        _ENTRY.pack(
            _code(_CATEGORIES, entry.category),
            _code(_STRENGTHS, entry.strength) | away,
            _code(_TARGET_TYPES, entry.target_type),
            len(target),
        )
        + target
    )


def _encode_target(entry: Affinity) -> bytes:
    match entry.target_type, entry.target:
        case TargetType.RACK, int(rack) if 0 <= rack < 1 << 8 * _RACK_BYTES:
            return rack.to_bytes(_RACK_BYTES)
        case TargetType.TRUST_DOMAIN, str(name):
            # one byte too many is enough for `decode` to refuse it, as it does lone surrogates
            return name.encode(errors="surrogatepass")[: MAX_DOMAIN_BYTES + 1]
        case ((TargetType.RACK | TargetType.TRUST_DOMAIN), _):
            pass
        case _, UUID(bytes=target):
            return target
    raise TypeError(f"{entry.target!r} is no {entry.target_type.value}")


def _tlv(tag: int, value: bytes) -> bytes:
    return _HEADER.pack(tag, len(value)) + value


def _named(names: Mapping[int, _Word | None], code: int, what: str, if_reserved: str, at: int) -> _Word:
    """The word for a byte. Raises: WireInvalid when it has none, or only a reserved one."""
    if code not in names:
        raise _invalid(f"unknown_{what}", at)
    word = names[code]
    if word is None:
        raise _invalid(if_reserved, at)
    return word


def _code(names: Mapping[int, _Word | None], word: _Word) -> int:
    return next(code for code, name in names.items() if name is word)


def _invalid(reason: str, offset: int, more: Mapping[str, str] | None = None) -> WireInvalid:
    return WireInvalid(
        f"not a valid params blob: {reason.replace('_', ' ')} at byte {offset}",
        detail={"reason": reason, "offset": offset, **(more or {})},
        hint="all of it is refused; docs/reference/wire.md tells what may stand there",
    )


def _normal_set(members: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without duplicates, in the order of their text in Postgres, as `normal_set` in SQL."""
    texts = {json.dumps(member, ensure_ascii=False) for member in members}
    return [json.loads(text) for text in sorted(texts)]


def _read_entry(value: Any, path: str) -> Affinity:
    names = {"category", "strength", "direction", "target_type", "target"}
    _check_members(value, names, path)
    target_type = _read_word(value.get("target_type"), f"{path}.target_type", TargetType)
    return Affinity(
        _read_word(value.get("category"), f"{path}.category", Category),
        _read_word(value.get("strength"), f"{path}.strength", Strength),
        _read_word(value.get("direction", "toward"), f"{path}.direction", Direction),
        target_type,
        _read_target(value.get("target"), target_type, f"{path}.target"),
    )


def _read_target(value: Any, target_type: TargetType, path: str) -> UUID | int | str:
    if target_type is TargetType.RACK:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
            raise _bad_value(path, "the number of a rack, 0 to 4294967295")
        return value
    if isinstance(value, str) and target_type is TargetType.TRUST_DOMAIN:
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _bad_value(path, f"a {target_type.value}") from None


def _read_class(value: Mapping[str, Any], name: str, kind: type[_Word]) -> _Word | None:
    given = value.get(name)
    return None if given is None else _read_word(given, name, kind)


def _read_word(value: Any, path: str, kind: type[_Word]) -> _Word:
    try:
        return kind(value)
    except ValueError:
        raise _bad_value(path, "one of " + ", ".join(kind)) from None


def _check_members(value: Any, known: set[str], path: str) -> None:
    if not isinstance(value, Mapping):
        raise _bad_value(path, "a JSON object")
    for name in sorted(value.keys() - known, key=str):
        raise _bad_value(f"{path}.{name}", f"left out; there are {', '.join(sorted(known))}")


def _bad_value(path: str, wanted: str) -> BadArgument:
    return BadArgument(
        f"{path} must be {wanted}", detail={"field": path}, hint="`hwqueue wire decode --json` shows the form"
    )
