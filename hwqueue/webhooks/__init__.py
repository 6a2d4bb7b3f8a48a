"""Webhooks: for receivers `verify`, for those who send `Deliverer`, which needs `[webhooks]`."""

from hwqueue.extras import loader
from hwqueue.webhooks.signature import verify

__all__ = ["verify"]

__getattr__ = loader(__name__, "webhooks", "hwqueue.webhooks.deliver", ("Deliverer", "Limits"))
