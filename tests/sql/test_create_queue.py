"""create_queue: once, again, and with another policy."""

from datetime import timedelta

import pytest

from hwqueue.worker import WorkerSettings
from tests.sql.api import Api, Node

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
