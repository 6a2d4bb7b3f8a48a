"""What the admin lists. There is no table behind it: the queue is read through its functions."""

from __future__ import annotations

from uuid import UUID

from django.db import models


class Lease(models.Model):
    """A lease, so that the admin has an entry and a permission, `hwqueue.view_lease`, for it."""

    lease_id: models.UUIDField[UUID, UUID] = models.UUIDField(primary_key=True)

    class Meta:
        """No table, and nothing to do but to look."""

        managed = False
        default_permissions = ("view",)
        verbose_name = "lease"
