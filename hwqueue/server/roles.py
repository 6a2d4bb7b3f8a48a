"""Who may do what: roles of tokens, and the scopes that routes ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Scope(StrEnum):
    """What a route asks of its caller."""

    LEASES_READ = "leases:read"
    LEASES_WRITE = "leases:write"
    MATCH = "match"
    READ = "read"
    OPERATE = "operate"
    ADMINISTER = "administer"
    WORK = "work"


class Role(StrEnum):
    """What a token, or a proxy's word, makes of its bearer."""

    PRODUCER = "producer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


_LEASES = frozenset({Scope.LEASES_READ, Scope.LEASES_WRITE, Scope.MATCH})
_LOOK = frozenset({Scope.LEASES_READ, Scope.MATCH, Scope.READ})

SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.PRODUCER: _LEASES,
    Role.VIEWER: _LOOK,
    Role.OPERATOR: _LEASES | _LOOK | {Scope.OPERATE},
    # a worker acts for the nodes of its token, which others have none of
    Role.ADMIN: frozenset(Scope) - {Scope.WORK},
    Role.WORKER: frozenset({Scope.WORK}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls.

    Attributes:
        actor: What the database is told.
        tenant: The only one to be seen; None: all.
        address: Where nobody is asked who they are: all that tells them apart.
        token_sha256: Of a bearer's token.
    """

    actor: str
    role: Role
    tenant: str | None = None
    address: str | None = None
    token_sha256: bytes | None = field(default=None, repr=False)

    @property
    def counted_name(self) -> str:
        """Whose requests, bytes and streams are counted together."""
        return self.address or counted_as(self.actor, self.tenant)

    def has(self, scope: Scope) -> bool:
        """Whether the role has this scope."""
        return scope in SCOPES[self.role]


def counted_as(actor: str, tenant: str | None) -> str:
    """Whose limits are meant: all tokens and users of a tenant share those of the tenant."""
    return actor if tenant is None else f"tenant:{tenant}"
