"""What Firmament draws as networks of flows, as one lease or one gang (placement.md lists it)."""

import pytest

from tests.calls import Row
from tests.sql.api import Api
from tests.sql.test_earmarks import leave
from tests.sql.test_terms import WEB, web

BESIDE: Row = {"require": [{"leases": WEB, "domain": "node"}]}


@pytest.fixture(autouse=True)
def _no_others(api: Api) -> None:
    """No gangs and nodes but those of a test."""
    leave(api)


def test_a_set_follows_the_first_of_it(api: Api) -> None:
    """What multi-round admission is for: one may start anywhere, the others go where it runs."""
    queue, machines = api.queue(), [api.node() for _ in range(3)]
    leases = [web(api, queue, BESIDE) for _ in range(3)]
    api.settle_terms()
    assert api.claimed(machines[1], queue) == leases[:1]
    assert [api.claimed(machines[other], queue, qty=9) for other in (0, 2)] == [[], []]
    assert api.claimed(machines[1], queue, qty=9) == leases[1:]
