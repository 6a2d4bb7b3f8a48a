"""Methods about tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain


class AsyncTenants(AsyncPart):
    """Say whose leases run first."""

    async def set_tenant(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change what a tenant may have; None resets a key. For admins.

        Args:
            name: `*`: all tenants without a row. Leases of no tenant are guaranteed.
            changes: `tier`: `guaranteed`, before `best_effort`, before `scavenger`; of the leases
                that it spawns from now on.

        Returns: The whole specification.
        Raises: BadArgument.
        SQL: set_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.SET_TENANT, p_name=name, p_changes=plain(changes, "changes"))

    async def drop_tenant(self, name: str) -> bool:
        """Drop the row of a tenant; its leases that wait keep their tier. For admins.

        Returns: Whether it was there.
        SQL: drop_tenant. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_TENANT, p_name=name)

    async def list_tenants(
        self, *, after: str | None = None, limit: int = 100, name: str | None = None
    ) -> list[types.Tenant]:
        """The tenants that have a row, by name.

        Args:
            after: The last name of the page before.
            limit: 1 to 10,000.
            name: This one alone.

        Raises: BadArgument.
        SQL: list_tenants. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_TENANTS, p_after=after, p_limit=limit, p_name=name)
