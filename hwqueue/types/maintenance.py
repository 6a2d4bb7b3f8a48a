"""What upkeep did, and what is installed."""

from __future__ import annotations

from dataclasses import dataclass


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
    """What one `prune` removed."""

    leases: int
    classes: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """What is installed in the database: last revision, hash of the functions, who installed it."""

    revision: str
    bundle_sha256: str
    package_version: str
