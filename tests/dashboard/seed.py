"""A made-up cluster to look at: racks, GPU nodes, work that runs, failed, waits, and cannot run.

Everything is the same at every run but for ids and times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from hwqueue.client import Client
from hwqueue.testing import Clock
from hwqueue.types import Gpu, NodeSpec, SpawnOptions, Taint

SPACE = UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
QUEUES = ("renders", "training", "inference", "nightly")
DB_SERVICE = uuid5(SPACE, "svc-db")


def _asks(resources: dict[str, int], *exprs: dict[str, Any]) -> dict[str, Any]:
    return {"require": list(exprs), "resources": resources}


def _label(key: str, value: str) -> dict[str, Any]:
    return {"label": key, "op": "in", "values": [value]}


# A workflow with a join, branches, a failure handler, and a step that needs what no node has.
TRAINING: dict[str, Any] = {
    "name": "train-and-publish",
    "queue": "workflows",
    "affinity_tags": {"kernel": "6.8"},
    "labels": {"team": "vision"},
    "on_failure": "continue",
    "steps": [
        {"name": "fetch", "task": "fetch", "params": {"dataset": {"$input": ["dataset"]}}},
        {"name": "clean", "task": "clean", "after": ["fetch"]},
        {"name": "check-quality", "task": "check", "after": ["fetch"]},
        {
            "name": "train-large",
            "task": "train",
            "after": ["clean"],
            "placement": _asks({"gpu": 4}, _label("gpu_model", "A100")),
            "options": {"max_attempts": 3, "retry": {"kind": "fixed", "base": 0}},
        },
        {"name": "train-small", "task": "train", "after": ["clean"], "placement": _asks({"gpu": 1})},
        {
            "name": "evaluate",
            "task": "evaluate",
            "after": ["train-large", "train-small", "check-quality"],
            "placement": _asks({"gpu": 4}, _label("nvlink", "full")),
        },
        {
            "name": "publish",
            "task": "publish",
            "after": ["evaluate"],
            "run_if": [{"input": ["publish"], "op": "in", "values": [True]}],
        },
        {"name": "ask-for-help", "task": "tell", "after": [{"step": "evaluate", "on": "failed"}]},
        {"name": "clean-up", "task": "remove", "finally": "ended"},
    ],
}
SCORING: dict[str, Any] = {
    "name": "score-shards",
    "queue": "workflows",
    "steps": [
        {
            "name": "score",
            "kind": "map",
            "task": "score",
            "over": {"$input": ["shards"]},
            "params": {"shard": {"$item": []}},
            "tolerate": 1,
        }
    ],
}
INDEXING: dict[str, Any] = {
    "name": "nightly-index",
    "queue": "workflows",
    "steps": [
        {"name": "list-shards", "task": "list"},
        {"name": "index", "task": "index", "after": ["list-shards"]},
        {"name": "swap", "task": "swap", "after": ["index"]},
    ],
}
# A workflow with a step of each other kind: items, a nested run, a sleep, waits for signals.
RELEASING: dict[str, Any] = {
    "name": "score-and-release",
    "queue": "workflows",
    "steps": [
        {"name": "brief", "kind": "wait", "signal": "briefed"},
        {"name": "list", "task": "list", "after": ["brief"]},
        {
            "name": "score",
            "kind": "map",
            "task": "score",
            "over": {"$input": ["shards"]},
            "after": ["list"],
            "max_parallel": 12,
            "tolerate": 3,
        },
        {"name": "index", "kind": "workflow", "workflow": "nightly-index", "after": ["list"]},
        {"name": "cool-down", "kind": "sleep", "for": "6 h", "after": ["list"]},
        {"name": "approve", "kind": "wait", "signal": "approved", "timeout": "2 d", "after": ["list"]},
        {"name": "release", "task": "release", "after": ["score", "index", "cool-down", "approve"]},
    ],
}

# Work that cannot run, each for another reason: queue, task, how many, options.
BLOCKED: Sequence[tuple[str, str, int, SpawnOptions]] = (
    ("training", "train", 12, {"placement": _asks({"gpu": 2}, _label("gpu_model", "H100"))}),
    ("training", "train", 3, {"placement": _asks({"gpu": 16})}),
    (
        "renders",
        "draw",
        7,
        {"placement": _asks({"gpu": 1}, _label("zone", "zone-d"), _label("gpu_model", "A100"))},
    ),
    ("inference", "serve", 5, {"placement": {"require": [{"trust": "pci"}]}}),
    ("training", "train", 40, {"placement": _asks({"gpu": 8, "cpu_milli": 16_000})}),
    (
        "inference",
        "serve",
        2,
        {
            "service_id": DB_SERVICE,
            "placement": {
                "require": [{"service": str(DB_SERVICE), "domain": "node", "away": True}],
                "resources": {"license": 3},
            },
        },
    ),
)


@dataclass(frozen=True)
class Machine:
    """A node that the seed registered."""

    node_id: UUID
    name: str
    epoch: int


def node_id(name: str) -> UUID:
    """The id of a node of the seed."""
    return uuid5(SPACE, name)


def cluster(client: Client, racks: int = 6, per_rack: int = 8) -> list[Machine]:
    """Register racks of nodes: some with A100s, some with T4s, some without GPUs."""
    machines = []
    for rack in range(1, racks + 1):
        for place in range(1, per_rack + 1):
            name = f"n-{rack:02}-{place:02}"
            machines.append(machine(client, name, rack, place))
    return machines


def machine(client: Client, name: str, rack: int, place: int = 1) -> Machine:
    """Register one node; what it is depends on its rack."""
    model, count, memory = (
        ("A100", 8, 81_920) if rack % 3 == 1 else ("T4", 4, 15_360) if rack % 3 == 2 else ("", 0, 0)
    )
    gpus = [
        Gpu(resource_id=uuid5(SPACE, f"{name}/{i}"), model=model, memory_mib=memory) for i in range(count)
    ]
    cores = [{"core": i, "numa": i // 16, "threads": [i, i + 32]} for i in range(32)]
    labels: dict[str, Any] = {"zone": f"zone-{'abc'[rack % 3]}", "kernel": "6.8"}
    if model:
        labels["gpu_model"] = model
    spec = NodeSpec(
        name=name,
        instance_id=f"{name}/1",
        labels=labels,
        rack=rack,
        cpu_milli=32_000,
        memory_mib=262_144,
        cores=cores if rack == 1 else (),
        cpu_isolation=["best_effort", "whole_core"] if rack == 1 else (),
        gpus=gpus,
        custom={"license": 2} if rack == 1 else {},
        taints=[Taint(key="dedicated", value="film", effect="no_schedule")] if place == 8 else (),
        heartbeat_timeout=timedelta(hours=6),
    )
    node = node_id(name)
    return Machine(node, name, client.register_node(node, spec))


def seed(client: Client, clock: Clock | None = None) -> list[Machine]:
    """A cluster at work: everything that the pages can show, a little of each.

    Args:
        clock: With it there is an hour of history, and ages differ.
    """
    chance = random.Random(5)
    if clock is not None:
        clock.advance(timedelta(minutes=-65))
    for name in QUEUES:
        client.create_queue(name, policy={"patience": 0, "earmarks": 0})
    machines = cluster(client)
    if clock is not None:
        past(client, clock, machines, chance)
    running(client, machines, chance)
    finished(client, machines, chance)
    if clock is None:
        blocked(client, BLOCKED)
    runs(client, machines, clock)
    troubles(client, machines)
    if clock is not None:
        clock.advance(datetime.now(UTC) - clock.now())
    gangs(client)
    schedules(client)
    limits(client, machines)
    tenants(client, machines)
    return machines


def past(client: Client, clock: Clock, machines: Sequence[Machine], chance: random.Random) -> None:
    """An hour in which short work came and went, and some came that cannot run."""
    start = clock.now()
    for minute in range(60):
        if minute % 10 == 5:
            blocked(client, BLOCKED[minute // 10 : minute // 10 + 1])
        count = 6 + round(4 * math.sin(minute / 9)) + chance.randrange(3)
        for queue in ("renders", "inference"):
            for number in range(count):
                client.spawn_lease(queue, "tile", {"minute": minute, "number": number})
            clock.advance(timedelta(seconds=chance.randrange(1, 9)))
            machine = chance.choice(machines)
            claims = client.claim_task([queue], machine.node_id, machine.epoch, qty=count)
            clock.advance(timedelta(seconds=chance.randrange(3, 15)))
            for claim in claims:
                if chance.random() < 0.04:
                    error = {"type": "Timeout", "message": "the tile server did not answer"}
                    client.fail_lease(claim.lease_id, claim.claim_token, error=error)
                else:
                    client.complete_lease(claim.lease_id, claim.claim_token)
        client.reap()
        clock.advance(start + timedelta(minutes=minute + 1) - clock.now())


def running(client: Client, machines: Sequence[Machine], chance: random.Random) -> None:
    """Work of several sizes on most nodes, more on some than on others."""
    for number in range(260):
        gpus = chance.choice([0, 0, 1, 1, 2, 4, 8])
        resources = {"cpu_milli": 2000 * max(1, gpus), "memory_mib": 8192 * max(1, gpus)}
        if gpus:
            resources["gpu"] = gpus
        queue = chance.choice(["renders", "training", "inference"])
        client.spawn_lease(
            queue,
            {"renders": "draw", "training": "train", "inference": "serve"}[queue],
            {"number": number, "big": 2**60 + number},
            placement={"resources": resources},
            priority=chance.choice([0, 0, 0, 5, 10]),
            labels={"team": chance.choice(["film", "speech", "vision"])},
        )
    for machine in machines:
        client.claim_task(
            ["renders", "training", "inference"],
            machine.node_id,
            machine.epoch,
            qty=chance.choice([0, 2, 4, 8, 12]) or 1,
            claim_timeout=timedelta(hours=6),
        )


def finished(client: Client, machines: Sequence[Machine], chance: random.Random) -> None:
    """Work that has ended: completed, failed and tried again, dead, cancelled."""
    for number in range(60):
        client.spawn_lease("nightly", "index", {"day": number}, max_attempts=2)
    for number in range(60):
        machine = machines[number % len(machines)]
        for claim in client.claim_task(["nightly"], machine.node_id, machine.epoch):
            if number % 12 == 0:
                client.fail_lease(
                    claim.lease_id,
                    claim.claim_token,
                    error={
                        "type": "OutOfMemory",
                        "message": "killed at 15,9 GiB of 16 GiB\nwhile reading shard 7",
                        "traceback": "Traceback (most recent call last):\n  ...",
                    },
                    retry=number % 24 == 0,
                )
            else:
                client.complete_lease(claim.lease_id, claim.claim_token, result={"rows": number})
    for lease in client.list_leases(queue="nightly", state="pending", limit=3):
        client.cancel_lease(lease.lease_id, reason="not needed any more")
    client.spawn_lease("nightly", "report", {}, delay=timedelta(hours=3))


def blocked(client: Client, wanted: Sequence[tuple[str, str, int, SpawnOptions]]) -> None:
    """Spawn work that cannot run."""
    for queue, task, count, options in wanted:
        for number in range(count):
            client.spawn_lease(queue, task, {"number": number}, **options)


def runs(client: Client, machines: Sequence[Machine], clock: Clock | None) -> None:
    """Runs of workflows: one that waits for a node, one that failed, others that went well."""
    client.create_queue("workflows", policy={"patience": 0, "max_attempts": 1})
    for spec in (TRAINING | {"steps": TRAINING["steps"][:3]}, TRAINING, INDEXING, RELEASING):
        client.define_workflow(spec)
    given = {"dataset": "s3://films/2026-11", "publish": True}
    for number in range(3):
        client.submit_workflow("nightly-index", {"day": number}, labels={"team": "search"})
        drive(client, machines, clock, {})
    failing = client.submit_workflow("nightly-index", {"day": 3}).run_id
    drive(client, machines, clock, {"index": False})
    assert client.get_workflow_run(failing).state == "failed"
    client.submit_workflow(
        "train-and-publish", given, affinity_tags={"zone": "zone-b"}, idempotency_key="november"
    )
    drive(client, machines, clock, {"train-large": False})
    client.submit_spec(SCORING, {"shards": [f"s3://films/{n}" for n in range(8)]})
    drive(client, machines, clock, {"score": False})
    paused = client.submit_workflow("nightly-index", {"day": 4}).run_id
    client.pause_workflow_run(paused)
    scoring(client, machines, clock)


def scoring(client: Client, machines: Sequence[Machine], clock: Clock | None) -> None:
    """A run whose open steps are a map, a nested run, a sleep and a wait; none of them is done."""
    run = client.submit_workflow("score-and-release", {"shards": list(range(24))}).run_id
    spend(clock, 20)
    client.signal_workflow_run(run, "briefed", {"by": "ann"}, key="mail-17")
    client.signal_workflow_run(run, "briefed", {"by": "bob"}, key="mail-18")
    ended = 0
    for machine in machines[:9]:
        client.advance_workflows()
        spend(clock, 5)
        for claim in client.claim_task(["workflows"], machine.node_id, machine.epoch, qty=2):
            headers = claim.headers or {}
            ended += 1
            if headers["step"] == "score" and ended == 6:
                error = {"type": "BadShard", "message": "shard 4 has no header"}
                client.fail_lease(claim.lease_id, claim.claim_token, error=error)
            elif headers["step"] in ("list", "score", "list-shards"):
                spend(clock, 3)
                client.complete_lease(claim.lease_id, claim.claim_token, result={"rows": ended})
    client.advance_workflows()


def drive(client: Client, machines: Sequence[Machine], clock: Clock | None, ends: dict[str, bool]) -> None:
    """Let steps run, each for a while. ends: False: the first claim of the step fails."""
    failed: set[str] = set()
    while True:
        spend(clock, 3)
        claims = [
            claim
            for machine in machines
            for claim in client.claim_task(["workflows"], machine.node_id, machine.epoch, qty=4)
        ]
        if not claims:
            return
        for claim in claims:
            step = str((claim.headers or {})["step"])
            spend(clock, len(step))
            if not ends.get(step, True) and step not in failed:
                failed.add(step)
                error = {"type": "OutOfMemory", "message": "CUDA out of memory: 79 GiB of 80 GiB"}
                client.fail_lease(claim.lease_id, claim.claim_token, error=error)
            else:
                client.complete_lease(
                    claim.lease_id, claim.claim_token, result={"uri": f"s3://results/{step}"}
                )


def spend(clock: Clock | None, seconds: int) -> None:
    """Let time pass, where it can be moved."""
    if clock is not None:
        clock.advance(timedelta(seconds=seconds))


def gangs(client: Client) -> None:
    """A gang that is reserved, and one that no rack has room for now."""
    for placement, count in ((_asks({"cpu_milli": 100}), 3), (_asks({"gpu": 2}), 8)):
        members = [{"task": "train", "count": count, "options": {"placement": placement}}]
        client.spawn_gang("training", members, together="rack", hold=timedelta(hours=1))
    client.reap()


def schedules(client: Client) -> None:
    """One of each kind; one is paused, one has fired."""
    what = {"queue": "nightly", "task": "report"}
    nightly = {"cron": "30 2 * * mon-fri", "zone": "Europe/Berlin", "missed": "all"}
    client.sync_schedules("search", {"report": nightly | what | {"params": {"api_key": "k"}}})
    client.create_schedule("index/nightly", {"cron": "0 3 * * *", "workflow": "nightly-index"})
    client.create_schedule("sweep", {"every": "5 minutes", "overlap": "skip", **what})
    client.pause_schedule("sweep", "until the disks are back")
    for _ in range(2):
        client.trigger_schedule("report")


def limits(client: Client, machines: Sequence[Machine]) -> None:
    """One of each kind; leases wait for most of them, and one is closed."""
    client.create_limit("per_customer", {"slots": 2, "by": "key"})
    client.create_limit("openai", {"rate": {"count": 600, "per": 60, "burst": 12}})
    client.create_limit("customers", {"fair": True, "by": "tenant", "weights": {"acme": 4}})
    client.create_limit("backups", {"slots": 8})
    client.create_queue("calls", policy={"limits": ["openai", "customers"]})
    for number in range(90):
        key, tenant = f"u{number * number % 37}", ("acme", "beta")[number % 2]
        client.spawn_lease("calls", "ask", {"n": number}, limits={"per_customer": key}, tenant=tenant)
    client.reap()
    client.claim_task(["calls"], machines[1].node_id, machines[1].epoch, qty=9)
    client.throttle_limit("openai", retry_after=timedelta(minutes=30))


def tenants(client: Client, machines: Sequence[Machine]) -> None:
    """Some with a row; the licenses of rack 1 are used by one whose leases give way to another's."""
    client.set_tenant("acme", {"weight": 4, "slots": 12, "pending": 500})
    client.set_tenant("film", {"weight": 2})
    client.set_tenant("lab", {"tier": "scavenger", "slots": 20, "classes": 50})
    client.set_tenant("*", {"tier": "best_effort", "pending": 1000})
    client.grant_tenant("hwqueue_tenants", "film", ["spawn", "operate"])
    client.set_node_tenants(machines[46].node_id, ["film", "lab"])
    client.create_queue("live", policy={"preempt": {"after": 0, "grace": 600}})
    client.create_queue("batch", policy={"patience": 0, "earmarks": 0})
    licensed = _asks({"license": 1})
    for number in range(26):
        client.spawn_lease("batch", "simulate", {"n": number}, tenant="lab", placement=licensed)
    client.reap()
    for machine in machines[:8]:
        client.claim_task(["batch"], machine.node_id, machine.epoch, qty=2, claim_timeout=timedelta(hours=6))
    for number in range(3):
        client.spawn_lease("live", "render", {"n": number}, tenant="film", placement=licensed)
        client.reap()
    client.set_queue_policy("live", {"preempt": {"after": 3600, "grace": 600}})
    client.spawn_lease("live", "render", {"n": 3}, tenant="film", placement=licensed)


def troubles(client: Client, machines: Sequence[Machine]) -> None:
    """Nodes that are silent, cordoned, draining or tainted, and a queue that is paused."""
    client.cordon_node(machines[3].node_id)
    client.drain_node(machines[12].node_id, deadline=timedelta(minutes=30))
    client.taint_node(machines[20].node_id, Taint(key="disk", value="failing", effect="no_schedule"))
    client.attest_node(machines[30].node_id, "pci")
    client.drain_node(machines[30].node_id)
    silent = machines[40]
    spec = NodeSpec(
        name=silent.name,
        instance_id=f"{silent.name}/2",
        rack=6,
        heartbeat_timeout=timedelta(seconds=1),
        cpu_milli=32_000,
        memory_mib=262_144,
    )
    client.register_node(silent.node_id, spec)
    client.pause_queue("nightly")
