"""Tiers of tenants and the isolation of leases, and that neither says anything about the other.

Each test quotes the sentences of the requirement that it shows, in their words: a Guaranteed tenant
is one of tier guaranteed, StrictIsolated is the class strict_isolated, a cell is an installation.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, token
from tests.sql.event_cases import Stage
from tests.sql.explained import codes, explain
from tests.sql.gangs import clear, reap
from tests.sql.isolation_support import CPU, asking, devices, isolating
from tests.sql.placed import verdict
from tests.sql.tiers import BEST_EFFORT, GUARANTEED, PREEMPT, SCAVENGER, TIERS, asked

CLASSES = [None, "best_effort", *CPU]


@pytest.fixture(autouse=True)
def _fleet(api: Api) -> Iterator[None]:
    """A tenant of each tier, by its name, and no nodes but the test's."""
    clear(api)
    for tier in TIERS:
        api.value("set_tenant", name=tier, changes={"tier": tier})
    yield
    assert api.rows("verify_invariants") == []
    for row in api.rows("list_queues"):
        api.rows("drop_queue", queue=row["queue"], force=True)


@pytest.fixture
def queue(api: Api) -> str:
    return api.queue(preempt=PREEMPT, retry={"kind": "none"})


def core(cpu: str | None) -> Row:
    """Options of a lease that takes a core, of this class."""
    return {"placement": asking(cpu, cpu_milli=1000)}


def test_each_tier_may_have_each_class(api: Api, queue: str) -> None:
    """It says "Per-lease isolation is orthogonal to tenant priority tiers (Guaranteed / BestEffort /
    Scavenger). A Scavenger tenant may request StrictIsolated; a Guaranteed tenant may request
    BestEffort."
    """
    node = isolating(api, 1)
    for tier, cpu in product(TIERS, CLASSES[1:]):
        claim = api.running(queue, node, tenant=tier, **core(cpu))
        assert claim["assignment"]["cpu_isolation"] == cpu
        assert api.lease(claim["lease_id"])["tenant"] == tier
        api.complete(claim)


def test_the_tier_decides_who_is_admitted_first(api: Api, queue: str) -> None:
    """It says "Tenant priority sets admission order [...] under contention (existing behavior, unchanged)."

    Whatever they ask, and however urgent they are within their tier.
    """
    node = isolating(api, 1)
    waiting = [
        (TIERS.index(tier), -priority, api.spawn(queue, tenant=tier, priority=priority, **core(cpu)))
        for priority, (tier, cpu) in enumerate(product(TIERS, CLASSES))
    ]
    for *_, lease in sorted(waiting):
        api.complete(api.granted(lease, node, queue))


@pytest.mark.parametrize("turn", range(3))
def test_the_tier_decides_who_goes_first(api: Api, queue: str, turn: int) -> None:
    """It says "Tenant priority sets [...] eviction order under contention (existing behavior, unchanged)."

    A scavenger goes before a tenant of best_effort, whatever the classes of all three.
    """
    one, two, three = (CPU[(turn + n) % 2] if n != turn else "best_effort" for n in range(3))
    node = isolating(api, 2)
    claims = [
        api.running(queue, node, tenant=SCAVENGER, **core(one)),
        api.running(queue, node, tenant=BEST_EFFORT, **core(two)),
    ]
    for count in (1, 2):
        api.spawn(queue, tenant=GUARANTEED, **core(three))
        reap(api)
        assert asked(api, *claims) == claims[:count]


def test_the_class_decides_which_nodes_may_run_it(api: Api, queue: str) -> None:
    """It says "Isolation filter sets which nodes are eligible for a given request (new behavior)."

    No tier opens a node that does not offer the class: nobody there stops for it.
    """
    node = api.node(capacity={"cpu_milli": 1000})
    claim = api.running(queue, node, tenant=SCAVENGER, **core(None))
    lease = api.spawn(queue, tenant=GUARANTEED, **core("strict_isolated"))
    reap(api)
    assert asked(api, claim) == []
    assert api.row("preview_preemption", lease=lease)["reason"] == "no_victims"
    assert "no_node_supports_class" in codes(explain(api, lease), node)
    api.spawn(queue, tenant=GUARANTEED, **core(None))
    reap(api)
    assert asked(api, claim) == [claim]


@pytest.mark.parametrize("cpu", CLASSES)
def test_an_isolated_scavenger_may_be_preempted(api: Api, queue: str, cpu: str | None) -> None:
    """It says "A Scavenger tenant requesting StrictIsolated is eligible for placement if nodes support the
    class, but may be preempted by a Guaranteed tenant requesting any class on the same node."
    """
    plain, node = api.node(slots=1), isolating(api, 1)
    lease = api.spawn(queue, tenant=SCAVENGER, **core("strict_isolated"))
    assert api.claimed(plain, queue) == []
    claim = api.granted(lease, node, queue)
    api.rows("cordon_node", node=plain.node_id)
    guaranteed = api.spawn(queue, tenant=GUARANTEED, **core(cpu))
    reap(api)
    assert asked(api, claim) == [claim]
    assert api.claimed(node, queue) == []
    api.rows("release_lease", **token(claim))
    reap(api)
    assert api.claimed(node, queue) == [guaranteed]


