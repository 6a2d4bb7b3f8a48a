"""Methods about tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain


class AsyncTenants(AsyncPart):
    """Say whose leases run first, how much of what a tenant may have, and which logins call for it."""

    async def set_tenant(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change what a tenant may have; None resets a key. For admins.

        Args:
            name: `*`: all tenants without a row. Leases of no tenant are guaranteed.
            changes: `tier`: `guaranteed`, before `best_effort`, before `scavenger`; of the leases
                that it spawns from now on. `weight`: its share in fair limits by tenant. `slots`: how
                many of its leases may run at once. `pending`, `classes`: how many may wait, and how
                many placement classes it may have; `spawns`: how many it may spawn in a time, such as
                `{"count": 600, "per": "1 min", "burst": 50}`, burst as many as count if it is left
                out; a spawn of more raises QuotaExceeded. `shared_with`: tenants whose leases may
                ask about its leases in their selectors (`tenants`).

        Returns: The whole specification.
        Raises: BadArgument.
        SQL: set_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.SET_TENANT, p_name=name, p_changes=plain(changes, "changes"))

    async def drop_tenant(self, name: str) -> bool:
        """Drop the row of a tenant and its logins; its leases that wait keep their tier. For admins.

        Returns: Whether there was any.
        SQL: drop_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_TENANT, p_name=name)

    async def grant_tenant(self, login: str, tenant: str, rights: Sequence[str] = ("read",)) -> list[str]:
        """Let a login that is bound to tenants call for this one. For admins.

        Args:
            login: A login of the database with the role hwqueue_tenants, and no other of hwqueue.
            rights: In the place of those that it has: `spawn`, `operate` (change, cancel, requeue,
                signal and delete); to `read` is always among them.

        Returns: Its rights.
        Raises: BadArgument.
        SQL: grant_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.GRANT_TENANT, p_login=login, p_tenant=tenant, p_rights=list(rights))

    async def revoke_tenant(self, login: str, tenant: str) -> bool:
        """Take a tenant from a login; one that has none left sees and does nothing. For admins.

        Returns: Whether it had it.
        SQL: revoke_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.REVOKE_TENANT, p_login=login, p_tenant=tenant)

    async def list_tenants(
        self, *, after: str | None = None, limit: int = 100, name: str | None = None
    ) -> list[types.Tenant]:
        """The tenants that have a row or a login, by name.

        Args:
            after: The last name of the page before.
            limit: 1 to 10,000.
            name: This one alone.

        Raises: BadArgument.
        SQL: list_tenants. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_TENANTS, p_after=after, p_limit=limit, p_name=name)

    async def tenant_usage(self, *, name: str | None = None, limit: int = 100) -> list[types.TenantUsage]:
        """What tenants use beside what they may, the busiest first; it reads all that waits and runs.

        Args:
            name: This one alone; `""`: the leases of none.
            limit: 1 to 10,000.

        Raises: BadArgument.
        SQL: tenant_usage. Safe inside your transaction: yes.
        """
        return await self._rows(calls.TENANT_USAGE, p_name=name, p_limit=limit)

    async def list_preemptions(
        self, *, lease_id: UUID | str | None = None, tenant: str | None = None, limit: int = 100
    ) -> list[types.PreemptedClaim]:
        """Claims that were asked to stop for leases of earlier tiers, the newest first.

        Args:
            lease_id: Those of this lease.
            tenant: Those of this tenant, and those for its leases.
            limit: 1 to 10,000; of the last 10,000 claims that were asked for any reason.

        Raises: BadArgument.
        SQL: list_preemptions. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_PREEMPTIONS, p_lease=lease_id, p_tenant=tenant, p_limit=limit)
