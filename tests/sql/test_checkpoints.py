"""Durable steps: what claims save, what suspends a lease, the signals that wake it, the node it was on."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, step
from tests.sql.api import NOBODY, Api, Node, settlement, token

HOUR = timedelta(hours=1)
LOST, FINISHED = "QHL01", "QHL03"


@pytest.fixture
def queue(api: Api) -> str:
    """A queue whose leases are tried again at once."""
    return api.queue(retry={"kind": "fixed", "base": 0, "jitter": 0}, max_params_bytes=1000)


@pytest.fixture
def claim(api: Api, queue: str) -> Row:
    return api.running(queue)


def save(api: Api, claim: Row, name: str, state: Any = None, **more: Any) -> Any:
    return api.value("save_checkpoint", **token(claim), name=name, state=Jsonb(state), **more)


def saved(api: Api, claim: Row) -> dict[str, Any]:
    """The states of what has ended, by name."""
    rows = api.rows("checkpoints", **token(claim))
    return {row["name"]: row["state"] for row in rows if row["status"] != "open"}


def suspend(api: Api, claim: Row, **wait: Any) -> str:
    state = api.value("suspend_lease", **token(claim), **wait)
    assert isinstance(state, str)
    return state


def signal(api: Api, claim: Row, name: str = "packed", payload: Any = None, **more: Any) -> Row:
    lease = claim["lease_id"]
    return api.row("signal_lease", lease=lease, name=name, payload=Jsonb(payload), **more)


def take(api: Api, claim: Row, **more: Any) -> tuple[str, Any]:
    """Take a signal of the lease: what was found, and the payload."""
    row = api.row("take_signal", **token(claim), signal="packed", **more)
    return row["verdict"], row["payload"]


def again(api: Api, claim: Row) -> Row:
    """The next claim of the only lease that its queue has."""
    [row] = api.claim(api.node(), claim["queue"])
    return row


def test_the_next_claim_has_what_the_last_one_saved(api: Api, claim: Row) -> None:
    save(api, claim, "charge", {"id": 7})
    save(api, claim, "mail")
    api.value("fail_lease", **token(claim), error={"message": "no"})
    second = again(api, claim)
    assert saved(api, second) == {"charge": {"id": 7}, "mail": None}
    save(api, second, "charge", {"id": 8})
    assert saved(api, second) == {"charge": {"id": 8}, "mail": None}


def test_a_stale_claim_neither_writes_nor_reads(api: Api, claim: Row) -> None:
    api.value("fail_lease", **token(claim), error={"message": "no"})
    calls: dict[str, Row] = {
        "save_checkpoint": {"name": "a", "state": Jsonb(1)},
        "checkpoints": {},
        "take_signal": {"signal": "a"},
        "suspend_lease": {"signal": "a"},
    }
    for function, arguments in calls.items():
        api.refused(LOST, function, **token(claim), **arguments)
    again(api, claim)
    for function, arguments in calls.items():
        api.refused(LOST, function, **token(claim), **arguments)


def test_a_checkpoint_extends_its_claim_and_never_shortens_it(api: Api, claim: Row) -> None:
    assert save(api, claim, "a") == claim["expires_at"]
    longer = save(api, claim, "a", extend=HOUR)
    assert longer > claim["expires_at"]
    assert save(api, claim, "a", extend=timedelta(seconds=1)) == longer
    assert api.lease(claim["lease_id"])["expires_at"] == longer


def test_a_suspension_uses_no_attempt(api: Api, claim: Row, clock: Any) -> None:
    until = clock.now() + HOUR
    assert suspend(api, claim, until=until) == "scheduled"
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["available_at"]) == ("scheduled", until)
    headline = api.row("explain_lease", lease=claim["lease_id"])["headline"]
    assert headline == "suspended: its handler goes on in 1 h 00 min"
    clock.advance(HOUR)
    second = again(api, claim)
    assert second["attempt"] == claim["attempt"]
    assert saved(api, second) == {"sleep": None}


def test_a_sleep_that_was_cut_short_goes_on_until_its_own_time(api: Api, claim: Row, clock: Any) -> None:
    until = clock.now() + HOUR
    suspend(api, claim, until=until)
    sooner = {"available_at": "2000-01-01T00:00Z"}
    api.value("update_lease", lease=claim["lease_id"], changes=sooner)
    second = again(api, claim)
    assert saved(api, second) == {}
    assert suspend(api, second, until=until + HOUR) == "scheduled"
    assert api.lease(claim["lease_id"])["available_at"] == until


def test_a_signal_wakes_the_lease_that_waits_for_it(api: Api, claim: Row) -> None:
    assert take(api, claim) == ("none", None)
    assert suspend(api, claim, signal="packed") == "scheduled"
    assert signal(api, claim, "other")["state"] == "scheduled"
    assert signal(api, claim, payload={"by": "ann"})["state"] == "pending"
    second = again(api, claim)
    assert take(api, second) == ("taken", {"by": "ann"})
    assert saved(api, second) == {"packed": {"by": "ann"}}
    assert take(api, second) == ("taken", {"by": "ann"}), "the answer was lost: asked again"
    assert take(api, second, name="packed#2") == ("none", None), "it is taken once"


def test_a_signal_before_the_wait_is_kept(api: Api, queue: str) -> None:
    lease = {"lease_id": api.spawn(queue), "queue": queue}
    assert signal(api, lease, payload=1)["state"] == "pending"
    first = again(api, lease)
    assert signal(api, first, payload=2)["state"] == "claimed"
    assert take(api, first) == ("taken", 1)
    assert suspend(api, first, signal="packed", name="packed#2") == "pending"
    assert take(api, again(api, lease), name="packed#2") == ("taken", 2)


def test_a_wait_that_times_out_has_no_payload(api: Api, claim: Row, clock: Any) -> None:
    suspend(api, claim, signal="packed", until=clock.now() + HOUR)
    clock.advance(HOUR)
    second = again(api, claim)
    assert take(api, second) == ("timed_out", None)
    assert [row["status"] for row in api.rows("checkpoints", **token(second))] == ["timed_out"]
    signal(api, claim, payload=1)
    assert take(api, second) == ("timed_out", None), "it has ended"
    assert take(api, second, name="packed#2") == ("taken", 1)
    suspend(api, second, signal="packed", name="packed#3", until=clock.now() + HOUR)
    clock.advance(HOUR)
    api.value("release_lease", **token(again(api, claim)), delay=HOUR)
    assert signal(api, claim)["state"] == "scheduled"  # put back otherwise it is not woken


def test_a_wait_without_timeout_lasts_for_years(api: Api, claim: Row, clock: Any) -> None:
    suspend(api, claim, signal="packed")
    api.reap_after(clock, timedelta(days=3000))
    assert api.state(claim["lease_id"]) == "scheduled"
    assert signal(api, claim)["state"] == "pending"


def test_the_same_key_reaches_a_lease_once(api: Api, claim: Row) -> None:
    assert [signal(api, claim, payload=n, key="k")["created"] for n in (1, 2)] == [True, False]
    assert take(api, claim) == ("taken", 1)
    assert not signal(api, claim, key="k")["created"], "taken, and still remembered"
    assert signal(api, claim, "other", key="k")["created"]
    assert take(api, claim, name="again") == ("none", None)
    api.complete(claim)  # finished it takes no signal
    payload = Jsonb(None)
    api.refused(FINISHED, "signal_lease", lease=claim["lease_id"], name="packed", payload=payload)
    assert signal(api, claim, key="k") == {"created": False, "state": "completed"}
    api.refused("QHL04", "signal_lease", lease=NOBODY, name="packed")


def test_cancelled_and_requeued_leases_wait_no_more(api: Api, claim: Row) -> None:
    """One that is about to be cancelled is not suspended."""
    stopping = api.running(api.queue())
    api.value("cancel_lease", lease=stopping["lease_id"])
    assert suspend(api, stopping, signal="packed") == "cancelled"
    save(api, claim, "charge", 1)
    suspend(api, claim, signal="packed")
    api.value("cancel_lease", lease=claim["lease_id"])
    assert api.value("requeue_lease", lease=claim["lease_id"]) == "pending"
    assert not any(row["is_suspended"] for row in listed(api, claim))
    assert saved(api, again(api, claim)) == {"charge": 1}


def listed(api: Api, claim: Row) -> list[Row]:
    """What people are shown."""
    return api.rows("lease_checkpoints", lease=claim["lease_id"])


def test_people_see_names_sizes_and_what_a_lease_waits_for(api: Api, claim: Row, clock: Any) -> None:
    save(api, claim, "charge", "x" * 100)
    clock.advance(timedelta(minutes=1))
    until = clock.now() + HOUR
    suspend(api, claim, signal="packed", until=until)
    wait, charge = listed(api, claim)
    assert (charge["name"], charge["is_open"], charge["is_suspended"]) == ("charge", False, False)
    assert 100 <= charge["bytes"] <= 120
    told = {"name": "packed", "waits_for": "packed", "waits_until": until, "bytes": 0}
    assert {name: wait[name] for name in told} == told
    assert (wait["is_open"], wait["is_suspended"]) == (True, True)
    row = api.row("explain_lease", lease=claim["lease_id"])
    assert row["headline"] == ('suspended: its handler waits for signal "packed", for 1 h 00 min at most')


def test_a_batch_suspends_beside_other_settlements(api: Api, node: Node, queue: str) -> None:
    claims = [api.running(queue, node) for _ in range(2)]
    settle = [settlement(claims[0], "suspend", delay=60, name="nap"), settlement(claims[1])]
    rows = api.rows("settle_and_claim", **node.who, settle=settle, queues=[queue], qty=0)
    states = [row["state"] for row in sorted(rows, key=lambda row: int(row["ordinal"]))]
    assert states == ["scheduled", "completed"]
    assert [row["name"] for row in listed(api, claims[0])] == ["nap"]


@pytest.mark.parametrize("retain", [0, 60])
def test_they_go_with_the_lease(api: Api, clock: Any, retain: int) -> None:
    claim = api.running(api.queue(retain_completed=retain), api.node())
    save(api, claim, "charge")
    signal(api, claim)
    api.complete(claim)
    assert api.rows("verify_invariants") == []
    api.prune_after(clock, timedelta(hours=2))
    for table in ("checkpoint", "lease_signal"):
        left = f"select from hwqueue.{table} where lease_id = %s"
        assert api.conn.execute(left, [claim["lease_id"]]).rowcount == 0


def test_a_checkpoint_without_a_lease_breaks_an_invariant(api: Api, claim: Row) -> None:
    save(api, claim, "charge")
    lose = "update hwqueue.checkpoint set lease_id = %s where lease_id = %s"
    with api.conn.transaction(force_rollback=True):
        api.conn.execute(lose, [NOBODY, claim["lease_id"]])
        [broken] = api.rows("verify_invariants")
    assert (broken["rule"], broken["subject"]) == ("checkpoint_lease", str(NOBODY))
    assert broken["detail"] == {"table": "checkpoint", "rows": 1}


def test_a_lease_has_so_many_checkpoints_and_signals(api: Api, conn: psycopg.Connection, claim: Row) -> None:
    conn.execute(
        "insert into hwqueue.checkpoint"
        " (lease_id, name, claim_token, saved_at, is_open, number)"
        " select %s, n::text, 1, now(), false, n from generate_series(1, 9999) n",
        [claim["lease_id"]],
    )
    conn.execute(
        "insert into hwqueue.lease_signal (lease_id, number, name, sent_at) values (%s, 10000, 'a', now())",
        [claim["lease_id"]],
    )
    state = Jsonb(1)
    save(api, claim, "the last")
    api.refused("QHA01", "save_checkpoint", **token(claim), name="one more", state=state)
    save(api, claim, "7", 1)
    api.refused("QHA01", "suspend_lease", **token(claim), signal="one more")
    api.refused("QHA01", "signal_lease", lease=claim["lease_id"], name="a")


@pytest.mark.parametrize(
    ("function", "said", "field"),
    [
        ("save_checkpoint", {"name": "", "state": Jsonb(1)}, "p_name"),
        ("save_checkpoint", {"name": None, "state": Jsonb(1)}, "p_name"),
        ("save_checkpoint", {"name": "x" * 201, "state": Jsonb(1)}, "p_name"),
        ("save_checkpoint", {"name": "a", "state": Jsonb("x" * 1001)}, "p_state"),
        ("save_checkpoint", {"name": "a", "state": None, "extend": timedelta(0)}, "p_extend"),
        ("take_signal", {"signal": ""}, "p_signal"),
        ("take_signal", {"signal": "a", "name": ""}, "p_name"),
        ("suspend_lease", {}, "p_signal"),
        ("suspend_lease", {"signal": ""}, "p_signal"),
        ("suspend_lease", {"signal": "a", "name": "x" * 201}, "p_name"),
        ("suspend_lease", {"until": "infinity"}, "p_until"),
    ],
)
@pytest.mark.thorough
def test_bad_arguments_of_a_claim(api: Api, claim: Row, function: str, said: Row, field: str) -> None:
    assert api.fault(function, **token(claim), **said) == field


@pytest.mark.thorough
def test_bad_signals_and_pages(api: Api, claim: Row) -> None:
    lease = {"lease": claim["lease_id"]}
    assert api.fault("signal_lease", **lease, name="") == "p_name"
    for key in ("", "x" * 256):
        assert api.fault("signal_lease", **lease, name="a", key=key) == "p_key"
    assert api.fault("signal_lease", **lease, name="a", payload=Jsonb("x" * 1001)) == "p_payload"
    api.refused("QHL04", "lease_checkpoints", lease=NOBODY)


LONG_AGO = "2001-01-01 00:00:00+00"


class Shop:
    """A queue whose leases wait a minute for a better node, and two nodes."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.api = api
        self.queue = api.queue(patience=60, max_attempts=9, retry={"kind": "fixed", "base": 0})
        self.nodes = [api.node(), api.node()]
        self.lease = api.spawn(self.queue, **options)

    def claim(self, node: int) -> Row:
        [row] = self.api.claim(self.nodes[node], self.queue)
        assert row["lease_id"] == self.lease
        return row

    def suspend(self, node: int, near: str | None = "self") -> None:
        """Let a node run it until its handler sleeps, until a time that is over."""
        claim = self.claim(node)
        state = self.api.value("suspend_lease", **token(claim), until=LONG_AGO, near=near)
        assert state == "pending"

    def prefers(self) -> list[UUID]:
        wishes = self.api.lease(self.lease)["placement"].get("prefer", [])
        return [UUID(wish["when"][0]["node"][0]) for wish in wishes]

    def waits_for(self) -> int:
        """The node that gets it while the other one asks first."""
        for node in (0, 1):
            if self.api.claim(self.nodes[node], self.queue):
                return node
        raise AssertionError("nobody may have it")


