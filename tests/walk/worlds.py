"""The worlds, one for each feature. A new feature adds its own: nodes, leases, calls.

Small on purpose: each lease and each node more multiplies the states. Those of what upkeep starts
or ends are beside their calls: choices, everywhere, replaces, preempts, lasting, earmarks, proposals.
"""

from datetime import timedelta
from typing import Any

from tests.walk import more_steps as m
from tests.walk import operators as o
from tests.walk import steps as s
from tests.walk.choices import CHOICE
from tests.walk.earmarks import KEPT, LOST, SILENT
from tests.walk.everywhere import ALWAYS, ONCE
from tests.walk.lanes import CHAINS, LANES
from tests.walk.lasting import WHILE_RUNNING
from tests.walk.names import lease_id, node_id
from tests.walk.preempts import GANG_PREEMPTS, PREEMPTS, PREEMPTS_AT_ONCE
from tests.walk.proposals import PLANNED, PROPOSALS_OF_ALL
from tests.walk.replaces import IN_PLACE, MOVED, OVERLAP
from tests.walk.world import IN_ZONE, World, every, gpus, leases_of, needs, require, spread


def _of_three(name: str, lost: s.Step, *first: s.Step, **gang: Any) -> World:
    """A gang of three that runs, and loses members."""
    claims = [s.Claim("n", 2), s.Claim("m")]
    return World(
        name,
        nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
        leases={"s": needs(gpu=1)},
        gangs={"g": {"members": "abc", "each": needs(gpu=1), **gang}},
        first=[s.Reap(), *claims, *first],
        steps=[*claims, s.Fail("a"), lost, s.Complete("c"), o.Restart("m"), s.Wait(), s.Reap()],
        near=3,
    )


