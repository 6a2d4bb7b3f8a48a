"""A node belongs to the login that registered it, and its claims with it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node, beat, completed, read_refusal, refusing, settlement, token
from tests.sql.logins import OPERATOR, WORKER, Logins
from tests.sql.test_roles import MAY_CALL

pytestmark = pytest.mark.thorough

MINUTE = timedelta(minutes=1)


@dataclass
class Scene:
    """What one worker login has, and a connection of another."""

    owner: Api
    login: str
    other: Api
    other_login: str
    queue: str
    node: Node
    claim: Row
    counted: Row  # a claim for which something is set aside


@pytest.fixture
def scene(api: Api, logins: Logins) -> Scene:
    """Two worker logins; a node of the first runs two leases, one of them counted."""
    login, owner = logins.api(WORKER)
    other_login, other = logins.api(WORKER)
    queue = api.queue()
    node = owner.node(capacity={"cpu_milli": 4000}, heartbeat_timeout="1 day")
    api.spawn(queue)
    api.needing(queue, cpu_milli=1000)
    claim, counted = owner.claim(node, queue, qty=2)
    assert counted["assignment"] is not None
    for _ in range(3):
        api.spawn(queue)
    return Scene(owner, login, other, other_login, queue, node, claim, counted)


def _settle(scene: Scene, **more: Any) -> Row:
    return {**scene.node.who, "settle": [], "queues": [scene.queue], **more}


def _registration(scene: Scene, **more: Any) -> Row:
    spec = {"name": scene.node.name, "instance_id": "first"} | more
    return {"node": scene.node.node_id, "spec": spec}


# What a worker calls for a node, by function, with a note where there are several calls of one.
FOR_A_NODE: dict[str, Callable[[Scene], Row]] = {
    "register_node": _registration,
    "register_node again": lambda s: _registration(s, instance_id="evil"),
    "register_node keeping claims": lambda s: _registration(s, instance_id="evil", keep_claims=True),
    "heartbeat_node": lambda s: {**s.node.who, "claims": beat(s.claim, s.counted)},
    "heartbeat_node alone": lambda s: s.node.who,
    "heartbeat_node at another epoch": lambda s: {"node": s.node.node_id, "epoch": 7},
    "claim_task": lambda s: {**s.node.who, "queues": [s.queue]},
    "claim_task of many": lambda s: {**s.node.who, "queues": [s.queue], "qty": 3},
    "claim_task at another epoch": lambda s: {"node": s.node.node_id, "epoch": 7, "queues": [s.queue]},
    "settle_and_claim": _settle,
    "settle_and_claim of a list": lambda s: _settle(s, settle=[settlement(s.claim)]),
    "settle_and_claim of completions": lambda s: _settle(s, qty=0, **completed(s.claim, s.counted)),
    "deregister_own_node": lambda s: s.node.who,
    "node_wake_payload": lambda s: {"node": s.node.node_id},
    "claim_hint": lambda s: {"node": s.node.node_id, "queues": [s.queue]},
    "take_deaths": lambda s: s.node.who,
    "lease_outlook": lambda s: {"node": s.node.node_id, "lease_ids": [s.claim["lease_id"]]},
}
# What it calls for a claim alone, beside the claim.
FOR_A_CLAIM: dict[str, Row] = {
    "complete_lease": {},
    "complete_lease with a result": {"result": {"a": 1}},
    "fail_lease": {"error": {}, "retry": False},
    "release_lease": {},
    "extend_claim": {"extend": MINUTE},
    "save_checkpoint": {"name": "a"},
    "checkpoints": {},
    "take_signal": {"signal": "a"},
    "suspend_lease": {"signal": "a"},
}
# Neither: these are for everybody's leases, or show queues.
FOR_NOBODY = {
    *("reap", "prune", "list_queues", "schema_version", "complete_leases"),
    "compare_tasks",
    "gang_status",  # of a member alone: test_adopted_work_belongs_to_the_nodes_login
    "wake_payloads",
    *("advance_workflows", "take_ended_runs", "due_plans", "plan_schedule"),
    *("step_results", "run_input"),  # of the run of a claim alone: test_step_results.py
    "report_progress",  # leaves out the claims of other logins: test_report_progress.py
    "append_logs",  # as well: test_append_logs.py
    "add_items",  # to the step of a claim alone: test_added_items.py
    "add_steps",  # as well: test_added_steps.py
    "throttle_limit",  # closes a lane, whoever has claims of it: test_limits.py
    *("register_bound_node", "enter_node"),  # of a token: test_worker_tokens.py
}


def test_the_tables_here_have_all_that_workers_may_call() -> None:
    """A function that workers are granted anew has to be tried with another login, too."""
    tried = {how.partition(" ")[0] for how in (*FOR_A_NODE, *FOR_A_CLAIM)}
    assert tried | FOR_NOBODY == {name for name, roles in MAY_CALL.items() if WORKER in roles}


def test_another_login_takes_nothing_from_the_head_of_a_queue(api: Api, scene: Scene) -> None:
    """Where a claim looks at little else."""
    claim = {**scene.node.who, "queues": [scene.queue]}
    for _ in range(4):
        api.spawn(scene.queue)
        assert len(scene.owner.rows("claim_task", **claim)) == 1
    api.spawn(scene.queue)
    before = api.contents()
    with refusing("QHN04"):
        scene.other.rows("claim_task", **claim)
    assert api.contents() == before


@pytest.mark.parametrize("how", FOR_A_NODE)
def test_another_login_does_nothing_for_a_node(api: Api, scene: Scene, how: str) -> None:
    function, arguments = how.partition(" ")[0], FOR_A_NODE[how](scene)
    before = api.contents()
    with refusing("QHN04"):
        scene.other.rows(function, **arguments)
    assert api.contents() == before
    scene.owner.rows(function, **arguments | ({"epoch": 1} if "another" in how else {}))


@pytest.mark.parametrize("which", ["claim", "counted"])
@pytest.mark.parametrize("how", FOR_A_CLAIM)
def test_another_login_does_nothing_to_a_claim(api: Api, scene: Scene, how: str, which: str) -> None:
    function, arguments = how.partition(" ")[0], token(getattr(scene, which)) | FOR_A_CLAIM[how]
    before = api.contents()
    with pytest.raises(psycopg.Error) as caught:
        scene.other.rows(function, **arguments)
    refusal = read_refusal(caught.value)
    assert refusal.code == "QHL08", refusal
    assert scene.login in refusal.message
    assert "hand_over_node" in refusal.hint
    assert api.contents() == before
    scene.owner.rows(function, **arguments)


def test_adopted_work_belongs_to_the_nodes_login(scene: Scene, logins: Logins) -> None:
    """And another login reads no gang."""
    _, operator = logins.api(OPERATOR)
    adopted = operator.row("adopt_lease", queue=scene.queue, node=scene.node.node_id, task="t")
    with refusing("QHL08"):
        scene.other.value("complete_lease", **token(adopted))
    with refusing("QHL08"):
        scene.other.rows("gang_status", **token(scene.claim))
    with refusing("QHG01"):
        scene.owner.rows("gang_status", **token(scene.claim))
    assert scene.owner.value("complete_lease", **token(adopted)) == "completed"
    operator.row("claim_hint", queues=[scene.queue], node=scene.node.node_id)  # of any node


@pytest.mark.parametrize("which", ["claim", "counted"])
def test_in_a_batch_anothers_claim_is_a_bad_token(api: Api, scene: Scene, which: str) -> None:
    """Like the claim of another node: the others of the batch are settled."""
    claim: Row = getattr(scene, which)
    mine = scene.other.node()
    [own] = scene.other.claim(mine, scene.queue)
    [row] = scene.other.rows(
        "complete_leases",
        lease_ids=[claim["lease_id"], own["lease_id"]],
        tokens=completed(claim, own)["completed_tokens"],
    )
    assert (row["ordinal"], row["verdict"], row["state"]) == (1, "bad_token", "claimed")
    assert api.state(own["lease_id"]) == "completed"
    both: Row = {"settle": [settlement(claim), settlement(claim, "fail", error={})]}
    for settle in (both, {"settle": [], **completed(claim)}):
        rows = scene.other.rows("settle_and_claim", **mine.who, queues=[scene.queue], qty=0, **settle)
        assert {row["verdict"] for row in rows} == {"bad_token"}
    assert api.state(claim["lease_id"]) == "claimed"


def test_a_heartbeat_of_ones_own_node_extends_no_claim_of_anothers(
    api: Api, scene: Scene, clock: Clock
) -> None:
    mine = scene.other.node()
    clock.advance(timedelta(seconds=5))
    [row] = scene.other.rows("heartbeat_node", **mine.who, claims=beat(scene.claim))
    assert (row["verdict"], row["expires_at"]) == ("lost", None)
    assert api.lease(scene.claim["lease_id"])["expires_at"] == scene.claim["expires_at"]


def test_anothers_counted_claim_is_not_locked_in_a_batch(api: Api, scene: Scene) -> None:
    """Nobody holds up another login's node from an open transaction."""
    tokens = completed(scene.counted)["completed_tokens"]
    with scene.other.conn.transaction():
        [row] = scene.other.rows("complete_leases", lease_ids=[scene.counted["lease_id"]], tokens=tokens)
        assert row["verdict"] == "bad_token"
        api.conn.execute(
            "select from hwqueue.node_state where node_id = %s for no key update nowait", [scene.node.node_id]
        )