@pytest.mark.parametrize("node", [0, 1])
def test_it_waits_for_the_node_that_it_was_on(api: Api, node: int) -> None:
    """Whether it says so alone or in a batch of settlements."""
    shop = Shop(api)
    shop.suspend(node)
    assert shop.prefers() == [shop.nodes[node].node_id]
    assert shop.waits_for() == node
    other = Shop(api)
    claim = other.claim(node)
    waits = settlement(claim, "suspend", signal="go", near="self")
    api.rows("settle_and_claim", **other.nodes[node].who, settle=[waits], queues=[other.queue], qty=0)
    assert other.prefers() == [other.nodes[node].node_id]
    claim = Shop(api).claim(0)
    for near in ("", "rack", "x"):
        refusal = api.refused("QHA01", "suspend_lease", **token(claim), signal="go", near=near)
        assert refusal.field == "p_near"


def test_another_node_takes_it_when_its_patience_is_over(api: Api, clock: Clock) -> None:
    """From then on that is the node which it prefers, also with as many expressions as fit beside one."""
    own = [{"label": f"l{n}", "op": "does_not_exist"} for n in range(199)]
    shop = Shop(api, placement={"require": [*own[:99], {"any": [own[99:]]}]})
    shop.suspend(0)
    assert api.claim(shop.nodes[1], shop.queue) == []
    clock.advance(timedelta(seconds=61))
    shop.nodes = [api.node(node.node_id, name=node.name, instance_id="2") for node in shop.nodes]
    shop.suspend(1)
    assert shop.prefers() == [shop.nodes[1].node_id]


