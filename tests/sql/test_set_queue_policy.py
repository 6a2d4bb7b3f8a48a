"""set_queue_policy: changes what is given and keeps the rest."""

from tests.sql.api import Api, token


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
