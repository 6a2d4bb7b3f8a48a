"""Write a dump of a release with rows in every table, for the tests of upgrades.

Run from a checkout of that release, with this file copied into its tests/migrations:

    python -m tests.migrations.make_release /absolute/path/to/tests/migrations/releases/NAME.sql.gz

NAME is that of the release's last revision. `test_upgrade.py` restores each dump in that folder,
upgrades it, and compares the result with a fresh install. There is none yet.
"""

import gzip
import sys
from pathlib import Path
from uuid import UUID

import psycopg

from tests.calls import Row
from tests.migrations.programs import dump, installed
from tests.patience import looks
from tests.sql.api import Api, Node, settlement, token

QUEUE = "kept"
PLACED = "placed"
LONG = 9 * 365 * 86400  # seconds: what has not run out when the dump was made does not later either
LONGEST_CLAIM = 30 * 86400
POLICY = {
    "claim_timeout": LONGEST_CLAIM,
    "retry": {"kind": "fixed", "base": LONG, "jitter": 0},
    "retain_completed": LONG,
    "retain_failed": LONG,
}
NODES = {
    name: UUID(int=number)
    for number, name in enumerate(("plain", "counted", "devices", "cordoned", "gone"), start=1)
}
GPUS = [{"resource_id": str(UUID(int=100 + n)), "model": "T4"} for n in range(2)]

