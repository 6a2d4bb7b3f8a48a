"""Each alert fires in the situation that it names, and in no other: real figures through promtool.

A situation is made in a database; what the collector exports before and after it are the input
series, and promtool evaluates the rules on them.
"""

import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.metrics import HwqueueCollector
from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.metrics.promtool import ALERTS, Alert, Values, firing, promtool, rules
from tests.metrics.test_collector import leave_arrival, scrape
from tests.sql.api import Api, Node, count_all, token

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)


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
        # The lag of a schema that nobody has pruned counts from its installation: this database is
        # a copy of one that was installed when the tests began.
        self.api.rows("prune")

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


def nobody_prunes(cluster: Cluster) -> None:
    """The only worker reaps, and leaves what has finished where it is."""
    cluster.live(62)


def nobody_sends(cluster: Cluster) -> None:
    """A webhook is there, and an event, but no process that sends."""
    cluster.api.rows("set_webhook", name="pager", url="https://hooks.example/")
    cluster.live(20)


def _scheduled(cluster: Cluster, **spec: Any) -> None:
    cluster.api.rows("create_schedule", name="s", spec={"queue": "q", "task": "t", **spec})
    cluster.api.rows("pause_queue", queue="q")


def nobody_plans(cluster: Cluster) -> None:
    """A schedule has a cron expression, and no worker reads it."""
    _scheduled(cluster, cron="0 2 * * *")
    cluster.live(2)


def nobody_fires(cluster: Cluster) -> None:
    """A time is due, and somebody holds the schedule."""
    _scheduled(cluster, every=60)
    with psycopg.connect(cluster.dsn) as idle:
        Api(idle).rows("set_schedule", name="s", changes={"jitter": 1})
        cluster.live(4)
        idle.rollback()


def spawns_nothing(cluster: Cluster) -> None:
    """The queue of a schedule is dropped."""
    cluster.api.rows("create_queue", queue="lost")
    _scheduled(cluster, every=60, queue="lost")
    cluster.api.rows("drop_queue", queue="lost")
    cluster.live(1)


def not_advanced(cluster: Cluster) -> None:
    """The last parents of a join complete at the same moment, and nobody looks after that."""
    leave_arrival(cluster.api, cluster.dsn)
    cluster.clock.advance(timedelta(seconds=11))


def limit_stuck(cluster: Cluster) -> None:
    """A lease comes to a limit whose lane another session holds."""
    cluster.api.rows("create_limit", name="slots", spec={"slots": 1})
    cluster.api.rows("throttle_limit", name="slots")
    with psycopg.connect(cluster.dsn) as idle:
        idle.execute("select from hwqueue.lane for update")
        cluster.api.spawn("q", limits=["slots"])
        cluster.live(6)


def gang_waits(cluster: Cluster) -> None:
    """A gang asks for more than there is."""
    _spawn_gang(cluster)
    cluster.live(31)


def _spawn_gang(cluster: Cluster) -> None:
    member = {"task": "t", "count": 2, "options": {"placement": {"resources": {"gpu": 1}}}}
    cluster.api.rows("spawn_gang", queue="q", members=Jsonb([member]))


def everywhere_waits(cluster: Cluster) -> None:
    """A node that an agent is to run on is full."""
    full = cluster.api.node(capacity={"cpu_milli": 1000})
    whole: Row = {"placement": {"resources": {"cpu_milli": 1000}}}
    cluster.api.running("q", full, **whole)
    _spawn_agent(cluster, **whole)


def everywhere_fails(cluster: Cluster) -> None:
    """An agent ends with an error whenever it has begun."""
    _spawn_agent(cluster, max_attempts=1)
    for _ in range(2):
        [claim] = cluster.api.claim(cluster.node, "q")
        cluster.api.rows("fail_lease", **token(claim), error={})
        cluster.live(1)
    [claim] = cluster.api.claim(cluster.node, "q")
    cluster.settle_down()


def _spawn_agent(cluster: Cluster, **options: Any) -> None:
    cluster.api.rows("spawn_everywhere", queue="q", task="agent", options=options)
    cluster.reap()


def held_back(cluster: Cluster, minutes: int = 8) -> None:
    """A worker completes a lease and leaves its transaction open."""
    node = cluster.api.node(heartbeat_timeout=86400)
    claim = cluster.api.running("q", node)
    with psycopg.connect(cluster.dsn) as idle:
        Api(idle).rows("complete_lease", **token(claim))
        cluster.live(minutes)


SITUATIONS: list[tuple[Callable[[Cluster], None], set[str]]] = [
    (calm, set()),
    (no_match, {"HwqueueNoMatchingNode"}),
    (waits_long, {"HwqueueOldestPending"}),
    (silent, {"HwqueueNodesSilent"}),
    (dead, {"HwqueueDeadLeases"}),
    (expired, {"HwqueueClaimsExpire"}),
    (nobody_reaps, {"HwqueueNobodyReaps"}),
    (nobody_prunes, {"HwqueueNobodyPrunes"}),
    (nobody_sends, {"HwqueueWebhookUndelivered"}),
    (nobody_plans, {"HwqueueScheduleDry"}),
    (nobody_fires, {"HwqueueScheduleLate"}),
    (spawns_nothing, {"HwqueueScheduleFailed"}),
    (not_advanced, {"HwqueueWorkflowsHeldUp"}),
    (limit_stuck, {"HwqueueLimitStuck"}),
    (gang_waits, {"HwqueueGangWaits"}),
    (everywhere_waits, {"HwqueueEverywhereWaits"}),
    (everywhere_fails, {"HwqueueEverywhereFails", "HwqueueDeadLeases"}),
    (held_back, {"HwqueueStatisticsHeldBack"}),
]


