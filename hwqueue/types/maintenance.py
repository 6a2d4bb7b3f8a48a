"""What upkeep did, and what is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ReapResult:
    """What one `reap` did: claims expired, scheduled leases promoted, deadlines passed.

    Attributes:
        more: It reached its limit somewhere; call it again.
    """

    expired: int
    promoted: int
    deadlines: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """What one `prune` removed.

    Attributes:
        more: There may be more to remove now; call it again.
    """

    leases: int
    classes: int
    nodes: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInvariant:
    """Something that must hold at every instant and does not.

    Attributes:
        rule: one_entry, node_load, capacity, term_count, away or max_per_domain.
        subject: Id of the lease, node or term.
        detail: What was found, and what was expected.
    """

    rule: str
    subject: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """What is installed in the database: last revision, hash of the functions, who installed it."""

    revision: str
    bundle_sha256: str
    package_version: str
