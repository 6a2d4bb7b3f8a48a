"""Webhooks: which events go to which receivers, and what was sent."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import webhooks as models
from hwqueue.server.models.base import Id
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import NO_WEBHOOK, Admin, Operator, Reader

router = APIRouter(route_class=AuthenticatedRoute, prefix="/webhooks", tags=["webhooks"])

PathName = Annotated[models.WebhookName, Path(description="Name of the webhook.", examples=["pager"])]


@router.get("", response_model=models.Webhooks)
async def list_webhooks(caller: Reader) -> Any:
    """The webhooks and how they go, without their secrets."""
    async with caller.read() as client:
        return {"items": await client.list_webhooks()}


@router.put("/{webhook}")
async def set_webhook(webhook: PathName, body: models.SetWebhook, caller: Admin) -> models.WebhookSecret:
    """Add a webhook, and get its secret, this once; or replace its address and its filter."""
    async with caller.call() as client:
        secret = await client.set_webhook(webhook, **body.model_dump(exclude_none=True))
    return models.WebhookSecret(name=webhook, secret=secret)


@router.delete("/{webhook}")
async def drop_webhook(webhook: PathName, caller: Admin) -> models.WebhookNow:
    """Drop it; what it has not been sent is not sent any more."""
    async with caller.call() as client:
        dropped = await client.drop_webhook(webhook)
    return models.WebhookNow(name=webhook, changed=dropped)


@router.post("/{webhook}/pause", responses=NO_WEBHOOK)
async def pause_webhook(webhook: PathName, caller: Operator) -> models.WebhookNow:
    """Send it nothing until it is resumed."""
    async with caller.call() as client:
        changed = await client.pause_webhook(webhook)
    return models.WebhookNow(name=webhook, changed=changed)


@router.post("/{webhook}/resume", responses=NO_WEBHOOK)
async def resume_webhook(webhook: PathName, caller: Operator) -> models.WebhookNow:
    """Go on where it was paused, as far as events are kept."""
    async with caller.call() as client:
        changed = await client.resume_webhook(webhook)
    return models.WebhookNow(name=webhook, changed=changed)


@router.post("/{webhook}/rotate", responses=NO_WEBHOOK)
async def rotate_webhook(
    webhook: PathName, caller: Admin, body: models.RotateWebhook | None = None
) -> models.WebhookSecret:
    """Replace its secret, and get the new one, this once."""
    keep = timedelta(seconds=(body or models.RotateWebhook()).keep)
    async with caller.call() as client:
        secret = await client.rotate_webhook(webhook, keep=keep)
    return models.WebhookSecret(name=webhook, secret=secret)


@router.post("/{webhook}/test", responses=NO_WEBHOOK)
async def test_webhook(webhook: PathName, caller: Operator) -> models.WebhookTested:
    """Have a request of type webhook_test sent."""
    async with caller.call() as client:
        delivery = await client.test_webhook(webhook)
    return models.WebhookTested(delivery_id=delivery)


@router.get("/{webhook}/deliveries", response_model=models.Deliveries, responses=NO_WEBHOOK)
async def list_deliveries(
    *,
    webhook: PathName,
    caller: Reader,
    page: Paged,
    state: Annotated[Literal["waiting", "delivered", "dead"] | None, Query()] = None,
    before: Annotated[Id | None, Query(description="Cursor: `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """What is to be sent to it or was, newest first."""
    async with caller.read() as client:
        found = await client.list_deliveries(webhook, state=state, limit=limit + 1, before=before)
    return page.of(found, limit, lambda row: row.delivery_id)


@router.post("/{webhook}/redeliver", responses=NO_WEBHOOK)
async def redeliver(
    webhook: PathName, caller: Operator, body: models.Redeliver | None = None
) -> models.Redelivered:
    """Send a delivery again, delivered or dead; without one, those that are dead."""
    async with caller.call() as client:
        count = await client.redeliver(webhook, body.delivery_id if body else None)
    return models.Redelivered(redelivered=count)
