"""The collector: every figure of the database under its name, and what if there is none."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from prometheus_client import generate_latest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from hwqueue.client import Client
from hwqueue.metrics import METRICS, HwqueueCollector, registry_for
from hwqueue.metrics.table import OF_THE_SCRAPE
from hwqueue.testing import Clock
from hwqueue.types import Sample
from tests.flows import Flow, finish, step
from tests.metrics.promtool import Values, read
from tests.sql.api import Api, count_all, token

pytestmark = pytest.mark.thorough

SECOND = timedelta(seconds=1)
FILM = {"workflow": "film"}
AGENT = {"queue": "gangs", "task": "agent"}
SESSIONS = """
  select count(*) from pg_stat_activity
  where datname = current_database() and application_name = 'hwqueue metrics'
"""
END_SESSIONS = """
  select pg_terminate_backend(pid, 10000) from pg_stat_activity
  where datname = current_database() and application_name = 'hwqueue metrics'
"""


def scrape(collector: HwqueueCollector) -> Values:
    """All samples by name and labels, as Prometheus would read them."""
    return read(generate_latest(registry_for(collector)).decode())


def value(values: Values, name: str, **labels: str) -> float:
    return values[name, tuple(sorted(labels.items()))]


@pytest.fixture
def busy(conn: psycopg.Connection[Any], clock: Clock) -> Api:
    clock.freeze()
    api = Api(conn)
    api.rows("create_queue", queue="q", policy={"retry": {"kind": "none"}})
    node = api.node(
        capacity={"cpu_milli": 4000, "memory_mib": 1024},
        gpus=[{"resource_id": f"00000000-0000-7000-8000-00000000000{n}", "model": "A"} for n in "12"],
    )
    api.node()
    claim = api.running("q", node, placement={"resources": {"gpu": 1, "cpu_milli": 1500}})
    clock.advance(2 * SECOND)
    api.rows("complete_lease", **token(claim))
    failed = api.running("q", node)
    api.rows("fail_lease", **token(failed), error={}, retry=False)
    api.running("q", node, placement={"resources": {"gpu_milli": 500, "memory_mib": 512}})
    for _ in range(2):
        api.spawn(
            "q",
            placement={
                "require": [{"label": "x", "op": "exists"}],
                "resources": {"gpu": 2, "cpu_milli": 500, "memory_mib": 2},
            },
        )
    api.spawn("q", placement={"resources": {"cpu_milli": 4000}})
    api.spawn("q", delay=60)
    api.rows("set_webhook", name="pager", url="https://hooks.example/")
    api.rows("create_queue", queue="films")
    api.rows("create_limit", name="api", spec={"slots": 1})
    api.rows("create_queue", queue="gangs")
    api.value("set_tenant", name="*", changes={"tier": "scavenger"})
    spec = {"name": "film", "queue": "films", "steps": [{"name": "a", "task": "t"}]}
    runs = [api.row("submit_spec", spec=spec)["run_id"] for _ in range(3)]
    api.rows("pause_workflow_run", run=runs[1])
    members = [{"task": "t", "count": 2, "options": {"placement": {"resources": {"gpu": 3}}}}]
    api.rows("spawn_gang", queue="gangs", members=Jsonb(members))
    api.rows("spawn_everywhere", queue="gangs", task="agent", options={"max_attempts": 1})
    planned = {"ttl": timedelta(hours=1), "round": 1, "epoch": api.value("lead_planner", holder="p")}
    api.rows("set_prices", queue="q", prices={"device_worth": [0.5] * 101}, **planned)
    figures = {"leases": {"fetched": 3}, "seconds": {"read": 0.25}, "resting": 1}
    room = {"gpus": 2, "allocated": 0.5, "bound": 1.5, **figures}
    api.rows("note_room", room=room, **planned)
    clock.advance(2 * SECOND)
    api.rows("cancel_workflow_run", run=runs[2])
    clock.advance(SECOND)
    count_all(conn)
    clock.advance(SECOND)
    return api


def test_names_and_labels_are_those_of_the_table(busy: Api) -> None:
    """Both ways: nothing that the table does not know, and all that it does."""
    known = {metric.name: metric for metric in METRICS if metric.name not in OF_THE_SCRAPE}
    seen = set()
    for row in busy.rows("metrics"):
        name = row["name"]
        for part in ("_bucket", "_sum", "_count"):
            if name.removesuffix(part) in known:
                name = name.removesuffix(part)
        labels = set(row["labels"]) - {"le"}
        assert labels == set(known[name].labels), row
        assert row["value"] is not None, row
        seen.add(name)
    assert seen == set(known)


def test_what_the_figures_say(busy: Api, collector: HwqueueCollector) -> None:
    values = scrape(collector)
    expected = [
        (3.0, "hwqueue_leases", {"queue": "q", "state": "pending"}),
        (1.0, "hwqueue_leases", {"queue": "q", "state": "scheduled"}),
        (1.0, "hwqueue_leases", {"queue": "q", "state": "claimed"}),
        (4.0, "hwqueue_oldest_pending_seconds", {"queue": "q"}),
        (0.0, "hwqueue_queue_paused", {"queue": "q"}),
        (1.0, "hwqueue_leases_finished_total", {"queue": "q", "outcome": "completed"}),
        (1.0, "hwqueue_leases_finished_total", {"queue": "q", "outcome": "failed"}),
        (1.0, "hwqueue_claims_ended_total", {"queue": "q", "outcome": "failed"}),
        (0.0, "hwqueue_claims_ended_total", {"queue": "q", "outcome": "expired"}),
        (0.0, "hwqueue_retries_total", {"queue": "q"}),
        (0.0, "hwqueue_run_seconds_bucket", {"queue": "q", "le": "1.0"}),
        (1.0, "hwqueue_run_seconds_bucket", {"queue": "q", "le": "5.0"}),
        (1.0, "hwqueue_run_seconds_count", {"queue": "q"}),
        (2.0, "hwqueue_run_seconds_sum", {"queue": "q"}),
        (1.0, "hwqueue_wait_seconds_bucket", {"queue": "q", "le": "0.01"}),
        (2.0, "highway_tasks_pending_no_affinity_match", {"queue": "q"}),
        (2.0, "hwqueue_nodes", {"state": "live"}),
        (0.0, "hwqueue_nodes", {"state": "silent"}),
        (4.0, "hwqueue_node_cpu_cores", {"state": "live"}),
        (2.0, "hwqueue_node_gpus", {"state": "live"}),
        (0.5, "hwqueue_node_gpus_used", {"state": "live"}),
        (512.0 * 2**20, "hwqueue_node_memory_bytes_used", {"state": "live"}),
        (0.0, "hwqueue_claims_overdue", {}),
        (1.0, "hwqueue_reap_lag_seconds", {}),
        (1.0, "hwqueue_workflow_runs", {"workflow": "film", "state": "running"}),
        (1.0, "hwqueue_workflow_runs", {"workflow": "film", "state": "paused"}),
        (1.0, "hwqueue_workflow_runs_finished_total", {**FILM, "outcome": "cancelled"}),
        (0.0, "hwqueue_workflow_runs_finished_total", {**FILM, "outcome": "failed"}),
        (1.0, "hwqueue_workflow_run_seconds_count", {**FILM, "outcome": "cancelled"}),
        (2.0, "hwqueue_workflow_run_seconds_sum", {**FILM, "outcome": "cancelled"}),
        (0.0, "hwqueue_workflow_run_seconds_bucket", {**FILM, "outcome": "cancelled", "le": "1.0"}),
        (1.0, "hwqueue_workflow_run_seconds_bucket", {**FILM, "outcome": "cancelled", "le": "5.0"}),
        (0.0, "hwqueue_workflow_arrivals", {}),
        (0.0, "hwqueue_workflow_oldest_arrival_seconds", {}),
        (1.0, "hwqueue_gangs", {"state": "waiting"}),
        (4.0, "hwqueue_gang_oldest_waiting_seconds", {}),
        (2.0, "hwqueue_everywhere_nodes", {**AGENT, "state": "reserved"}),
        (0.0, "hwqueue_everywhere_nodes", {**AGENT, "state": "running"}),
        (0.0, "hwqueue_everywhere_failing_nodes", AGENT),
        (1.5, "hwqueue_planner_gpus", {"state": "bound"}),
        (0.5, "hwqueue_planner_gpu_worth", {"queue": "q"}),
        (0.25, "hwqueue_planner_round_seconds", {"part": "read"}),
        (3.0, "hwqueue_planner_leases_total", {"verdict": "fetched"}),
        (1.0, "hwqueue_planner_resting_nodes", {}),
        (0.0, "hwqueue_limit_parked", {"limit": "api"}),
        (3.0, "hwqueue_tier_leases", {"tier": "guaranteed", "state": "claimed"}),
        (0.0, "hwqueue_tier_leases", {"tier": "scavenger", "state": "waiting"}),
        (0.0, "hwqueue_preempted_claims", {"state": "overdue"}),
        (1.0, "hwqueue_up", {}),
        (0.0, "hwqueue_scrape_errors_total", {}),
    ]
    found = [(value(values, name, **labels), name, labels) for _, name, labels in expected]
    assert found == expected


def test_what_unmet_leases_ask_for(busy: Api, collector: HwqueueCollector) -> None:
    values = scrape(collector)
    [unmet] = [
        dict(labels)
        for name, labels in values
        if name == "hwqueue_unmet_leases" and dict(labels)["reason"] == "no_match"
    ]
    wanted = {
        name.removeprefix("hwqueue_unmet_"): number
        for (name, labels), number in values.items()
        if name.startswith("hwqueue_unmet_") and dict(labels) == unmet
    }
    assert wanted == {
        "leases": 2.0,
        "gpus": 4.0,
        "cpu_cores": 1.0,
        "memory_bytes": 4.0 * 2**20,
        "oldest_seconds": 4.0,
    }


def test_only_the_largest_classes_and_workflows_are_named(busy: Api, collector: HwqueueCollector) -> None:
    """Ad hoc runs may have any name; what is not named is counted together."""
    for number in range(51):
        steps = [{"name": "a", "task": "t"}]
        busy.row("submit_spec", spec={"name": f"w{number:02}", "queue": "films", "steps": steps})
    for number in range(55):
        options = {"placement": {"require": [{"label": f"l{number}", "op": "exists"}]}}
        busy.rows("spawn_leases", queue="q", leases=[{"task": "t", "options": options}] * (2 + number))
    values = scrape(collector)
    series = [dict(labels) for name, labels in values if name == "hwqueue_unmet_leases"]
    assert len([labels for labels in series if labels["reason"] == "no_match"]) == 51
    other = {"queue": "", "class": "other", "reason": "no_match"}
    assert value(values, "hwqueue_unmet_leases", **other) == sum([2, 2, 3, 4, 5, 6])
    assert value(values, "highway_tasks_pending_no_affinity_match", queue="q") == 2 + sum(range(2, 57))
    series = [dict(labels) for name, labels in values if name == "hwqueue_workflow_runs"]
    named = {labels["workflow"] for labels in series}
    assert len(named) == 51
    assert {"film", "w00", "w48"} <= named
    other = {"workflow": "(other)", "state": "running"}
    assert value(values, "hwqueue_workflow_runs", **other) == 2


def test_only_the_everywhere_tasks_on_most_nodes_are_named(
    busy: Api, collector: HwqueueCollector, clock: Clock
) -> None:
    """Those of one queue and task are one series; one that was stopped is none."""
    options = {"affinity_tags": {"nowhere": True}}
    others = [
        busy.row("spawn_everywhere", queue="q", task=f"t{number:02}", options=options) for number in range(51)
    ]
    busy.rows("spawn_everywhere", queue="gangs", task="agent", options={"priority": 1})
    clock.advance(SECOND)
    for _ in range(3):
        busy.rows("reap")

    def named() -> dict[str, float]:
        name = "hwqueue_everywhere_nodes"
        found = ((dict(each), nodes) for (of, each), nodes in scrape(collector).items() if of == name)
        return {each["task"]: nodes for each, nodes in found if each["state"] == "reserved"}

    found = named()
    assert len(found) == 51
    assert {"agent": 4.0, "t00": 0.0, "t48": 0.0, "(other)": 0.0}.items() <= found.items()
    for other in others:
        busy.rows("stop_everywhere", everywhere=other["everywhere_id"])
    assert named() == {"agent": 4.0}


def leave_arrival(api: Api, dsn: str) -> None:
    """Complete both parents of a join, the second while the first's session is not done."""
    flow = Flow(api, [step("a"), step("b"), step("c", "a", "b")])
    claims = flow.claims()
    with psycopg.connect(dsn) as first:
        finish(Api(first), claims["a"])
        finish(api, claims["b"])


