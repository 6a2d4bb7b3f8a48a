"""Webhooks, and what is sent to them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hwqueue.server.models.base import (
    EXAMPLE_ID,
    Answer,
    Id,
    Labels,
    Name,
    Request,
    Seconds,
    Tenant,
    example,
)
from hwqueue.server.models.derived import list_of
from hwqueue.types import WEBHOOK_CODES, Delivery, Webhook

WebhookName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@-]*$", max_length=100)]
# Only such as are there: one that is misspelt would never be sent.
Code = Annotated[Literal[WEBHOOK_CODES], Field(examples=["lease_failed"])]  # type: ignore[valid-type]


class SetWebhook(Request):
    """Where a webhook's requests go, and which events it gets; what is left out or null is any."""

    model_config = example(url="https://hooks.example/hwqueue", codes=["lease_failed"])

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    codes: Annotated[list[Code], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Of events, or lease_completed, which only those get that ask."
    )
    queues: Annotated[list[Name], Field(min_length=1, max_length=1000)] | None = None
    tenant: Tenant | None = Field(default=None, description="Then nothing that is no tenant's.")
    labels: Labels | None = Field(default=None, description="Of the leases.")


class WebhookSecret(Answer):
    """The secret of a webhook, which is not shown again."""

    name: str
    secret: str | None = Field(description="whsec_...; null: it was there, and keeps its secret.")


class RotateWebhook(Request):
    """How long requests are signed with the old secret, too."""

    model_config = example(keep=86_400)

    keep: Annotated[Seconds, Field(le=604_800)] = 86_400


class WebhookNow(Answer):
    """A webhook after a change. changed: false if it was so before."""

    name: str
    changed: bool


class WebhookTested(Answer):
    """The delivery that tries a webhook."""

    delivery_id: Id


class Redeliver(Request):
    """Which deliveries are sent again: this one, or up to 1,000 that are dead."""

    model_config = example(delivery_id=EXAMPLE_ID)

    delivery_id: Id | None = None


class Redelivered(Answer):
    """How many deliveries are sent again."""

    redelivered: int


Webhooks = list_of(Webhook, name="Webhooks", doc="The webhooks, by name.")
Deliveries = list_of(Delivery, pages=True)