def test_a_member_of_the_owning_role_acts_for_the_node(api: Api, queue: str, logins: Logins) -> None:
    """Logins that rotate: each has a role, and an operator gives the role the node."""
    group = logins.role(WORKER)
    first_login, first = logins.api(group)
    node = first.node()
    api.rows("hand_over_node", node=node.node_id, login=group)
    [one, two] = [_spawned_and_claimed(api, first, queue, node) for _ in range(2)]
    first.conn.close()
    logins.drop(first_login)
    _, second = logins.api(group)
    assert second.value("complete_lease", **token(one)) == "completed"
    second.rows("heartbeat_node", **node.who, claims=beat(two))
    again = second.node(node.node_id, name=node.name, instance_id="second")
    assert again.epoch == node.epoch + 1
    assert api.used(node)["login"] == group  # it stays the role's
    assert api.rows("verify_invariants") == []


def _spawned_and_claimed(api: Api, worker: Api, queue: str, node: Node) -> Row:
    api.spawn(queue)
    [claim] = worker.claim(node, queue)
    return claim


def test_a_role_that_is_gone_is_nobodys(api: Api, queue: str, logins: Logins) -> None:
    """Dropped, or never on the server that a dump was restored on; a superuser passes all the same."""
    login, owner = logins.api(WORKER)
    _, other = logins.api(WORKER)
    node = owner.node()
    claim = _spawned_and_claimed(api, owner, queue, node)
    owner.conn.close()
    logins.drop(login)
    with pytest.raises(psycopg.Error) as caught:
        other.rows("heartbeat_node", **node.who)
    refusal = read_refusal(caught.value)
    assert refusal.code == "QHN04"
    assert "does not exist" in refusal.hint
    assert "hand_over_node" in refusal.hint
    with refusing("QHL08"):
        other.rows("complete_lease", **token(claim))
    api.rows("heartbeat_node", **node.who)
    node = api.node(node.node_id, name=node.name, instance_id="second", keep_claims=True)
    assert api.used(node)["login"] == login
    new_login, new = logins.api(WORKER)
    operator_login, operator = logins.api(OPERATOR)
    operator.rows("hand_over_node", node=node.node_id, login=new_login)
    assert new.value("complete_lease", **token(claim)) == "completed"
    [event] = api.rows("list_events", filter={"code": "node_handed_over"}, limit=1)
    assert (event["node_id"], event["detail"]) == (node.node_id, {"from": login, "to": new_login})
    assert event["actor"] == operator_login


