"""Tokens of the HTTP API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """What a token lets its bearer do.

    role: `producer`, `viewer`, `operator`, `admin` or `worker`. tenant: the only one; None: all.
    """

    name: str
    role: str
    tenant: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken(TokenGrant):
    """A token as operators see it; its secret is nowhere. used_at: the last use, to the hour.

    created_by, revoked_by: who the caller said it was. created_login, revoked_login: the database
    login, by the server's own word. nodes: of role `worker`, names of the nodes that it may
    register, or how they begin: `edge-*`.
    """

    created_at: datetime
    created_by: str
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    created_login: str | None = None
    revoked_login: str | None = None
    nodes: tuple[str, ...] | None = None