def test_what_is_left_gets_older(busy: Api, collector: HwqueueCollector, clock: Clock, dsn: str) -> None:
    leave_arrival(busy, dsn)
    clock.advance(7 * SECOND)
    values = scrape(collector)
    assert value(values, "hwqueue_workflow_arrivals") == 1
    assert value(values, "hwqueue_workflow_oldest_arrival_seconds") == 7
    busy.rows("advance_workflows")
    assert value(scrape(collector), "hwqueue_workflow_arrivals") == 0


def test_a_database_that_is_not_there() -> None:
    """No figures, and said so."""
    collector = HwqueueCollector("host=127.0.0.1 port=1", timeout=SECOND)
    for times in (1, 2):
        values = scrape(collector)
        assert value(values, "hwqueue_up") == 0
        assert value(values, "hwqueue_scrape_errors_total") == times
        assert {name for name, _ in values} == OF_THE_SCRAPE


def test_a_database_that_does_not_answer(conn: psycopg.Connection[Any], dsn: str) -> None:
    """The statement ends by itself, and the next scrape has figures again."""
    Client.on(conn).create_queue("q")
    collector = HwqueueCollector(dsn, timeout=SECOND)
    with conn.transaction():
        conn.execute("lock table hwqueue.queue")
        values = scrape(collector)
        assert value(values, "hwqueue_up") == 0
        assert not [name for name, _ in values if name == "hwqueue_leases"]
    values = scrape(collector)
    assert value(values, "hwqueue_leases", queue="q", state="pending") == 0
    assert value(values, "hwqueue_scrape_errors_total") == 1
    collector.close()


