"""Views that spawn."""

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, JsonResponse

from hwqueue.contrib.django import aspawn, client
from tests.django_shop.orders.models import Order
from tests.django_shop.orders.tasks import confirm_order


def place_order(request: HttpRequest) -> JsonResponse:
    """Write an order and spawn in one transaction; fails after it with `?fail=1`."""
    with transaction.atomic():
        order = Order.objects.create(item=request.GET["item"])
        spawned = confirm_order.spawn(client(), order_id=order.pk)
    if "fail" in request.GET:
        raise RuntimeError("after the block")
    return JsonResponse({"order": order.pk, "lease": str(spawned.lease_id)})


async def place_order_async(request: HttpRequest) -> JsonResponse:
    """The same without a transaction: Django has none in async code."""
    order = await sync_to_async(Order.objects.create)(item=request.GET["item"])
    spawned = await aspawn(confirm_order, order_id=order.pk)
    return JsonResponse({"order": order.pk, "lease": str(spawned.lease_id)})
