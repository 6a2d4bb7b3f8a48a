"""Write a dump of a release with rows in every table, for the tests of upgrades.

Run from a checkout of that release, with this file copied into its tests/migrations:

    python -m tests.migrations.make_release /absolute/path/to/releases/NAME.sql.gz
"""

import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import psycopg

from hwqueue.embedded import EmbeddedServer
from hwqueue.schema import upgrade
from tests.migrations.programs import dump
from tests.sql.api import Api, settlement, token

QUEUE = "kept"
LONG = 9 * 365 * 86400  # seconds: what has not run out when the dump was made does not later either
POLICY = {
    "claim_timeout": LONG,
    "retry": {"kind": "fixed", "base": LONG, "jitter": 0},
    "retain_completed": LONG,
    "retain_failed": LONG,
}
NODES = {
    name: UUID(int=number)
    for number, name in enumerate(("plain", "counted", "devices", "cordoned", "gone"), start=1)
}
GPUS = [{"resource_id": str(UUID(int=100 + n)), "model": "T4"} for n in range(2)]


def fill(conn: psycopg.Connection) -> None:
    """One of every state of leases and nodes; classes are judged on the way."""
    api = Api(conn)
    api.rows("create_queue", queue=QUEUE, policy=POLICY)
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


def main(target: Path) -> None:
    """Install into a throwaway server, fill, dump."""
    folder = Path(tempfile.mkdtemp(prefix="hwqueue-release-"))
    folder.chmod(0o755)
    server = EmbeddedServer(folder / "server", settings={"fsync": "off"})
    try:
        dsn = server.ensure_running()
        upgrade(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            fill(conn)
        script = dump(dsn, "--no-owner", "--schema=hwqueue")
        target.write_bytes(gzip.compress(script.encode(), mtime=0))
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
