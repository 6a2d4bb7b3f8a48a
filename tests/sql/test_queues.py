"""Queues: created, their policies changed, paused, dropped."""

from datetime import timedelta

import psycopg
import pytest

from hwqueue.worker import WorkerSettings
from tests.sql.api import Api, Node, outlive, token
from tests.sql.warm import WarmApi

GIVEN = {
    "claim_timeout": "2 minutes",
    "poll_interval": "250 milliseconds",
    "patience": 0.5,
    "max_attempts": 7,
    "retry": {"kind": "fixed", "base": "1 minute"},
    "ageing_step": 30,
    "max_params_bytes": 1000,
    "max_result_bytes": 2000,
    "tuning": {
        "window_size": 50,
        "probe_size": 0,
        "weight_affinity": 1,
        "weight_fit": 2.5,
        "weight_spread": 0,
        "notify": False,
        "earmark_time": 90,
    },
    "retain_completed": "1 day",
    "retain_failed": 0,
    "failure_domain": "label:zone",
    "earmarks": 0,
    "everywhere_tenants": ["*", "a b"],
    "everywhere_limit": 3,
}


def policy_of(api: Api, queue: str) -> dict[str, object]:
    policy: dict[str, object] = api.listed(queue)["policy"]
    return policy


def test_work_of_a_dead_worker_is_back_in_time(api: Api) -> None:
    """Within 50 s of its last heartbeat; and a process may be held up for 30 s between two."""
    settings = WorkerSettings()
    assert settings.reap_interval is not None
    longest_until_reaped = 1.5 * settings.reap_interval.total_seconds()
    timeout = float(str(policy_of(api, api.queue())["claim_timeout"]))
    beats = min(settings.heartbeat_interval.total_seconds(), timeout / 4)  # runtime.Runtime
    assert timeout + longest_until_reaped <= 50
    assert timeout - beats >= 30


def test_every_key_is_kept(api: Api) -> None:
    api.rows("create_queue", queue="given", policy=GIVEN)
    assert policy_of(api, "given") == {
        **GIVEN,
        "claim_timeout": 120,
        "poll_interval": 0.25,
        "retry": {"kind": "fixed", "base": 60, "factor": 2, "max": 600, "jitter": 0.2},
        "retain_completed": 86400,
        "limits": [],
    }


def test_again_with_the_same_policy_changes_nothing(api: Api) -> None:
    """Nor after an operator has changed it; with another policy it is refused."""
    given = {"max_attempts": 3, "tuning": {"weight_fit": 2}}
    api.rows("create_queue", queue="twice", policy=given)
    with api.unchanged():
        same = {"max_attempts": 3.0, "claim_timeout": "40 sec"}
        api.rows("create_queue", queue="twice", policy=given | same)
    changes = {"patience": 7, "retry": {"kind": "none"}, "tuning": {"weight_spread": 3}}
    api.rows("set_queue_policy", queue="twice", policy=changes)
    with api.unchanged():
        api.rows("create_queue", queue="twice", policy=given)
        api.rows("create_queue", queue="twice")
    refusal = api.refused("QHQ02", "create_queue", queue="twice", policy={"max_attempts": 4})
    assert (refusal.detail["queue"], refusal.detail["policy"]["max_attempts"]) == ("twice", 3)


def test_names(api: Api) -> None:
    for name in ("a", "A_b.c:d@e/f-1", "_", "0", "x" * 100):
        api.rows("create_queue", queue=name)
        assert policy_of(api, name)["max_attempts"] == 5
    for bad in ("", "x" * 101, "-a", "a b", "a\n", "ü", "a;b", None):
        assert api.fault("create_queue", queue=bad) == "queue"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("claim_timeout", 0.5),
        ("claim_timeout", "1 month"),
        ("claim_timeout", "soon"),
        ("poll_interval", -1),
        ("max_attempts", 0),
        ("max_attempts", 1001),
        ("max_attempts", 2.5),
        ("retry", "often"),
        ("ageing_step", -1),
        ("max_params_bytes", 0),
        ("max_result_bytes", 10**9),
        ("earmarks", -1),
        ("everywhere_tenants", "film"),
        ("everywhere_limit", -1),
        ("tuning", [10]),
        ("retain_completed", True),
        ("retain_failed", 10**12),
        ("colour", "blue"),
        ("retry.kind", "sometimes"),
        ("retry.base", -1),
        ("retry.factor", 0.5),
        ("retry.max", "2 months"),
        ("retry.jitter", 1.1),
        ("tuning.window_size", 0),
        ("tuning.probe_size", -1),
        ("tuning.weight_affinity", -1),
        ("tuning.weight_fit", "much"),
        ("tuning.notify", "yes"),
        ("tuning.earmark_time", 0),
        ("failure_domain", "zone"),
        ("failure_domain", "label:"),
    ],
)
@pytest.mark.thorough
def test_bad_policies(api: Api, path: str, value: object) -> None:
    key, _, part = path.partition(".")
    policy = {key: {part: value} if part else value}
    assert api.fault("create_queue", queue="bad", policy=policy) == f"policy.{path}"


@pytest.mark.thorough
def test_claims_end_within_a_month(api: Api, queue: str, node: Node) -> None:
    more = {"claim_timeout": "31 days"}
    assert api.fault("create_queue", queue="q", policy=more) == "policy.claim_timeout"
    assert api.fault("spawn_lease", queue=queue, task="t", options=more) == "options.claim_timeout"
    arguments = {**node.who, "queues": [queue], "claim_timeout": timedelta(days=31)}
    assert api.fault("claim_task", **arguments) == "p_claim_timeout"