_WORLDS = [
    # Whoever asks gets the best that is there; tokens fence; a lease that is put back goes to the end.
    World(
        "plain",
        nodes={"n": {}, "m": {}},
        leases={"a": {}, "b": {"priority": 1}, "c": {}},
        steps=[
            s.Claim("n"),
            s.Claim("m", 2),
            *every(s.Complete, "bc"),
            s.Release("a"),
            s.Late("a"),
            s.LateInBatch("a"),
            s.Update("c", 2),
            s.Relay("m"),
        ],
        near=4,
    ),
    # Amounts, slots and devices are never given twice, and are there again when a claim has ended.
    World(
        "counted",
        nodes={
            "n": {"capacity": {"cpu_milli": 2000, "memory_mib": 100, "tape": 1}, "slots": 2},
            "m": {
                "capacity": {"cpu_milli": 1500},
                "gpus": [{"resource_id": str(node_id("gpu")), "model": "T4", "memory_mib": 16384}],
            },
        },
        leases={
            "a": needs(cpu_milli=1500),
            "b": needs(cpu_milli=1000, memory_mib=80),
            "c": needs(gpu_milli=600, memory_mib=80),
            "d": needs(gpu_milli=600),
            "e": needs(tape=1, memory_mib=80),
        },
        steps=[
            s.Claim("n", 2),
            s.Claim("m"),
            *every(s.Complete, "abd"),
            *every(s.Release, "ce"),
            o.Restart("m"),
        ],
        near=4,
    ),
    # Away holds both ways, and no domain gets more than its limit.
    World(
        "terms",
        nodes={"n": {"rack": 0}, "m": {"rack": 0}, "o": {"rack": 1}},
        leases={
            "a": {"labels": {"app": "x"}},
            "b": require(leases_of("x", away=True)),
            "c": spread("rack", max_per_domain=1),
        },
        steps=[
            *(s.Claim(node) for node in "nmo"),
            *every(s.Complete, "ac"),
            *every(s.Release, "bc"),
            s.Fail("a"),
            s.Wait(),
            s.Reap(),
        ],
        near=4,
    ),
    # Toward a group and toward a lease by name: where it runs, or has succeeded.
    World(
        "toward",
        nodes={"n": {"rack": 0}, "m": {"rack": 0}, "o": {"rack": 1}},
        leases={
            "a": {"labels": {"app": "x"}},
            "b": require(leases_of("x"), app="x"),
            "c": require({"lease": str(lease_id("a")), "domain": "rack"}),
        },
        steps=[*(s.Claim(node) for node in "nmo"), *every(s.Complete, "abc"), *every(s.Release, "abc")],
    ),
    # No domain gets ahead of the others by more than the skew.
    World(
        "skew",
        nodes={"n": {"rack": 0}, "m": {"rack": 1}},
        leases=dict.fromkeys("abc", spread("rack", max_skew=1)),
        steps=[
            s.Claim("n"),
            s.Claim("m", 2),
            *every(s.Complete, "ab"),
            *every(s.Release, "bc"),
            o.Cordon("m"),
            o.Uncordon("m"),
        ],
        near=4,
    ),
    # A lease waits for a better node, no longer than its patience, and only while that node is open.
    World(
        "patience",
        policy={"patience": 10},
        nodes={"n": {"labels": {"zone": "a"}}, "m": {"labels": {"zone": "b"}}},
        leases={
            "a": {
                "placement": {
                    "prefer": [
                        {"weight": 100, "when": {"label": "zone", "op": "in", "values": ["a"]}},
                        {"weight": 50, "when": {"label": "zone", "op": "in", "values": ["b"]}},
                    ]
                }
            },
            "b": {},
        },
        steps=[
            s.Claim("n"),
            s.Claim("m"),
            *every(s.Complete, "ab"),
            *every(s.Release, "ab"),
            o.Cordon("n"),
            o.Uncordon("n"),
            s.Update("a", 1),
            s.Wait(),
        ],
        memory=10,
    ),
    # A claim that nobody heartbeats is over after its timeout, and uses up an attempt.
    World(
        "expiry",
        nodes={"n": {"capacity": {"cpu_milli": 1000}}, "m": {}},
        leases={"a": {}, "b": {"claim_timeout": 32, **needs(cpu_milli=1000)}},
        steps=[
            s.Claim("n"),
            s.Claim("m"),
            *every(s.Complete, "ab"),
            s.Heartbeat("n"),
            s.Late("a"),
            s.Wait(),
            s.Reap(),
        ],
        memory=5,
        near=6,
    ),
    # A failed attempt is put off, the last one is the end, and a requeued lease begins again.
    World(
        "retries",
        nodes={"n": {}, "m": {}},
        leases={"a": {}, "b": {"max_attempts": 1}},
        steps=[
            s.Claim("n", 2),
            s.Claim("m"),
            *every(s.Fail, "ab"),
            s.GiveUp("a"),
            s.Complete("b"),
            *every(s.Requeue, "ab"),
            s.LateFail("a"),
            s.Wait(),
            s.Reap(),
        ],
        near=4,
    ),
    # What is cancelled ends: at once if it waits, when its worker hears of it, or when it expires.
    World(
        "cancel",
        nodes={"n": {}, "m": {"slots": 1}},
        leases={"a": {}, "b": {"claim_timeout": 20}},
        steps=[
            s.Claim("n"),
            s.Claim("m"),
            *every(s.Cancel, "ab"),
            s.Complete("a"),
            s.Fail("a"),
            s.Release("b"),
            s.Extend("b"),
            s.Heartbeat("m"),
            s.Requeue("a"),
            s.Wait(),
            s.Reap(),
        ],
        near=4,
    ),
    # A node that is drained gets nothing new; what another instance of it held is over.
    World(
        "drain",
        nodes={"n": {}, "m": {"capacity": {"cpu_milli": 1000}}},
        leases={"a": {}, "b": needs(cpu_milli=600), "c": needs(cpu_milli=600)},
        steps=[
            s.Claim("n", 2),
            s.Claim("m"),
            s.Complete("a"),
            s.Release("c"),
            s.Cancel("b"),
            o.Drain("m"),
            o.Uncordon("m"),
            o.Cordon("n"),
            o.Restart("m"),
            s.Heartbeat("m"),
        ],
        near=4,
    ),
    # What is not due is not given, what is too late fails, a paused queue gives nothing.
    World(
        "due",
        nodes={"n": {}, "m": {"slots": 2}},
        leases={"a": {"delay": 10, "deadline_in": 12}, "b": {"deadline_in": 5, "priority": 1}, "c": {}},
        steps=[
            s.Claim("n"),
            s.Claim("m", 2),
            *every(s.Complete, "ac"),
            s.Release("b", timedelta(seconds=15)),
            s.Update("a", 2),
            o.Pause(),
            o.Resume(),
            s.Wait(),
            s.Reap(),
        ],
    ),
    # Leases that come while others run, and work that is adopted past all checks.
    World(
        "spawn",
        nodes={"n": {"slots": 1}, "m": {}},
        leases={"a": {}},
        steps=[
            s.Spawn("b"),
            s.Spawn("c", {"priority": 1}),
            s.Adopt("d", "m"),
            s.Claim("n"),
            s.Claim("m"),
            *every(s.Complete, "ad"),
            s.Release("d"),
            s.Cancel("b"),
            s.Relay("n"),
        ],
    ),
    # A queue that keeps nothing: what completes is gone, and who must be where it ran is let in there.
    World(
        "forget",
        policy={"retain_completed": 0, "retain_failed": 0},
        nodes={"n": {"rack": 0, "capacity": {"cpu_milli": 1000}}, "m": {"rack": 1}},
        leases={
            "a": needs(cpu_milli=1000),
            "b": {},
            "c": require({"lease": str(lease_id("a")), "domain": "rack"}),
        },
        steps=[
            s.Claim("n"),
            s.Claim("m"),
            *every(s.Complete, "abc"),
            s.Fail("b"),
            s.Release("a"),
            s.Late("a"),
            s.Cancel("b"),
            s.Requeue("b"),
            s.Reap(),
        ],
        near=4,
    ),
    # A spawn has what its task has by default at that moment; a later change touches no lease.
    World(
        "defaults",
        nodes={"n": {"labels": {"zone": "a"}}, "m": {}},
        leases={"a": {}},
        steps=[
            m.SetTask({"priority": 1, "max_attempts": 1, "placement": IN_ZONE}),
            m.SetTask({"priority": 2}),
            m.SetTask(None),
            m.SpawnByTask("b"),
            m.SpawnByTask("c", {"priority": 0, "max_attempts": 3}),
            s.Claim("n"),
            s.Claim("m"),
            s.Fail("b"),
            s.Complete("c"),
        ],
    ),
    # A lease that is put off until a time is not given before, whatever it did and however late it is.
    World(
        "snooze",
        nodes={"n": {}, "m": {"slots": 1}},
        leases={"a": {"claim_timeout": 60}, "b": {"claim_timeout": 60, "deadline_in": 15}},
        steps=[
            s.Claim("n"),
            s.Claim("m"),
            m.SnoozeUntil("a", timedelta(seconds=10)),
            m.SnoozeUntil("b", timedelta(seconds=20)),
            s.Complete("a"),
            s.Cancel("a"),
            s.Wait(),
            s.Reap(),
        ],
    ),
    # Of the first gang no two members may share a node; the second one takes what there is. A node dies
    # and comes back. At every commit a gang has room for all or for none, and each of them can end.
    World(
        "gangs",
        nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
        leases={"s": needs(gpu=1)},
        gangs={
            "g": {"members": "ab", "each": spread("node", {"resources": {"gpu": 1}}, max_per_domain=1)},
            "h": {"members": "cd", "each": needs(gpu=1)},
        },
        steps=[
            s.Claim("n", 2),
            s.Claim("m"),
            *every(s.Complete, "as"),
            s.Release("b"),
            s.Fail("c"),
            m.CancelGang("g"),
            o.Restart("m"),
            s.Wait(),
            s.Reap(),
        ],
        near=3,
    ),
    # All three run, and one is lost: with `replace` the others go on, and it is placed again.
    _of_three("replaced", s.GiveUp("b"), s.Reap(), on_lost="replace"),
    # All three run, and those that are lost do not come back; one that is left alone does not go on.
    _of_three("left_behind", s.Release("b"), on_lost="continue", min_size=2),
    # Two of three run, and the third joins once the lease that is in its way has ended.
    World(
        "joined",
        nodes={"n": gpus(2, "n"), "m": gpus(1, "m")},
        leases={"s": needs(gpu=1)},
        gangs={"g": {"members": "abc", "each": needs(gpu=1), "min_size": 2}},
        first=[s.Claim("m"), s.Reap(), s.Claim("n", 2), s.Reap()],
        steps=[
            s.Claim("n", 2),
            s.Claim("m"),
            *every(s.Complete, "sa"),
            s.Fail("a"),
            s.GiveUp("b"),
            o.Restart("n"),
            s.Wait(),
            s.Reap(),
        ],
        near=2,
    ),
    LANES,
    CHAINS,
    CHOICE,
    ONCE,
    ALWAYS,
    IN_PLACE,
    MOVED,
    OVERLAP,
    PREEMPTS,
    PREEMPTS_AT_ONCE,
    GANG_PREEMPTS,
    WHILE_RUNNING,
    KEPT,
    SILENT,
    LOST,
    PROPOSALS_OF_ALL,
    PLANNED,
]
WORLDS = {world.name: world for world in _WORLDS}
