"""Methods about queues and services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain
from hwqueue.client._rows import service_policy

Policy = types.QueuePolicy | Mapping[str, Any]


class AsyncQueues(AsyncPart):
    """Create, change and look at queues; say what holds for services, the `service_id` of leases."""

    async def create_queue(self, queue: str, *, policy: Policy | None = None) -> None:
        """Create a queue; one that exists is left alone, whatever its other keys are.

        Args:
            policy: Keys that are not given are at their defaults.

        Raises: QueueExists (and a key of `policy` differs), BadArgument.
        SQL: create_queue. Safe inside your transaction: yes.
        """
        settings = plain(policy, "policy")
        await self._call(calls.CREATE_QUEUE, p_queue=queue, p_policy=settings)

    async def set_queue_policy(self, queue: str, policy: Policy) -> None:
        """Change the keys of a queue's policy that are given; leases already there keep theirs.

        Raises: QueueUnknown, BadArgument.
        SQL: set_queue_policy. Safe inside your transaction: yes.
        """
        settings = plain(policy, "policy")
        await self._call(calls.SET_QUEUE_POLICY, p_queue=queue, p_policy=settings)

    async def drop_queue(self, queue: str, *, force: bool = False) -> None:
        """Remove a queue; with `force` the leases in it, too.

        Raises: QueueUnknown, QueueNotEmpty.
        SQL: drop_queue. Safe inside your transaction: yes, but claims on the queue wait for it.
        """
        await self._call(calls.DROP_QUEUE, p_queue=queue, p_force=force)

    async def pause_queue(self, queue: str) -> None:
        """Grant no more claims from a queue; spawns and running claims go on.

        Raises: QueueUnknown.
        SQL: pause_queue. Safe inside your transaction: yes.
        """
        await self._call(calls.PAUSE_QUEUE, p_queue=queue)

    async def resume_queue(self, queue: str) -> None:
        """Grant claims from a paused queue again.

        Raises: QueueUnknown.
        SQL: resume_queue. Safe inside your transaction: yes.
        """
        await self._call(calls.RESUME_QUEUE, p_queue=queue)

    async def list_queues(self) -> list[types.Queue]:
        """Every queue with the number of its open leases, by name.

        SQL: list_queues. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_QUEUES)

    async def wake_payloads(self, queues: Sequence[str]) -> list[types.WakePayload]:
        """What notifications of new work in these queues carry; they need not exist yet.

        For those who LISTEN to channel `hwqueue` themselves. A notification is a hint: any login
        of the database may send one, and it may be lost.

        Raises: BadArgument.
        SQL: wake_payloads. Safe inside your transaction: yes.
        """
        return await self._rows(calls.WAKE_PAYLOADS, p_queues=list(queues))

    async def set_service_policy(
        self, service_id: UUID | str, policy: types.ServicePolicy | Mapping[str, Any]
    ) -> types.ServicePolicy:
        """Change the keys of a service's policy that are given; None in a mapping takes one back.

        Returns: The whole policy.
        Raises: BadArgument.
        SQL: set_service_policy. Safe inside your transaction: yes.
        """
        settings = plain(policy, "policy")
        return service_policy(
            await self._value(calls.SET_SERVICE_POLICY, p_service=service_id, p_policy=settings)
        )

    async def service_policy(self, service_id: UUID | str) -> types.ServicePolicy:
        """What is said of a service; of one that nobody knows, nothing.

        Raises: BadArgument.
        SQL: service_policy. Safe inside your transaction: yes.
        """
        return service_policy(await self._value(calls.SERVICE_POLICY, p_service=service_id))
