"""Each alert fires in the situation that it names, and in no other: real figures through promtool.

A situation is made in a database; what the collector exports before and after it are the input
series, and promtool evaluates the rules on them.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from hwqueue.metrics import HwqueueCollector
from hwqueue.testing import Clock
from tests.fix_db import strict_skip
from tests.metrics.test_collector import Values, scrape
from tests.sql.api import Api, Node, count_all, token

ALERTS = Path(__file__).parents[2] / "monitoring" / "alerts.yml"
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'
MINUTE = timedelta(minutes=1)


@pytest.fixture
def promtool() -> str:
    """Prometheus' own checker."""
    found = shutil.which("promtool")
    if found is None:
        strict_skip("promtool is not installed: apt install prometheus")
    return found


class Cluster:
    """A queue, a node that lives, and time that passes."""

    def __init__(self, conn: psycopg.Connection[Any], dsn: str, clock: Clock) -> None:
        self.dsn = dsn
        self.api = Api(conn)
        self.clock = clock
        clock.freeze()
        self.api.rows("create_queue", queue="q", policy={"claim_timeout": 60})
        self.node: Node = self.api.node()
        self.reap()

    def reap(self) -> None:
        """What workers do every few seconds, with time to spare."""
        count_all(self.api.conn)

    def live(self, minutes: int) -> None:
        """Let time pass as it does where all is well."""
        for _ in range(minutes * 2):
            self.clock.advance(MINUTE / 2)
            self.api.rows("heartbeat_node", **self.node.who, claims=[])
            self.api.rows("reap")

    def settle_down(self) -> None:
        """Let everything that has ended be counted."""
        self.clock.advance(timedelta(seconds=1))
        self.reap()


def calm(cluster: Cluster) -> None:
    """A lease runs and completes; others wait for their time or in a paused queue."""
    cluster.api.rows("complete_lease", **token(cluster.api.running("q", cluster.node)))
    cluster.api.spawn("q", delay=86400)
    cluster.api.rows("create_queue", queue="paused")
    cluster.api.spawn("paused")
    cluster.api.rows("pause_queue", queue="paused")
    cluster.live(40)


def no_match(cluster: Cluster) -> None:
    """A lease asks for a label that no node has."""
    cluster.api.spawn("q", affinity_tags={"gpu": True})
    cluster.live(6)


def waits_long(cluster: Cluster) -> None:
    """Nobody claims what could be claimed."""
    cluster.api.spawn("q")
    cluster.live(31)


def silent(cluster: Cluster) -> None:
    """A node dies."""
    cluster.clock.advance(2 * MINUTE)
    cluster.reap()


def dead(cluster: Cluster) -> None:
    """A lease has no attempt left."""
    claim = cluster.api.running("q", cluster.node)
    cluster.api.rows("fail_lease", **token(claim), error={}, retry=False)
    cluster.settle_down()


def expired(cluster: Cluster) -> None:
    """A worker forgets its claim while its node lives."""
    cluster.api.running("q", cluster.node)
    cluster.live(2)
    cluster.settle_down()


def nobody_reaps(cluster: Cluster) -> None:
    """The only worker is there, but does not reap."""
    for _ in range(10):
        cluster.clock.advance(MINUTE / 2)
        cluster.api.rows("heartbeat_node", **cluster.node.who, claims=[])


def held_back(cluster: Cluster) -> None:
    """A worker completes a lease and leaves its transaction open."""
    node = cluster.api.node(heartbeat_timeout=86400)
    claim = cluster.api.running("q", node)
    with psycopg.connect(cluster.dsn) as idle:
        Api(idle).rows("complete_lease", **token(claim))
        cluster.live(8)


SITUATIONS: list[tuple[Callable[[Cluster], None], set[str]]] = [
    (calm, set()),
    (no_match, {"HwqueueNoMatchingNode"}),
    (waits_long, {"HwqueueOldestPending"}),
    (silent, {"HwqueueNodesSilent"}),
    (dead, {"HwqueueDeadLeases"}),
    (expired, {"HwqueueClaimsExpire"}),
    (nobody_reaps, {"HwqueueNobodyReaps"}),
    (held_back, {"HwqueueStatisticsHeldBack"}),
]


@pytest.fixture
def cluster(conn: psycopg.Connection[Any], dsn: str, clock: Clock) -> Cluster:
    """A calm one."""
    return Cluster(conn, dsn, clock)


@pytest.fixture
def collector(dsn: str) -> Iterator[HwqueueCollector]:
    """The figures of its database."""
    made = HwqueueCollector(dsn)
    yield made
    made.close()


@pytest.fixture
def firing(promtool: str, tmp_path: Path) -> Callable[[Values, Values], set[str]]:
    """Which alerts fire when figures change so."""
    return lambda before, after: evaluate(promtool, tmp_path, before, after)


@pytest.mark.parametrize(
    ("happens", "alerts"), SITUATIONS, ids=[happens.__name__ for happens, _ in SITUATIONS]
)
def test_an_alert_for_each_situation(
    cluster: Cluster,
    collector: HwqueueCollector,
    firing: Callable[[Values, Values], set[str]],
    happens: Callable[[Cluster], None],
    alerts: set[str],
) -> None:
    before = scrape(collector)
    happens(cluster)
    assert firing(before, scrape(collector)) == alerts


def test_a_database_that_is_gone(
    cluster: Cluster, collector: HwqueueCollector, firing: Callable[[Values, Values], set[str]]
) -> None:
    gone = HwqueueCollector("host=127.0.0.1 port=1")
    assert firing(scrape(collector), scrape(gone)) == {"HwqueueScrapeFails"}
    assert firing({}, {}) == {"HwqueueScrapeFails"}


def test_every_alert_has_its_situation() -> None:
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    covered = set().union(*(alerts for _, alerts in SITUATIONS))
    assert {rule["alert"] for rule in group["rules"]} == covered | {"HwqueueScrapeFails"}


def test_promtool_takes_the_rules(promtool: str) -> None:
    run = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def _text(values: Values, name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """A value as promtool reads it; _ when there is none."""
    return repr(values[name, labels]) if (name, labels) in values else "_"


def evaluate(promtool: str, folder: Path, before: Values, after: Values) -> set[str]:
    """The alerts that fire after figures have been `before` for a minute and `after` for nine.

    promtool compares with what is expected and prints what it got: so nothing is expected.
    """
    series = [
        {
            "series": f"{name}{{{','.join(f'{k}={json.dumps(v)}' for k, v in labels)}}}",
            "values": f"{_text(before, name, labels)} {_text(after, name, labels)}"
            + ("x9" if (name, labels) not in after else "+0x8"),
        }
        for name, labels in sorted(before | after)
    ]
    test = {
        "interval": "1m",
        "input_series": series or [{"series": "up", "values": "0x9"}],
        "promql_expr_test": [{"expr": FIRING, "eval_time": "9m", "exp_samples": []}],
    }
    file = folder / "test.yml"
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}),
        encoding="utf-8",
    )
    run = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False
    )
    said = run.stdout + run.stderr
    assert "FAILED" in said or run.returncode == 0, said
    return {word.split('"')[1] for word in said.replace("{", " ").split() if "alertname=" in word}
