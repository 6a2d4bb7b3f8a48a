"""Methods about services."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.client._json import plain
from hwqueue.client._rows import service_policy
from hwqueue.types import ServicePolicy


class AsyncServices(AsyncCaller):
    """Say what holds for services, the `service_id` of leases."""

    async def set_service_policy(
        self, service_id: UUID | str, policy: ServicePolicy | Mapping[str, Any]
    ) -> ServicePolicy:
        """Change the keys of a service's policy that are given; None in a mapping takes one back.

        Returns: The whole policy.
        Raises: BadArgument.
        SQL: set_service_policy. Safe inside your transaction: yes.
        """
        settings = plain(policy, "policy")
        return service_policy(
            await self._value(calls.SET_SERVICE_POLICY, p_service=service_id, p_policy=settings)
        )

    async def service_policy(self, service_id: UUID | str) -> ServicePolicy:
        """What is said of a service; of one that nobody knows, nothing.

        Raises: BadArgument.
        SQL: service_policy. Safe inside your transaction: yes.
        """
        return service_policy(await self._value(calls.SERVICE_POLICY, p_service=service_id))