def test_the_preference_is_for_one_claim(api: Api, clock: Clock) -> None:
    """Whichever way that ends."""
    shop = Shop(api)
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    shop.suspend(0, near=None)
    assert (shop.prefers(), api.lease(shop.lease)["placement"]) == ([], plain)
    for end in ("fail_lease", "release_lease", "requeue_lease", "reap"):
        shop.suspend(0)
        assert shop.prefers() == [shop.nodes[0].node_id]
        claim = shop.claim(0)
        if end == "reap":
            api.reap_after(clock, timedelta(hours=1))
        elif end == "release_lease":
            api.rows(end, **token(claim))
        else:
            api.rows("fail_lease", **token(claim), error={}, retry=end == "fail_lease")
        if end == "requeue_lease":
            api.rows(end, lease=shop.lease)
        assert (api.state(shop.lease), shop.prefers()) == ("pending", [])


def test_leases_of_a_node_share_a_class(api: Api) -> None:
    """And a placement that is full is left as it is."""
    shop = Shop(api)
    shop.suspend(0)
    before = api.contents()["placement_class"]
    shop.lease, first = api.spawn(shop.queue), shop.lease
    api.rows("cancel_lease", lease=first)
    shop.suspend(0)
    assert api.contents()["placement_class"] == before
    wishes = [{"when": [{"label": "zone", "op": "in", "values": [n]}], "weight": 1} for n in range(100)]
    shop = Shop(api, placement={"prefer": wishes})
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    assert api.lease(shop.lease)["placement"] == plain