def test_keys_not_given_stay(api: Api) -> None:
    queue = api.queue(max_attempts=3, patience=7, tuning={"weight_fit": 4})
    policy = api.value(
        "set_queue_policy", queue=queue, policy={"patience": 9, "tuning": {"weight_affinity": 2}}
    )
    assert (policy["max_attempts"], policy["patience"]) == (3, 9)
    weights = {key: policy["tuning"][f"weight_{key}"] for key in ("affinity", "fit", "spread")}
    assert weights == {"affinity": 2, "fit": 4, "spread": 1}
    assert api.listed(queue)["policy"] == policy


def test_it_counts_for_leases_already_spawned(api: Api) -> None:
    queue = api.queue(max_attempts=5)
    claim = api.running(queue)
    api.rows("set_queue_policy", queue=queue, policy={"max_attempts": 1})
    assert api.value("fail_lease", **token(claim), error={}) == "failed"


def test_what_is_refused(api: Api) -> None:
    refusal = api.refused("QHQ01", "set_queue_policy", queue="nowhere", policy={})
    assert refusal.detail["queue"] == "nowhere"
    policy = {"max_attempts": -1}
    assert api.fault("set_queue_policy", queue=api.queue(), policy=policy) == "policy.max_attempts"


def test_a_paused_queue_gives_nothing(api: Api, conn: psycopg.Connection) -> None:
    """Twice is once; resuming it wakes those who wait."""
    queue, other = api.queue(), api.queue()
    node = api.node()
    assert api.claim(node, queue) == []
    api.rows("pause_queue", queue=queue)
    before = api.contents()
    api.rows("pause_queue", queue=queue)
    assert api.contents() == before
    assert [row["paused"] for row in api.rows("list_queues") if row["queue"] == queue] == [True]
    conn.execute("listen hwqueue")
    api.rows("resume_queue", queue=queue)
    assert [n.payload for n in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
    claim = api.running(queue, node)
    api.rows("pause_queue", queue=queue)
    waiting = api.spawn(queue)
    elsewhere = api.spawn(other)
    assert api.claimed(node, queue, other, qty=10) == [elsewhere]
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert api.state(waiting) == "pending"
    api.rows("resume_queue", queue=queue)
    assert api.claimed(node, queue) == [waiting]
    for function in ("pause_queue", "resume_queue"):
        assert api.refused("QHQ01", function, queue="nowhere").detail["queue"] == "nowhere"


@pytest.mark.parametrize("kind", [Api, WarmApi], ids=["cold", "warm"])
def test_a_paused_queue_that_is_asked_alone(conn: psycopg.Connection, kind: type[Api]) -> None:
    """By a node's first claim, and by a later one."""
    api = kind(conn)
    queue, node = api.queue(), api.node()
    waiting = api.spawn(queue)
    api.rows("pause_queue", queue=queue)
    assert api.claim(node, queue) == []
    assert api.claim(node, queue, qty=5) == []
    api.rows("resume_queue", queue=queue)
    assert api.claimed(node, queue) == [waiting]


def purge(api: Api) -> None:
    """Delete what dropped queues held: noted first, deleted once nobody can be on the way."""
    api.rows("prune")
    outlive(api.conn)
    api.rows("prune")


def test_an_empty_queue_goes(api: Api, queue: str) -> None:
    """One of which all leases are finished, too."""
    api.rows("drop_queue", queue=queue)
    assert api.refused("QHQ01", "drop_queue", queue=queue).detail["queue"] == queue
    queue = api.queue()
    claim = api.running(queue, idempotency_key="once")
    api.complete(claim)
    api.rows("drop_queue", queue=queue)
    purge(api)
    assert api.refused("QHL04", "get_lease", lease=claim["lease_id"]).detail


@pytest.mark.parametrize("where", ["ready", "scheduled", "claimed"])
def test_a_lease_keeps_it(api: Api, queue: str, where: str) -> None:
    if where == "claimed":
        api.running(queue)
    else:
        api.spawn(queue, delay=60 if where == "scheduled" else 0)
    for force in ({}, {"force": False}, {"force": None}):
        refusal = api.refused("QHQ03", "drop_queue", queue=queue, **force)
        assert refusal.detail["queue"] == queue


def test_its_name_is_free_at_once(api: Api) -> None:
    queue, node = api.queue(max_attempts=7), api.node()
    lost = api.spawn(queue, idempotency_key="once")
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("create_queue", queue=queue, policy={"max_attempts": 8})
    kept = api.spawn(queue, idempotency_key="once")
    assert kept != lost
    assert api.claimed(node, queue, qty=5) == [kept]
    purge(api)
    assert api.state(kept) == "claimed"


def test_by_force_nothing_of_it_is_left(api: Api) -> None:
    """What runs is asked to stop; then it is in no table, and its room is free again."""
    node = api.node(capacity={"cpu_milli": 1000})
    other = api.queue()
    kept = api.needing(other, cpu_milli=1000)
    purge(api)  # of the tests before
    before = api.contents()
    queue = api.queue()
    failed = api.running(queue)
    api.rows("fail_lease", **token(failed), error={})
    api.spawn(queue, delay=3600, idempotency_key="key")
    api.needing(queue, cpu_milli=1000)
    [running] = api.claim(node, queue, qty=1)
    assert api.claim(node, other) == []
    api.rows("drop_queue", queue=queue, force=True)
    api.rows("reap")
    purge(api)
    assert api.row("get_lease", lease=running["lease_id"])["stop_reason"] == "cancelled"
    assert api.value("release_lease", **token(running)) == "cancelled"
    purge(api)
    after = api.contents()
    tables = ["queue", "queue_signal", "lease", "ready", "scheduled", "claim", "attempt"]
    for table in [*tables, "idempotency", "placement_class"]:
        assert after[table][0] == before[table][0], table  # as many rows as before
    assert api.claimed(node, other) == [kept]
