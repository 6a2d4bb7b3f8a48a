"""Every event is written once, in the transaction of what it tells, with who did it."""

from uuid import uuid4

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql import event_cases
from tests.sql.api import Api, token
from tests.sql.event_cases import FIND_OUT, MINUTE, NO_EXECUTE, TURN, WATCH_THE_LAST, Stage
from tests.sql.gang_event_cases import GANG_CASES
from tests.unit.test_links import codes_in_sql

CASES = event_cases.CASES | GANG_CASES
pytestmark = pytest.mark.thorough


@pytest.fixture
def stage(api: Api, clock: Clock) -> Stage:
    """The stage of a case; what reap had to tell of the test before is told."""
    made = Stage(api, clock)
    api.leave_all()
    for row in api.rows("list_queues"):
        api.rows("drop_queue", queue=row["queue"], force=True)
    made.reap()
    return made


def newest(api: Api) -> int:
    event_id = api.rows("list_events", limit=1)[0]["event_id"]
    assert isinstance(event_id, int)
    return event_id


def since(api: Api, event_id: int, code: str | None = None) -> list[Row]:
    """Events written after another, oldest first; this is the only session that writes any."""
    rows = api.rows("list_events", filter={"code": code}, limit=1000)
    return [row for row in rows if row["event_id"] > event_id][::-1]


def of_queue(queue: str, events: list[Row]) -> list[Row]:
    """Those about the queue: of other tests' queues leases may be left, and nodes gone."""
    return [event for event in events if event["queue"] == queue]


@pytest.mark.parametrize("code", CASES)
def test_each_is_told_once(stage: Stage, code: str) -> None:
    before = newest(stage.api)
    expected = CASES[code](stage)
    [event] = since(stage.api, before, code)
    assert event | expected == event
    assert event["message"]
    assert event["actor"] == event["login"] == stage.api.one("select session_user")
    assert event["at"] <= stage.clock.now()


def test_there_is_a_case_for_every_code(api: Api) -> None:
    """But for that of an installation, which is told in each database."""
    assert CASES.keys() | {"schema_upgraded"} == codes_in_sql()
    [event] = api.rows("list_events", filter={"code": "schema_upgraded"})
    assert event["detail"]["revision"] == api.one("select revision from hwqueue.schema_info")


def test_what_is_rolled_back_is_not_told(stage: Stage) -> None:
    queue, before = stage.api.queue(), newest(stage.api)
    with stage.api.conn.transaction(force_rollback=True):
        stage.api.rows("pause_queue", queue=queue)
        assert len(since(stage.api, before)) == 1
    assert since(stage.api, before) == []


def test_work_as_usual_is_not_told(stage: Stage) -> None:
    """Spawns, claims, completions, heartbeats, releases and attempts that are tried again."""
    api = stage.api
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    before = newest(api)
    for counted in ({}, {"resources": {"cpu_milli": 1}}):
        for end in ("complete_lease", "fail_lease", "release_lease"):
            claim = api.running(queue, node, placement=counted)
            api.rows("heartbeat_node", **node.who)
            more: Row = {"error": {}} if end == "fail_lease" else {}
            api.rows(end, **token(claim), **more)
            if end == "release_lease":
                api.rows("cancel_lease", lease=claim["lease_id"])
    assert [row["code"] for row in since(api, before)] == ["lease_cancelled"] * 2


def test_who_did_it(stage: Stage, conn: psycopg.Connection) -> None:
    """Whoever the transaction says; in the next one it is the login again."""
    queue, before = stage.api.queue(), newest(stage.api)
    with conn.transaction():
        conn.execute("select set_config('hwqueue.actor', 'ann', true)")
        stage.api.rows("pause_queue", queue=queue)
    stage.api.rows("resume_queue", queue=queue)
    with conn.transaction():
        conn.execute("select set_config('hwqueue.actor', %s, true)", ["x" * 500])
        stage.api.rows("pause_queue", queue=queue)
    actors = [event["actor"] for event in since(stage.api, before)]
    assert actors == ["ann", conn.info.user, "x" * 200]