def test_who_is_handed_a_node_gets_its_claims(api: Api, scene: Scene) -> None:
    for _ in range(2):  # the second time is no news
        api.rows("hand_over_node", node=scene.node.node_id, login=scene.other_login)
    events = api.rows("list_events", filter={"node": str(scene.node.node_id)})
    assert [event["code"] for event in events].count("node_handed_over") == 1
    assert api.rows("verify_invariants") == []
    with refusing("QHN04"):
        scene.owner.rows("heartbeat_node", **scene.node.who)
    with refusing("QHL08"):
        scene.owner.rows("complete_lease", **token(scene.claim))
    assert scene.other.value("complete_lease", **token(scene.claim)) == "completed"
    assert scene.other.value("complete_lease", **token(scene.counted)) == "completed"
    assert len(scene.other.claim(scene.node, scene.queue, qty=9)) == 3


def test_handing_over_to_nobody(api: Api, scene: Scene) -> None:
    """Nor does a worker hand over, or confirm."""
    node = {"node": scene.node.node_id}
    for login in (None, "", "no such role", "x" * 200):
        assert api.refused("QHA01", "hand_over_node", **node, login=login).field == "p_login"
    for function, more in (("hand_over_node", {"login": scene.login}), ("confirm_node", {})):
        with refusing("42501"):
            scene.owner.rows(function, **node, **more)


def test_deregistered_nodes_are_nobodys(api: Api, scene: Scene) -> None:
    """Another login may take the name of a machine that an operator took out."""
    api.rows("deregister_node", node=scene.node.node_id)
    node = scene.other.node(scene.node.node_id, name=scene.node.name)
    assert node.epoch == scene.node.epoch + 1
    assert api.used(node)["login"] == scene.other_login
    with refusing("QHN04"):
        scene.owner.rows("claim_task", **node.who, queues=[scene.queue])


def test_a_claim_that_is_not_as_its_node_is_found(api: Api, scene: Scene) -> None:
    api.conn.execute("update hwqueue.claim set login = 'x' where lease_id = %s", [scene.claim["lease_id"]])
    [broken] = [row for row in api.rows("verify_invariants") if row["rule"] == "claim_login"]
    assert broken["subject"] == str(scene.claim["lease_id"])
    assert broken["detail"]["expected"] == scene.login
