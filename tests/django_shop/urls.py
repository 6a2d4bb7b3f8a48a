"""Addresses of the project."""

from django.contrib import admin
from django.urls import path

from tests.django_shop.orders.views import place_order, place_order_async

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order/", place_order),
    path("async/order/", place_order_async),
]
