"""The admin."""

from __future__ import annotations

from django.contrib.auth.models import Permission, User
from django.test import TestCase, override_settings

from hwqueue.contrib.django import client
from tests.django_shop.orders import tasks
from tests.django_shop.orders.tasks import confirm_order

LIST = "/admin/hwqueue/lease/"


class Leases(TestCase):
    """The list of leases."""

    def setUp(self) -> None:
        self.user = User.objects.create_user("ann", password="secret", is_staff=True)
        self.client.force_login(self.user)

    def allow(self) -> None:
        """Let the user look."""
        self.user.user_permissions.add(Permission.objects.get(codename="view_lease"))

    def page(self, query: str = "") -> str:
        """The list, as it is shown."""
        answer = self.client.get(LIST + query)
        assert answer.status_code == 200
        return answer.content.decode()

    def test_it_takes_the_permission(self) -> None:
        assert self.client.get(LIST).status_code == 403
        assert LIST not in self.client.get("/admin/").content.decode()
        self.allow()
        assert LIST in self.client.get("/admin/").content.decode()
        assert "No leases." in self.page()

    def test_there_is_nothing_to_change(self) -> None:
        self.allow()
        assert set(Permission.objects.filter(content_type__app_label="hwqueue")) == set(
            Permission.objects.filter(codename="view_lease")
        )
        for address in ("add/", "1/change/", "1/delete/"):
            assert self.client.get(LIST + address).status_code == 404

    def test_it_filters(self) -> None:
        self.allow()
        mail = confirm_order.spawn(client(), order_id=1).lease_id
        other = tasks.add.enqueue(1).id
        for query, shown in (
            ("", {str(mail), other}),
            ("?queue=mail", {str(mail)}),
            ("?task=tests.django_shop.orders.tasks.add", {other}),
            ("?state=claimed", set()),
            (f"?before={other}", {str(mail)}),
        ):
            page = self.page(query)
            assert {each for each in (str(mail), other) if each in page} == shown, query

    def test_a_filter_that_cannot_be_read_is_told(self) -> None:
        self.allow()
        assert "does not exist" in self.page("?queue=%3Cb%3E")
        assert "<b>" not in self.page("?queue=%3Cb%3E")
        assert "No leases." in self.page("?before=1")

    def test_it_links_into_the_dashboard(self) -> None:
        self.allow()
        lease_id = confirm_order.spawn(client(), order_id=1).lease_id
        assert 'class="object-tools"' not in self.page()
        with override_settings(HWQUEUE={"DASHBOARD_URL": "https://queue.example/"}):
            page = self.page()
        assert f'href="https://queue.example/leases/{lease_id}"' in page
        assert 'href="https://queue.example/fleet"' in page

    def test_it_goes_on_to_older_ones(self) -> None:
        self.allow()
        confirm_order.spawn_many(client(), [{"order_id": number} for number in range(60)])
        page = self.page("?queue=mail")
        assert page.count("<td>confirm-order</td>") == 50
        older = page.partition('href="?queue=mail&amp;before=')[2].partition('"')[0]
        assert self.page(f"?queue=mail&before={older}").count("<td>confirm-order</td>") == 10
