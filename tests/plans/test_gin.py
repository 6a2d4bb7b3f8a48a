"""Every GIN index is there for a query, which uses it where classes and terms are many."""

from typing import Any

import psycopg
import pytest

from tests.patience import NO_BUDGET
from tests.plans.backlog import batch
from tests.plans.explain import Plan, explained
from tests.sql.api import Api

pytestmark = pytest.mark.usefixtures("fresh")

GIN = """
  select c.relname from pg_class c join pg_am a on a.oid = c.relam
  where a.amname = 'gin' and c.relnamespace = 'hwqueue'::regnamespace
"""


def indexes(plan: Plan) -> set[str]:
    """The indexes that a plan looks at."""
    found = {plan["Index Name"]} if "Index Name" in plan else set()
    return found.union(*(indexes(part) for part in plan.get("Plans", [])))


def away(app: str) -> dict[str, Any]:
    """A class that keeps away from another."""
    require = [{"leases": {"labels": {"app": app}}, "domain": "rack", "away": True}]
    return {"labels": {"of": app}, "placement": {"require": require}}


def test_each_has_a_reader(api: Api, conn: psycopg.Connection) -> None:
    conn.execute(NO_BUDGET)
    queue, node = api.queue(), api.node(rack=1, labels={"pool": "gin"})
    names = {name for (name,) in conn.execute(GIN).fetchall()}
    batch(api, queue, [{"labels": {str(n): "app"}} for n in range(400)])
    batch(api, queue, [away(str(n)) for n in range(400)])
    while api.row("reap")["more"]:
        pass
    conn.execute("analyze")
    used: set[str] = set()
    with explained(conn) as work:
        batch(api, queue, [away("0"), {"labels": {"app": "new"}}, away("new")])
        for _ in range(5):
            api.row("reap")
            api.claim(node, queue)
    for plan in work.plans:
        used |= indexes(plan["Plan"])
    assert names <= used, names - used