def test_the_end_of_what_was_told_to_stop(stage: Stage) -> None:
    """And of a lease whose last attempt expires."""
    queue, _, claim = stage.running()
    before = newest(stage.api)
    for _ in range(2):
        stage.api.rows("cancel_lease", lease=claim["lease_id"])
    stage.api.rows("release_lease", **token(claim))
    events = since(stage.api, before)
    assert [event["code"] for event in events] == ["claim_stop_requested", "lease_cancelled"]
    assert {event["queue"] for event in events} == {queue}
    _, _, claim = stage.running(max_attempts=1)
    before = newest(stage.api)
    stage.clock.advance(MINUTE)
    stage.api.rows("reap")
    events = [event for event in since(stage.api, before) if event["lease_id"]]
    assert [event["code"] for event in events] == ["claim_expired", "lease_failed"]
    assert {event["lease_id"] for event in events} == {claim["lease_id"]}


@pytest.mark.parametrize("how", ["taint_node", "drop_queue", "revoke_attestation"])
def test_all_that_are_asked_to_stop(stage: Stage, how: str) -> None:
    api, queue, node = stage.api, stage.api.queue(), stage.api.node()
    api.rows("attest_node", node=node.node_id, domain="d")
    trust = {"require": [{"trust": "d"}]}
    claims = [api.running(queue, node, placement=trust) for _ in range(3)]
    before = newest(api)
    if how == "taint_node":
        api.rows(how, node=node.node_id, taint=NO_EXECUTE)
    elif how == "drop_queue":
        api.rows(how, queue=queue, force=True)
        api.rows("reap")
    else:
        api.rows(how, node=node.node_id, domain="d")
    events = since(api, before, "claim_stop_requested")
    assert {event["lease_id"] for event in events} == {claim["lease_id"] for claim in claims}
    assert len(events) == 3


def test_a_taint_that_is_taken_off_in_time_asks_nobody_to_stop(stage: Stage) -> None:
    """Asked for in an hour: told at once, with the time; not told again when it is called off."""
    tolerate = [{"key": "k", "op": "exists", "effect": "no_execute", "seconds": 3600}]
    _, node, _ = stage.running(placement={"tolerate": tolerate})
    before = newest(stage.api)
    stage.api.rows("taint_node", node=node.node_id, taint=NO_EXECUTE)
    stage.api.rows("untaint_node", node=node.node_id, key="k")
    codes = [event["code"] for event in since(stage.api, before)]
    assert sorted(codes) == ["claim_stop_requested", "node_tainted", "node_untainted"]


def test_a_node_that_goes_while_it_is_silent(stage: Stage) -> None:
    """It is not said to be back; should it be registered again it may be silent again."""
    node = stage.silent()
    before = newest(stage.api)
    stage.api.rows("deregister_node", node=node.node_id)
    stage.reap()
    stage.api.node(node.node_id, name=node.name)
    stage.clock.advance(MINUTE)
    stage.reap()
    codes = [event["code"] for event in since(stage.api, before)]
    assert codes == ["node_deregistered", "node_registered", "node_silent"]


UNMATCHED: list[tuple[Row, Row, str]] = [
    ({}, {"require": [{"label": "a", "op": "in", "values": [1]}]}, "label_missing"),
    ({"labels": {"a": 2}}, {"require": [{"tags": {"a": 1}}]}, "label_mismatch"),
    ({}, {"require": [{"node": str(uuid4())}]}, "required_affinity_unsatisfiable"),
    ({"capacity": {"cpu_milli": 1}}, {"resources": {"cpu_milli": 2}}, "insufficient_capacity"),
    ({"taints": [NO_EXECUTE]}, {}, "untolerated_taint"),
    ({}, {"require": [{"trust": "t"}]}, "trust_not_attested"),
]


