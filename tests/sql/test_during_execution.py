"""Requirements during execution: who asks a running lease to stop, when, and who does not."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, count_all, outlive, token
from tests.sql.placed import running_placed, stop

SECOND = timedelta(seconds=1)
ZONE: Row = {"label": "zone", "op": "in", "values": ["a"]}
CACHE: Row = {"labels": {"app": "cache"}}
WITH_CACHE: Row = {"leases": CACHE, "domain": "label:zone"}
TRUST: Row = {"trust": "acme.prod"}
EVICT: Row = {"key": "maintenance", "effect": "no_execute"}
NOTHING = (None,) * 4
CHECKS = "select lease_id, claim_no from hwqueue.placement_check"


def lasting(expr: Row, grace: Any = None) -> Row:
    """The expression, to hold as long as the lease runs."""
    return expr | {"during": "execution"} | ({} if grace is None else {"grace": grace})


def relabel(api: Api, node: Node, **spec: Any) -> None:
    """Register the node again as it is now."""
    api.node(node.node_id, name=node.name, **spec)


def told(api: Api, claim: Row) -> str | None:
    """The reason for which the claim was asked to stop."""
    reason = stop(api, claim)[0]
    assert reason is None or isinstance(reason, str)
    return reason


def normal(conn: psycopg.Connection, *require: Row) -> Any:
    """The requirements in normal form."""
    query = "select hwqueue.normalise_placement(%s) -> 'require'"
    return Api(conn).one(query, Jsonb({"require": list(require)}))


def test_the_normal_form(conn: psycopg.Connection) -> None:
    """A grace is in seconds, every part of what was written lasts, and defaults are left out."""
    for grace in (30, "30 s", "00:00:30", 30.0):
        assert normal(conn, lasting(ZONE, grace)) == [lasting(ZONE, 30)]
    tags = {"tags": {"zone": "a", "gpu": True}}
    gpu = {"label": "gpu", "op": "in", "values": [True]}
    assert normal(conn, lasting(tags)) == [lasting(gpu), lasting(ZONE)]
    assert normal(conn, lasting({"any": [[ZONE, gpu]]})) == [lasting(gpu), lasting(ZONE)]
    either = lasting({"any": [[gpu], [ZONE]]})
    assert normal(conn, either) == [either]
    assert normal(conn, ZONE | {"during": "scheduling"}, ZONE | {"grace": None}) == [ZONE]
    assert normal(conn, lasting(ZONE, 0)) == [lasting(ZONE)]


@pytest.mark.thorough
def test_what_is_refused(api: Api, queue: str) -> None:
    """Contradictions as well."""
    malformed: list[tuple[str, Row]] = [
        ("require[0].during", {"require": [ZONE | {"during": "ever"}]}),
        ("require[0].grace", {"require": [ZONE | {"grace": 5}]}),
        ("require[0].grace", {"require": [ZONE | {"during": "scheduling", "grace": 5}]}),
        ("require[0].grace", {"require": [lasting(ZONE, -1)]}),
        ("require[0].grace", {"require": [lasting(ZONE, "1 month")]}),
        ("require[0].any[0][0].during", {"require": [{"any": [[lasting(ZONE)]]}]}),
        ("prefer[0].when[0].during", {"prefer": [{"when": [lasting(ZONE)]}]}),
        ("prefer[0].when[0].grace", {"prefer": [{"when": ZONE | {"grace": 5}}]}),
    ]
    call: Row = {"queue": queue, "task": "t"}
    for field, placement in malformed:
        refusal = api.refused("QHC03", "spawn_lease", **call, options={"placement": placement})
        assert refusal.field == f"options.placement.{field}"
    require = [lasting(WITH_CACHE, 5), WITH_CACHE | {"away": True}]
    api.refused("QHC04", "spawn_lease", **call, options={"placement": {"require": require}})


def test_a_relabel_asks_at_once_whoever_requires_it_during_execution(api: Api, clock: Clock) -> None:
    queue, node, other = api.queue(), api.node(labels={"zone": "a"}), api.node(labels={"zone": "a"})
    bound = running_placed(api, queue, node, require=[lasting(ZONE)])
    either = running_placed(api, queue, node, require=[lasting({"any": [[ZONE], [{"rack": 7}]]})])
    free = running_placed(api, queue, node, require=[ZONE])
    relabel(api, node, labels={"zone": "b"}, rack=7)
    now = clock.now()
    detail = 'requirement "zone in a" does not hold any more (label_mismatch)'
    assert stop(api, bound) == ("placement_broken", detail, now, now)
    assert [told(api, claim) for claim in (either, free)] == [None, None]
    assert api.verdicts(node, bound) == ["preempted"]  # what a worker does is the same
    found = api.row("explain_lease", lease=bound["lease_id"])
    assert found["code"] == "placement_broken"
    assert found["headline"].endswith(f"it was asked to stop 0 s ago (placement_broken: {detail})")
    [event] = api.rows("list_events", filter={"code": "claim_stop_requested"}, limit=1)
    assert (event["lease_id"], event["detail"]["reason"]) == (bound["lease_id"], "placement_broken")
    # as after a drain, no attempt is used
    assert api.value("release_lease", **token(bound)) == "pending"
    assert api.claimed(node, queue) == []
    [again] = api.claim(other, queue)
    assert (again["lease_id"], again["attempt"]) == (bound["lease_id"], 1)
    relabel(api, node, labels={})
    assert told(api, either) == "placement_broken"


def test_a_grace_ends_in_a_stop_or_in_nothing(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    claim = running_placed(api, queue, node, require=[lasting(ZONE, 30)])
    relabel(api, node, labels={})
    end = clock.now() + 30 * SECOND
    assert stop(api, claim)[2:] == (end, end)
    clock.advance(10 * SECOND)
    assert api.verdicts(node, claim) == ["ok"]
    headline = api.row("explain_lease", lease=claim["lease_id"])["headline"]
    assert headline.endswith(
        "it will be asked to stop in 20 s "
        '(placement_broken: requirement "zone in a" does not hold any more (label_missing))'
    )
    relabel(api, node, labels={"zone": "b"})  # broken still, since the same moment
    assert stop(api, claim)[2] == end
    relabel(api, node, labels={"zone": "a"})
    assert stop(api, claim) == NOTHING
    relabel(api, node, labels={})
    clock.advance(30 * SECOND)
    assert api.verdicts(node, claim) == ["preempted"]
    relabel(api, node, labels={"zone": "a"})
    assert api.verdicts(node, claim) == ["preempted"]  # its worker may know already


def test_the_earlier_of_a_taint_and_a_requirement_counts(api: Api, clock: Clock) -> None:
    """Each may be withdrawn, and the other one stays."""
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    tolerate = [{"key": "maintenance", "op": "exists", "effect": "no_execute", "seconds": 20}]
    claim = running_placed(api, queue, node, require=[lasting(ZONE, 30)], tolerate=tolerate)
    relabel(api, node, labels={}, taints=[EVICT])
    assert stop(api, claim)[:1] + stop(api, claim)[2:3] == ("preempted", clock.now() + 20 * SECOND)
    relabel(api, node, labels={})
    assert told(api, claim) == "placement_broken"
    assert stop(api, claim)[2] == clock.now() + 30 * SECOND
    relabel(api, node, labels={"zone": "a"}, taints=[EVICT])
    assert told(api, claim) == "preempted"
    api.rows("reap")
    assert told(api, claim) == "preempted"


def test_an_attestation_that_expires(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """reap finds it; one that is given again in time changes nothing, one that is suspended does."""
    attest = {"node": node.node_id, "domain": "acme.prod"}
    api.rows("attest_node", **attest, expires_at=clock.now() + 30 * SECOND)
    at_once = running_placed(api, queue, node, require=[lasting(TRUST)])
    later = running_placed(api, queue, node, require=[lasting(TRUST, 60)])
    at_the_claim = running_placed(api, queue, node, require=[TRUST])
    api.reap_after(clock, 29 * SECOND)
    assert told(api, at_once) is None
    api.reap_after(clock, SECOND)
    assert api.verdicts(node, at_once) == ["preempted"]
    assert stop(api, later)[2] == clock.now() + 60 * SECOND
    api.rows("attest_node", **attest)
    api.rows("reap")
    assert [told(api, claim) for claim in (later, at_the_claim)] == [None, None]
    api.complete(later)
    suspended = running_placed(api, queue, node, require=[lasting(TRUST)])
    relabel(api, node, instance_id="second", keep_claims=True)  # in this call
    assert told(api, suspended) == "placement_broken"


@pytest.fixture
def zones(api: Api) -> dict[str, Node]:
    """A node in each of two zones, and no other."""
    api.leave_all()
    return {zone: api.node(labels={"zone": zone}) for zone in ("a", "b")}


def cache(api: Api, queue: str, node: Node) -> Row:
    return api.running(queue, node, labels={"app": "cache"})


def beside(api: Api, queue: str, node: Node, **options: Any) -> Row:
    """A lease that must be with a cache, during execution, and is."""
    options = {"placement": {"require": [lasting(WITH_CACHE)]}} | options
    lease = api.spawn(queue, **options)
    api.settle_terms()
    return api.granted(lease, node, queue)


IS_LOST: dict[str, Callable[[Api, Row, Node], object]] = {
    "it ends well": lambda api, claim, _: api.complete(claim),
    "its node is elsewhere": lambda api, _, node: relabel(api, node, labels={"zone": "c"}),
    "it is about to stop": lambda api, claim, _: api.rows("cancel_lease", lease=claim["lease_id"]),
}


@pytest.mark.parametrize("why", IS_LOST)
def test_a_partner_that_is_lost(api: Api, zones: dict[str, Node], why: str) -> None:
    """One of two is enough."""
    queue, node = api.queue(), zones["a"]
    partner_node = api.node(labels={"zone": "a"})
    partner, other = cache(api, queue, partner_node), cache(api, queue, node)
    claim = beside(api, queue, node)
    api.complete(other)
    api.rows("reap")
    assert told(api, claim) is None
    IS_LOST[why](api, partner, partner_node)
    api.rows("reap")
    assert told(api, claim) == "placement_broken"
    assert "with leases with app in cache in the same zone" in stop(api, claim)[1]
    assert api.rows("verify_invariants") == []


def test_where_a_lease_has_succeeded_is_still_where_it_ran(
    api: Api, zones: dict[str, Node], clock: Clock
) -> None:
    """And when nobody knows any more, nobody is asked to stop. One that has failed is lost."""
    queue, node = api.queue(retain_completed=60), zones["a"]
    partner, failing = (api.running(queue, node) for _ in range(2))
    claim, lost = (
        beside(api, api.queue(claim_timeout=7200), node, placement={"require": [lasting(with_it)]})
        for with_it in ({"lease": str(one["lease_id"]), "domain": "label:zone"} for one in (partner, failing))
    )
    api.complete(partner)
    api.rows("fail_lease", **token(failing), error={}, retry=False)
    api.rows("reap")
    assert (told(api, claim), told(api, lost)) == (None, "placement_broken")
    clock.advance(3600 * SECOND)
    outlive(api.conn)
    count_all(api.conn)
    api.rows("prune")
    assert api.one("select count(*) from hwqueue.lease where lease_id = %s", partner["lease_id"]) == 0
    api.rows("reap")
    assert told(api, claim) is None


def group_of(api: Api, queue: str, *nodes: Node) -> list[Row]:
    """Leases that must be with each other by zone."""
    member = {"placement": {"require": [lasting(WITH_CACHE)]}, "labels": {"app": "cache"}}
    leases = [api.spawn(queue, **member) for _ in nodes]
    api.settle_terms()
    claims = [api.claim(node, queue)[0] for node in nodes]
    assert [claim["lease_id"] for claim in claims] == leases
    return claims


def test_of_a_group_that_is_torn_apart_one_part_goes_on(api: Api, zones: dict[str, Node]) -> None:
    """No more are asked to stop than have to: the last of a group goes on, as it could begin alone."""
    node, moving = zones["a"], api.node(labels={"zone": "a"})
    claims = group_of(api, api.queue(), node, moving)
    relabel(api, moving, labels={"zone": "b"})
    api.rows("reap")
    assert [told(api, claim) for claim in claims] == [None, "placement_broken"]
    api.complete(*claims)
    first, second = group_of(api, api.queue(), node, node)
    api.complete(first)
    api.rows("reap")
    assert told(api, second) is None


def test_of_two_that_must_be_apart_one_leaves(api: Api, queue: str, zones: dict[str, Node]) -> None:
    """It counts for others until it is gone, but nobody else has to leave for it."""
    require = [lasting(WITH_CACHE | {"away": True})]
    options = {"placement": {"require": require}, "labels": {"app": "cache"}}
    nodes = [api.node(labels={"zone": f"own-{number}"}) for number in range(2)]
    for _ in nodes:
        api.spawn(queue, **options)
    api.settle_terms()
    claims = [api.claim(node, queue)[0] for node in nodes]
    relabel(api, nodes[0], labels={"zone": "own-1"})
    api.rows("reap")
    assert [told(api, claim) for claim in claims] == ["placement_broken", None]


def test_adopted_work_is_checked(api: Api) -> None:
    """No filter keeps it out, and the next reap asks it to stop."""
    queue, node = api.queue(), api.node(labels={"zone": "b"})
    options = {"placement": {"require": [lasting(ZONE)]}}
    claim = api.row("adopt_lease", queue=queue, node=node.node_id, task="work", params={}, options=options)
    assert told(api, claim) is None
    api.rows("reap")
    assert told(api, claim) == "placement_broken"


def test_checks_end_with_their_claims(api: Api) -> None:
    """What is left of a lease before does not refuse the claim of one with its id."""
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    claims = [running_placed(api, queue, node, require=[lasting(ZONE)]) for _ in range(2)]
    running_placed(api, queue, node, require=[ZONE])
    mine = [claim["lease_id"] for claim in claims]
    assert [row[0] for row in api.conn.execute(CHECKS) if row[0] in mine] == mine
    api.rows("release_lease", **token(claims[0]))
    [again] = api.claim(node, queue)
    api.complete(claims[1])
    api.rows("reap")
    number = again["claim_token"] % 2**31
    assert [row for row in api.conn.execute(CHECKS) if row[0] in mine] == [(mine[0], number)]
    api.conn.execute("delete from hwqueue.placement_check where lease_id = %s", [mine[0]])
    broken = [row for row in api.rows("verify_invariants") if row["rule"] == "placement_check"]
    assert [row["subject"] for row in broken] == [str(again["lease_id"])]
    api.complete(again)
    placement, queue, lease = {"require": [lasting(ZONE)]}, api.queue(), str(uuid4())
    for _ in range(2):
        api.complete(api.running(queue, node, lease_id=lease, placement=placement))
        api.rows("delete_leases", filter={"queue": queue, "state": "completed"})
