"""An order."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """What somebody wants."""

    item: models.CharField[str, str] = models.CharField(max_length=100)
    confirmed: models.BooleanField[bool, bool] = models.BooleanField(default=False)
    objects: ClassVar[models.Manager[Order]] = models.Manager()
