"""The admin: a list of leases to look at, and links into the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from hwqueue.contrib.django.conf import read_settings
from hwqueue.contrib.django.connecting import client, savepoint
from hwqueue.contrib.django.models import Lease
from hwqueue.errors import HwqueueError
from hwqueue.types import LeaseFilter, LeaseState, LeaseSummary

_FILTERS = ("queue", "task", "state", "tenant")
_PAGE_LEASES = 50
_PAGES = (
    ("Overview", ""),
    ("Leases", "leases"),
    ("Pending", "pending"),
    ("Queues", "queues"),
    ("Fleet", "fleet"),
)

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Lease]
else:
    _ModelAdmin = admin.ModelAdmin  # generic for type checkers only


@admin.register(Lease)
class LeaseAdmin(_ModelAdmin):
    """Leases, newest first, for those with the permission `hwqueue.view_lease`.

    Read through the queue's functions. Without params and results, which may be anybody's: those
    are in the dashboard, which asks for a token.
    """

    def get_urls(self) -> list[URLPattern]:
        """The list alone: there is no table to edit."""
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="hwqueue_lease_changelist")]

    def _never(self, *_about: object, **_named: object) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """The list. Raises: PermissionDenied."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        wanted = {name: value for name in _FILTERS if (value := request.GET.get(name, "").strip())}
        leases = self._leases(request, wanted)
        dashboard = (read_settings().dashboard_url or "").rstrip("/")
        is_full = len(leases) > _PAGE_LEASES
        context = {
            **self.admin_site.each_context(request),
            "title": "Leases",
            "opts": self.model._meta,
            "leases": leases[:_PAGE_LEASES],
            "wanted": wanted,
            "states": [state.value for state in LeaseState],
            "older": leases[_PAGE_LEASES - 1].lease_id if is_full else None,
            "dashboard": dashboard,
            "pages": [(name, f"{dashboard}/{where}") for name, where in _PAGES],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/hwqueue/lease/change_list.html", context)

    def _leases(self, request: HttpRequest, wanted: dict[str, str]) -> Sequence[LeaseSummary]:
        """A page of them and one more; none, with a message, if the filter cannot be read."""
        try:
            with savepoint():  # with ATOMIC_REQUESTS the rest of the page needs its transaction
                return client().list_leases(
                    limit=_PAGE_LEASES + 1,
                    before=request.GET.get("before") or None,
                    queue=wanted.get("queue"),
                    **cast("LeaseFilter", {k: v for k, v in wanted.items() if k != "queue"}),
                )
        except HwqueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return []
