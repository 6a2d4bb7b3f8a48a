"""Methods about webhooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import given, plain


class AsyncWebhooks(AsyncPart):
    """Say who is told of which events over HTTP, and look at what was sent."""

    async def set_webhook(
        self,
        name: str,
        url: str,
        *,
        codes: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str | None:
        """Create a webhook, or replace the address and the filter of one that is there. For admins.

        Args:
            url: https, or http where the process that sends permits it.
            codes: Some of `WEBHOOK_CODES`; None: every event, which `lease_completed` is not.
            queues: None: all, and what is no queue's.
            tenant: The only one that it is told of; None: all, and what is no tenant's.
            labels: What a lease must have to be told of.

        Returns: The secret of a new webhook, shown this once; None of one that was there.
        Raises: BadArgument.
        SQL: set_webhook. Safe inside your transaction: yes.
        """
        options = given({"codes": codes, "queues": queues, "tenant": tenant, "labels": labels})
        return await self._value(
            calls.SET_WEBHOOK, p_name=name, p_url=url, p_options=plain(options, "options")
        )

    async def list_webhooks(self) -> list[types.Webhook]:
        """The webhooks by name, without their secrets.

        SQL: list_webhooks. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_WEBHOOKS)

    async def drop_webhook(self, name: str) -> bool:
        """Drop a webhook; what it has not been sent is not sent any more. For admins.

        Returns: Whether it was there.
        SQL: drop_webhook. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_WEBHOOK, p_name=name)

    async def pause_webhook(self, name: str) -> bool:
        """Send a webhook nothing until it is resumed; it is told then of what happened meanwhile.

        Returns: Whether it was not paused before.
        Raises: WebhookUnknown.
        SQL: pause_webhook. Safe inside your transaction: yes.
        """
        return await self._value(calls.PAUSE_WEBHOOK, p_name=name)

    async def resume_webhook(self, name: str) -> bool:
        """Go on where a webhook was paused, as far as events are kept.

        Returns: Whether it was paused.
        Raises: WebhookUnknown.
        SQL: resume_webhook. Safe inside your transaction: yes.
        """
        return await self._value(calls.RESUME_WEBHOOK, p_name=name)

    async def rotate_webhook(self, name: str, *, keep: timedelta = timedelta(days=1)) -> str:
        """Replace the secret of a webhook. For admins.

        Args:
            keep: How long requests are signed with the old one, too; 0 to 7 days.

        Returns: The new secret, shown this once.
        Raises: WebhookUnknown, BadArgument.
        SQL: rotate_webhook. Safe inside your transaction: yes.
        """
        return await self._value(calls.ROTATE_WEBHOOK, p_name=name, p_keep=keep)

    async def test_webhook(self, name: str) -> UUID:
        """Have a delivery of type `webhook_test` sent.

        Returns: Its id.
        Raises: WebhookUnknown.
        SQL: test_webhook. Safe inside your transaction: yes.
        """
        return await self._value(calls.TEST_WEBHOOK, p_name=name)

    async def list_deliveries(
        self, name: str, *, state: str | None = None, limit: int = 100, before: UUID | str | None = None
    ) -> list[types.Delivery]:
        """What is to be sent to a webhook or was, newest first.

        Args:
            state: `waiting`, `delivered` or `dead`; None: all.
            limit: 1 to 10,000.
            before: The last delivery of the page before.

        Raises: WebhookUnknown, BadArgument.
        SQL: list_deliveries. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.LIST_DELIVERIES, p_name=name, p_state=state, p_limit=limit, p_before=before
        )

    async def redeliver(self, name: str, delivery: UUID | str | None = None, *, limit: int = 1000) -> int:
        """Have a delivery sent again, whatever became of it; None: the dead ones.

        Args:
            limit: Of the dead ones, the oldest first; 1 to 10,000.

        Returns: How many are sent again.
        Raises: WebhookUnknown, BadArgument.
        SQL: redeliver. Safe inside your transaction: yes.
        """
        return await self._value(calls.REDELIVER, p_name=name, p_delivery=delivery, p_limit=limit)

    async def claim_deliveries(
        self, limit: int = 20, *, claim_timeout: timedelta = timedelta(minutes=1)
    ) -> list[types.ClaimedDelivery]:
        """Find out what webhooks are to be told of, and take some of it to be sent now.

        Args:
            limit: 1 to 1000; at most ten of one webhook are claimed at once.
            claim_timeout: When another call may take them, unless they are settled; 1 s to
                10 minutes.

        Raises: BadArgument, IsolationLevel.
        SQL: claim_deliveries. Safe inside your transaction: no, commit before you send.
        """
        return await self._rows(calls.CLAIM_DELIVERIES, p_limit=limit, p_timeout=claim_timeout)

    async def settle_delivery(
        self,
        delivery: UUID | str,
        attempt: int,
        *,
        status: int | None = None,
        response: str | None = None,
        error: str | None = None,
        retry_after: int | None = None,
    ) -> str:
        """Record how an attempt ended.

        Args:
            attempt: As it was claimed.
            status: Of the answer, 100 to 999; None: there was none.
            response: The beginning of the answer's body, at most 1000 characters.
            error: Why there was no answer, at most 1000 characters.
            retry_after: Seconds that the receiver asked for.

        Returns: `delivered`, `waiting` (it is tried again), `dead`, or `lost`: the claim had ended.
        Raises: BadArgument.
        SQL: settle_delivery. Safe inside your transaction: yes.
        """
        result: dict[str, Any] = given(
            {"status": status, "response": response, "error": error, "retry_after": retry_after}
        )
        return await self._value(
            calls.SETTLE_DELIVERY, p_delivery=delivery, p_attempt=attempt, p_result=plain(result, "result")
        )
