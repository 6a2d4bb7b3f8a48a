"""Many classes that may not come to a node now are asked about at once."""

from tests.plans.backlog import batch
from tests.plans.explain import explained
from tests.sql.api import Api
from tests.sql.test_terms import settle_terms

CLASSES = 30


def test_while_somebody_is_about_to_leave(api: Api) -> None:
    """A lease elsewhere that is asked to stop makes no try of each class that is full here."""
    node, elsewhere = api.node(), api.node()
    queue, other = api.queue(), api.queue()
    for number in range(CLASSES):
        labels = {"app": f"app-{number}"}
        one = {"domain": "node", "max_per_domain": 1, "select": {"labels": labels}}
        batch(api, queue, [{"labels": labels, "placement": {"spread": [one]}}] * 2)
    settle_terms(api)
    while api.claim(node, queue):
        pass
    statements = []
    for cancels in (False, True):
        if cancels:
            api.spawn(other)
            [running] = api.claim(elsewhere, other)
            api.rows("cancel_lease", lease=running["lease_id"])
        assert api.claim(node, queue) == []
        with explained(api.conn) as claim:
            assert api.claim(node, queue) == []
        statements.append(len(claim.plans))
    assert statements[1] <= statements[0] + 5 * CLASSES