def no_match_yet(cluster: Cluster) -> None:
    """A lease asks for a label that no node has, and somebody may still start one."""
    cluster.api.spawn("q", affinity_tags={"gpu": True})
    cluster.live(4)


def waits_no_longer(cluster: Cluster) -> None:
    """A lease waited long, and was claimed."""
    cluster.api.spawn("q")
    cluster.live(31)
    cluster.api.rows("claim_task", queues=["q"], **cluster.node.who)
    cluster.reap()


def late(cluster: Cluster) -> None:
    """A node misses two heartbeats."""
    cluster.clock.advance(MINUTE / 2)
    cluster.reap()


def back(cluster: Cluster) -> None:
    """A node was away, and beats again."""
    silent(cluster)
    cluster.live(1)


def fails_once(cluster: Cluster) -> None:
    """A lease fails, and is tried again."""
    claim = cluster.api.running("q", cluster.node)
    cluster.api.rows("fail_lease", **token(claim), error={})
    cluster.settle_down()


def given_back(cluster: Cluster) -> None:
    """A worker that stops gives its lease back."""
    claim = cluster.api.running("q", cluster.node)
    cluster.api.rows("release_lease", **token(claim))
    cluster.settle_down()


def reaped_lately(cluster: Cluster) -> None:
    """The only worker has had something else to do."""
    for _ in range(3):
        cluster.clock.advance(MINUTE / 2)
        cluster.api.rows("heartbeat_node", **cluster.node.who, claims=[])


def pruned_lately(cluster: Cluster) -> None:
    """The last prune was within the hour."""
    cluster.live(50)
    cluster.api.rows("prune")
    cluster.live(50)


def pauses_a_webhook(cluster: Cluster) -> None:
    """An operator wants nothing to be sent."""
    nobody_sends(cluster)
    cluster.api.rows("pause_webhook", name="pager")


def advanced(cluster: Cluster) -> None:
    """A worker has looked since."""
    not_advanced(cluster)
    cluster.api.rows("advance_workflows")


def still_stopping(cluster: Cluster) -> None:
    """A run was cancelled, and a step of it takes its time to stop."""
    flow = Flow(cluster.api, [step("a")])
    assert flow.claims()
    cluster.api.rows("cancel_workflow_run", run=flow.run)
    cluster.clock.advance(MINUTE / 2)


def gang_of_a_paused_queue(cluster: Cluster) -> None:
    """An operator wants nothing of it to start."""
    _spawn_gang(cluster)
    cluster.api.rows("pause_queue", queue="q")
    cluster.live(31)


def agent_of_a_cordoned_node(cluster: Cluster) -> None:
    """An operator wants nothing to start there."""
    _spawn_agent(cluster)
    cluster.api.rows("cordon_node", node=cluster.node.node_id)
    cluster.live(1)


def held_back_shortly(cluster: Cluster) -> None:
    """A worker took four minutes over the transaction that completed a lease."""
    held_back(cluster, minutes=4)


NOT_YET: list[Callable[[Cluster], None]] = [
    *(no_match_yet, waits_no_longer, late, back, fails_once, given_back),
    *(pauses_a_webhook, reaped_lately, pruned_lately, advanced, still_stopping, held_back_shortly),
    *(gang_of_a_paused_queue, agent_of_a_cordoned_node),
]


@pytest.fixture
def cluster(conn: psycopg.Connection[Any], dsn: str, clock: Clock) -> Cluster:
    return Cluster(conn, dsn, clock)


def fire(folder: Path, before: Values, after: Values) -> list[Alert]:
    """The alerts that fire after figures have been `before` for a minute and `after` for nine."""
    return firing(folder, [before, *[after] * 9])


ALL = [*SITUATIONS, *((happens, set[str]()) for happens in NOT_YET)]


@pytest.mark.every_variant
@pytest.mark.parametrize(("happens", "alerts"), ALL, ids=[happens.__name__ for happens, _ in ALL])
def test_an_alert_for_each_situation_and_none_before_its_time(
    cluster: Cluster,
    collector: HwqueueCollector,
    tmp_path: Path,
    happens: Callable[[Cluster], None],
    alerts: set[str],
) -> None:
    before = scrape(collector)
    happens(cluster)
    found = fire(tmp_path, before, scrape(collector))
    assert {alert.name for alert in found} == alerts
    for alert in found:
        [rule] = [rule for rule in rules() if rule["alert"] == alert.name]
        said = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert said <= set(alert.labels), "labels that the series do not have are left blank"


def test_a_database_that_is_gone(cluster: Cluster, collector: HwqueueCollector, tmp_path: Path) -> None:
    gone = scrape(HwqueueCollector("host=127.0.0.1 port=1"))
    for after in (gone, {}):
        [alert] = fire(tmp_path, scrape(collector), after)
        assert alert.name == "HwqueueScrapeFails"


def test_every_alert_has_its_situation() -> None:
    covered = set().union(*(alerts for _, alerts in SITUATIONS))
    assert {rule["alert"] for rule in rules()} == covered | {"HwqueueScrapeFails"}


def test_promtool_takes_the_rules() -> None:
    run = subprocess.run([promtool(), "check", "rules", ALERTS], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