@pytest.mark.parametrize(("spec", "placement", "reason"), UNMATCHED)
def test_why_no_node_matches(stage: Stage, spec: Row, placement: Row, reason: str) -> None:
    stage.api.node(**spec)
    before = newest(stage.api)
    stage.api.spawn(stage.api.queue(), placement=placement)
    stage.reap()
    [event] = since(stage.api, before, "class_unmatched")
    assert (event["detail"]["reason"], event["detail"]["reasons"][reason]) == (reason, 1)
    assert f"{reason} on 1 of 1" in event["message"]
    assert " that ask for " in event["message"]


def test_that_no_node_is_live(stage: Stage) -> None:
    """One that would match has gone silent."""
    stage.api.node()
    queue = stage.api.queue()
    lease = stage.api.spawn(queue)
    before = newest(stage.api)
    stage.clock.advance(MINUTE)
    stage.reap()
    [event] = of_queue(queue, since(stage.api, before, "class_unmatched"))
    assert event["detail"] == {"reason": "node_not_live", "reasons": None}
    stage.api.rows("cancel_lease", lease=lease)
    stage.reap()
    [over] = of_queue(queue, since(stage.api, before, "class_unmatched_over"))
    assert "none is waiting" in over["message"]


def test_what_may_run_later_is_no_news(stage: Stage) -> None:
    """In use, cordoned, paused: refused now, not for good."""
    api = stage.api
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    before = newest(api)
    api.running(queue, node, placement={"resources": {"cpu_milli": 1000}})
    api.needing(queue, cpu_milli=500)
    api.spawn(queue, placement={"require": [{"node": str(node.node_id)}]})
    api.rows("cordon_node", node=node.node_id)
    api.rows("pause_queue", queue=queue)
    stage.reap()
    assert since(api, before, "class_unmatched") == []


def test_classes_have_their_turns(stage: Stage) -> None:
    """A few at a time; none is left out, none is told twice."""
    api, queue = stage.api, stage.api.queue()
    before = newest(api)
    for number in range(7):
        asked = {"label": "turn", "op": "in", "values": [number]}
        api.spawn(queue, placement={"require": [asked]})
    for _ in range(60):
        stage.clock.advance(TURN)
        api.rows("reap", limit=50)
    told = of_queue(queue, since(api, before, "class_unmatched"))
    assert len({event["class_id"] for event in told}) == len(told) == 7


def test_what_is_found_out_is_told_out_of_turn(stage: Stage) -> None:
    """Nodes that never stand still: by its turn, what is known of a class would hold no longer."""
    api, queue = stage.api, stage.api.queue()
    node = api.node()
    before = newest(api)
    asked = {"label": "turn", "op": "in", "values": ["late"]}
    api.spawn(queue, placement={"require": [asked]})
    for code in ("class_unmatched", "class_unmatched_over"):
        stage.clock.advance(TURN)
        api.conn.execute(FIND_OUT)
        api.conn.execute(WATCH_THE_LAST)
        [_] = of_queue(queue, since(api, before, code))
        api.node(node.node_id, labels={"turn": "late"})


def test_the_login_is_the_servers_own_word(api: Api, queue: str, clock: Clock) -> None:
    """Whatever the caller says, and whoever owns the function that writes the event."""
    lease = api.spawn(queue)
    api.conn.execute("set session authorization hwqueue_operator")
    for trick in ("hwqueue.actor", "hwqueue.login", "hwqueue.session_user"):
        api.conn.execute("select set_config(%s, 'ceo', false)", [trick])
    api.rows("pause_queue", queue=queue)
    api.rows("cancel_lease", lease=lease)
    api.conn.execute("reset session authorization")
    api.conn.execute("select set_config('hwqueue.actor', '', false)")
    [cancelled, paused] = api.rows("list_events", limit=2)
    assert [paused["code"], cancelled["code"]] == ["queue_paused", "lease_cancelled"]
    for event in (paused, cancelled):
        assert (event["actor"], event["login"]) == ("ceo", "hwqueue_operator")