@pytest.mark.parametrize("cpu", CLASSES)
def test_isolation_changes_nothing_of_preemption(api: Api, queue: str, cpu: str | None) -> None:
    """It says "Preemption behavior matches the existing per-cell preemption model (this note does not change
    it)."

    It is told, keeps its place in line and its attempt, and has its class again.
    """
    node = isolating(api, 1)
    claim = api.running(queue, node, tenant=SCAVENGER, **core(cpu))
    behind = api.spawn(queue, tenant=SCAVENGER, **core(cpu))
    api.spawn(queue, tenant=GUARANTEED, **core("whole_core"))
    reap(api)
    assert verdict(api, node, claim) == "preempted"
    api.rows("release_lease", **token(claim))
    reap(api)
    [first] = api.claim(node, queue)
    reap(api)
    api.complete(first)
    [again] = api.claim(node, queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 1)
    assert again["assignment"] == claim["assignment"]
    assert api.state(behind) == "pending"


def test_best_effort_is_two_words(api: Api, queue: str) -> None:
    """It says "CpuIsolationPolicy::BestEffort (per-lease CPU isolation class) is UNRELATED to
    tenant::Priority::Standard (tenant admission tier). The scheduler must not conflate them."

    Neither stands for the other, none is taken for the other, and events say which one they mean.
    """
    node = isolating(api, 2, default_cpu_isolation="whole_core")
    tier, cpu = (
        api.spawn(queue, tenant=BEST_EFFORT),
        api.spawn(queue, tenant=GUARANTEED, **core(BEST_EFFORT)),
    )
    claims = api.claim(node, queue, qty=2)
    assert [claim["lease_id"] for claim in claims] == [cpu, tier]
    assert [claim["assignment"]["cpu_isolation"] for claim in claims] == ["best_effort", "whole_core"]
    assert api.fault("set_tenant", name="x", changes={"tier": "whole_core"}) == "changes.tier"
    wrong: Row = {"queue": queue, "task": "t", "options": {"placement": asking(SCAVENGER)}}
    assert "isolation.cpu" in str(api.refused("QHC03", "spawn_lease", **wrong).field)
    api.rows("set_tenant", name="x", changes={"tier": BEST_EFFORT})
    event = api.rows("list_events", filter={"code": "tenant_set"}, limit=1)[0]
    assert event["message"] == "tenant x is of tier best_effort"


REASONS: dict[str, tuple[Row, Row, Row, bool]] = {
    # what the node is, what runs there, what is asked, whether it is permanent
    "no_node_supports_class": ({}, {}, asking("strict_isolated"), True),
    "nodes_support_but_contended": (
        {"gpus": devices(None), "gpu_exclusivity": ["device_exclusive"]},
        asking(gpu_milli=100),
        asking(None, "device_exclusive", gpu=1),
        False,
    ),
    "class_conflicts_with_daemon_mode": (
        {"gpus": devices(None), "gpu_share_mode": "exclusive"},
        {},
        asking(None, "shared", gpu=1),
        True,
    ),
    "class_conflicts_with_resource_id": (
        {
            "gpus": (PARTED := devices(None, 0)),
            "gpu_exclusivity": ["device_exclusive", "partition_exclusive"],
        },
        {},
        asking(None, "device_exclusive", [{"resource": [PARTED[1]["resource_id"]]}], gpu=1),
        True,
    ),
}


@pytest.mark.parametrize("code", REASONS)
def test_each_rejection_has_its_code(api: Api, clock: Clock, code: str) -> None:
    """It says "Scheduler rejections for isolation-filter failures surface as structured events with distinct
    reason codes: NoNodeSupportsClass [...] Permanent. NodesSupportButContended [...] Transient.
    ClassConflictsWithDaemonMode [...] Permanent. ClassConflictsWithResourceId [...] Permanent."

    The same for a lease of each tier. What passes is no event, and an explanation says it.
    """
    spec, busy, wanted, permanent = REASONS[code]
    node, queue = api.node(**spec), api.queue()
    if busy:
        api.running(queue, node, placement=busy)
    for tier in TIERS:
        options = {"queue": queue, "task": "t", "tenant": tier}
        [row] = api.rows("match_nodes", placement=wanted, options=options)
        found = {reason["code"]: reason["permanent"] for reason in row["reasons"]}
        assert found[code] is permanent
        lease = api.spawn(queue, tenant=tier, placement=wanted)
        assert code in codes(explain(api, lease), node)
    Stage(api, clock).reap()
    events = [
        event
        for event in api.rows("list_events", filter={"code": "class_unmatched"})
        if event["queue"] == queue
    ]
    assert [event["detail"]["reasons"].get(code) for event in events] == [1] * 3 * permanent