def test_what_a_lease_prefers_by_itself_stays(api: Api) -> None:
    """Also where its placement is changed meanwhile."""
    own = {"prefer": [{"when": [{"label": "zone", "op": "in", "values": ["a"]}], "weight": 5}]}
    shop = Shop(api, placement=own)
    plain = api.lease(shop.lease)["placement"]
    shop.suspend(0)
    assert len(api.lease(shop.lease)["placement"]["prefer"]) == 2
    shop.suspend(0, near=None)
    assert api.lease(shop.lease)["placement"] == plain
    shop = Shop(api)
    shop.suspend(0)
    api.rows("update_lease", lease=shop.lease, changes={"priority": 3})
    assert shop.prefers() == [shop.nodes[0].node_id]
    wish = {"when": [{"node": [str(shop.nodes[0].node_id)]}], "weight": 100}
    api.rows("update_lease", lease=shop.lease, changes={"placement": {"prefer": [wish]}})
    for near in (None, "self", None):
        shop.suspend(0, near=near)
        assert shop.prefers() == [shop.nodes[0].node_id], "it has always preferred that node"


def test_a_step_that_a_retry_runs_again_prefers_no_node(api: Api) -> None:
    flow = Flow(api, [step("a")])
    [claim] = flow.claims().values()
    api.rows("suspend_lease", **token(claim), signal="go", near="self")
    api.rows("signal_lease", lease=claim["lease_id"], name="go")
    assert api.lease(claim["lease_id"])["placement"]["prefer"]
    flow.complete("a")
    api.rows("retry_workflow_run", run=flow.run, options={"mode": "all"})
    assert api.lease(claim["lease_id"])["placement"] == {}
    [claim] = flow.claims().values()
    api.rows("release_lease", **token(claim))
    assert api.lease(claim["lease_id"])["placement"] == {}