# Of the queue `placed`.
PLACED_NODES = {
    name: UUID(int=number)
    for number, name in enumerate(("rack-1", "rack-2", "film", "trusted", "isolating"), start=11)
}
SERVICES = {name: UUID(int=number) for number, name in enumerate(("web", "db"), start=201)}
FILM = {"key": "dedicated", "value": "film", "effect": "no_schedule"}
REPAIR = {"key": "repair", "effect": "no_schedule"}
CORES = [{"core": core, "numa": core // 3, "threads": [core, core + 6]} for core in range(6)]
DEVICE, *PARTS = (str(UUID(int=110 + n)) for n in range(3))
DEVICES = [{"resource_id": DEVICE, "partitionable": True}] + [
    {"resource_id": part, "parent_resource_id": DEVICE} for part in PARTS
]
RACK_42 = "\\x0910000903010600040000002a"
CAPPED = {"spread": [{"domain": "node", "max_per_domain": 1, "select": {"labels": {"app": "one"}}}]}
FOR_FILM = {
    "require": [{"label": "kind", "op": "in", "values": ["film"]}],
    "tolerate": [FILM | {"op": "equal"}, REPAIR | {"op": "exists"}],
}
TRUST = {"require": [{"trust": "acme.prod"}]}
ALONE = {"isolation": {"cpu": "whole_core"}, "resources": {"cpu_milli": 1500}}
PART = {"isolation": {"gpu": "partition_exclusive"}, "resources": {"gpu": 1}}
ASKED: dict[str, Row] = {
    "capped": {"placement": CAPPED, "labels": {"app": "one"}},
    "film": {"placement": FOR_FILM},
    "trusted": {"placement": TRUST},
    "alone": {"placement": ALONE},
    "part": {"placement": PART},
}


def fill(conn: psycopg.Connection) -> None:
    """One of every state of leases and nodes; classes are judged on the way."""
    api = Api(conn)
    api.rows("create_queue", queue=QUEUE, policy=POLICY)
    api.value("set_task", task="kept", defaults={"max_attempts": 1, "labels": {"app": "kept"}})
    plain = api.node(NODES["plain"], labels={"zone": "a"})
    counted = api.node(NODES["counted"], capacity={"cpu_milli": 4000, "memory_mib": 4096}, slots=3)
    devices = api.node(NODES["devices"], capacity={"cpu_milli": 8000, "license": 2}, gpus=GPUS)
    api.node(NODES["cordoned"])
    api.node(NODES["gone"])
    for outcome in ("complete", "fail", "cancel"):
        claim = api.running(QUEUE, plain, {"ended": outcome}, idempotency_key=outcome)
        if outcome == "cancel":
            api.rows("cancel_lease", lease=claim["lease_id"])
        end = (
            settlement(claim, "complete", result={"n": 1})
            if outcome == "complete"
            else (settlement(claim, "fail", error={"n": 2}, retry=False))
        )
        api.rows("settle_and_claim", **plain.who, settle=[end], queues=[QUEUE], qty=0)
    api.running(QUEUE, counted, {"runs": 1}, placement={"resources": {"cpu_milli": 1500}})
    api.running(QUEUE, devices, {"runs": 2}, placement={"resources": {"gpu": 1, "license": 1}})
    api.running(QUEUE, plain, {"runs": 3}, placement={"require": [{"node": str(NODES["plain"])}]})
    retried = api.running(QUEUE, plain, {"again": True})
    api.rows("fail_lease", **token(retried), error={"n": 3})
    api.spawn(QUEUE, "work", {"later": True}, delay=LONG)
    for priority in (0, 5, -5):
        api.spawn(QUEUE, "work", {"waits": priority}, priority=priority)
    api.spawn(QUEUE, "work", {"waits": "gpu"}, placement={"resources": {"gpu_milli": 500}})
    api.rows("cordon_node", node=NODES["cordoned"])
    api.rows("deregister_node", node=NODES["gone"])


def fill_placed(conn: psycopg.Connection) -> None:
    """What nodes are and what leases ask: of each kind one lease runs and one waits."""
    api = Api(conn)
    api.rows("create_queue", queue=PLACED, policy=POLICY)
    web, db = (str(service) for service in SERVICES.values())
    api.value("set_service_policy", service=web, policy={"anti_affinity_services": [db]})
    rack_1 = placed_node(api, "rack-1", rack=1)
    placed_node(api, "rack-2", rack=2)
    film = placed_node(api, "film", labels={"kind": "film"}, taints=[FILM])
    api.rows("taint_node", node=film.node_id, taint=REPAIR)
    trusted = placed_node(api, "trusted")
    api.rows("attest_node", node=trusted.node_id, domain="acme.prod")
    isolating = placed_node(
        api,
        "isolating",
        cores=CORES,
        gpus=DEVICES,
        cpu_isolation=["whole_core", "strict_isolated"],
        gpu_exclusivity=["partition_exclusive"],
    )
    run_placed(api, rack_1, "db", service_id=db)
    nodes = {"film": film, "trusted": trusted, "alone": isolating, "part": isolating}
    for name, asked in ASKED.items():
        run_placed(api, nodes.get(name, rack_1), name, **asked)
    for name, asked in ASKED.items():
        api.spawn(PLACED, "work", {"waits": name}, **asked)
    api.spawn(PLACED, "work", {"waits": "web"}, service_id=web)
    api.spawn(PLACED, "work", {"waits": "rack 42"}, wire=RACK_42)
    publish_terms(api)


def placed_node(api: Api, name: str, **spec: object) -> Node:
    """Register one of the nodes."""
    return api.node(PLACED_NODES[name], name=name, **spec)


def run_placed(api: Api, node: Node, name: str, **options: object) -> None:
    """Let a lease run on the node."""
    lease = api.spawn(PLACED, "work", {"runs": name}, **options)
    publish_terms(api)
    [claim] = api.claim(node, PLACED)
    assert claim["lease_id"] == lease


def publish_terms(api: Api) -> None:
    """Bring what leases ask about others into force.

    A transaction that is open anywhere on the server during a reap puts that off to the next.
    """
    for _ in looks():
        api.rows("reap")
        query = "select count(*) from hwqueue.affinity_term where published_at is null"
        left = api.conn.execute(query)
        if left.fetchone() == (0,):
            return
    raise AssertionError("some session keeps a transaction open")


def main(target: Path) -> None:
    """Install into a throwaway server, fill, dump."""
    with installed() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            fill(conn)
            fill_placed(conn)
        script = dump(dsn, "--no-owner", "--schema=hwqueue")
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(gzip.compress(script.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