def test_a_connection_that_was_ended_is_made_anew(
    conn: psycopg.Connection[Any], collector: HwqueueCollector
) -> None:
    """That is no failure: servers are restarted, poolers end what is idle."""
    for _ in range(2):
        assert value(scrape(collector), "hwqueue_up") == 1
        assert conn.execute(SESSIONS).fetchone() == (1,)
        conn.execute(END_SESSIONS)
    assert value(scrape(collector), "hwqueue_scrape_errors_total") == 0


class CountingLock:
    """A lock that knows how many have asked for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.asked.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_scrapes_at_once_share_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine come while the first is at it: one asks for all of them."""
    collector = HwqueueCollector("")
    turn, go_on = CountingLock(), threading.Event()
    reads = []

    def read() -> list[Sample]:
        reads.append(threading.get_ident())
        assert go_on.wait(20)
        return [Sample(name="hwqueue_reap_lag_seconds", labels={}, value=1.0)]

    monkeypatch.setattr(collector, "_turn", turn)
    monkeypatch.setattr(collector, "_read", read)
    with ThreadPoolExecutor(10) as pool:
        scrapes = [pool.submit(scrape, collector) for _ in range(10)]
        for _ in scrapes:
            assert turn.asked.acquire(timeout=120)
        go_on.set()
        answers = [one.result(20) for one in scrapes]
    assert len(reads) == 2
    assert all(value(answer, "hwqueue_up") == 1 for answer in answers)


def test_settings_in_the_address_win(dsn: str) -> None:
    collector = HwqueueCollector(make_conninfo(dsn, application_name="mine", connect_timeout=3))
    assert value(scrape(collector), "hwqueue_up") == 1
    collector.close()
