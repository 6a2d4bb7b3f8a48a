"""Version ranges: `version` after HashiCorp's go-version, `semver` in the order of SemVer 2.0.

A range is a comma list of bounds that must all hold. Missing segments are zeros, a leading "v" and
build metadata do not count. Only `version` knows "~>", takes a pre-release without its dash
("1.3beta1"), and lets a pre-release meet an order bound only if the bound is a pre-release of the
very same segments.
"""

import re
from dataclasses import dataclass
from itertools import zip_longest

_TAIL = r"(?:\.[0-9A-Za-z~-]+)*"
_META = rf"(?:\+[0-9A-Za-z~-]+{_TAIL})?"
_SEGMENTS = r"v?(?P<segments>[0-9]+(?:\.[0-9]+)*)"
_STRICT_PRE = rf"(?:-(?P<pre>[0-9A-Za-z~-]+{_TAIL}))?"
_LOOSE_PRE = rf"(?:-?(?P<loose>[A-Za-z~][0-9A-Za-z~-]*{_TAIL})|-(?P<pre>[0-9]+[0-9A-Za-z~-]*{_TAIL}))?"
_SHAPES = {
    "version": re.compile(_SEGMENTS + _LOOSE_PRE + _META, re.ASCII),
    "semver": re.compile(_SEGMENTS + _STRICT_PRE + _META, re.ASCII),
}
_BOUND = re.compile(r"\s*(?P<op>=|!=|>=|<=|>|<|~>|)\s*(?P<version>[^\s=!<>~]\S*)\s*", re.ASCII)


class BadRangeError(ValueError):
    """The range cannot be read."""


@dataclass(frozen=True)
class Version:
    """A parsed version; `written` counts the segments that were spelled out."""

    segments: tuple[int, ...]
    written: int
    pre: tuple[str, ...]


def parse(text: str, kind: str) -> Version | None:
    """The version that the text spells, None if it spells none."""
    match = _SHAPES[kind].fullmatch(text)
    if match is None:
        return None
    segments = tuple(int(part) for part in match["segments"].split("."))
    pre = match["pre"] or match.groupdict().get("loose") or ""
    padded = segments + (0,) * (3 - len(segments))
    return Version(padded, len(segments), tuple(pre.split(".")) if pre else ())


def in_range(label: str, version_range: str, kind: str) -> bool:
    """Whether the label's version meets every bound; raises BadRangeError."""
    bounds = [_bound(part, kind) for part in version_range.split(",")]
    version = parse(label, kind)
    return version is not None and all(_meets(version, op, bound, kind) for op, bound in bounds)


def _bound(part: str, kind: str) -> tuple[str, Version]:
    match = _BOUND.fullmatch(part)
    version = parse(match["version"], kind) if match else None
    if match is None or version is None or (kind == "semver" and match["op"] == "~>"):
        raise BadRangeError(f"{part!r} is no {kind} bound")
    return match["op"], version


def _meets(version: Version, op: str, bound: Version, kind: str) -> bool:
    order = _compare(version, bound)
    if op in ("", "="):
        return order == 0
    if op == "!=":
        return order != 0
    alien = version.pre and not (bound.pre and version.segments == bound.segments)
    if kind == "version" and alien:
        return False
    if op == "~>":
        return _within_last_segment(version, bound, order)
    return {">": order > 0, ">=": order >= 0, "<": order < 0, "<=": order <= 0}[op]


def _within_last_segment(version: Version, bound: Version, order: int) -> bool:
    """ "~> 1.2.3": at least that, and nothing but its last written segment has grown."""
    fixed = bound.written - 1
    return (
        order >= 0
        and bool(bound.pre) == bool(version.pre)
        and len(version.segments) >= len(bound.segments)
        and version.segments[:fixed] == bound.segments[:fixed]
    )


def _compare(left: Version, right: Version) -> int:
    for one, other in zip_longest(left.segments, right.segments, fillvalue=0):
        if one != other:
            return 1 if one > other else -1
    if bool(left.pre) != bool(right.pre):
        return -1 if left.pre else 1
    keys = [_identifier_key(part) for part in left.pre], [_identifier_key(p) for p in right.pre]
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def _identifier_key(part: str) -> tuple[bool, int, str]:
    """Numeric identifiers come before others; a shorter list before a longer one is list order."""
    numeric = part.isascii() and part.isdigit()
    return (not numeric, int(part) if numeric else 0, "" if numeric else part)
