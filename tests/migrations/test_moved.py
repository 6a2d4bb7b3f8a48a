"""A database that goes on elsewhere: restored, copied, or fed by logical replication."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb

from tests.calls import Row
from tests.fix_db import fresh_database
from tests.flows import Flow, broken, each, finish, gang, step
from tests.migrations.programs import dump, run_psql
from tests.sql import gangs
from tests.sql.api import Api, Node, outlive, token

_EAGER = """
  create or replace function hwqueue.should_advance_low_water(p_qty int) returns boolean
  language sql volatile as 'select true'
"""
_FOREIGN = """
  update hwqueue.installation set system_identifier = system_identifier + 1,
    server_started_at = server_started_at - interval '1 hour'
"""
_KEY_SEQUENCES = """
  select a.attrelid::regclass::text, a.attname,
         pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relnamespace = 'hwqueue'::regnamespace and c.relkind = 'r' and a.attidentity <> ''
"""


class Life:
    """Some work before and after the move."""

    def __init__(self, api: Api) -> None:
        self.queue = api.queue()
        self.node = api.node()
        for _ in range(6):  # marks move, and stand high
            api.rows("complete_lease", **token(api.running(self.queue, self.node)))
            outlive(api.conn)
        self.again = api.running(self.queue, self.node)
        self.running = api.running(self.queue, self.node)
        api.rows("release_lease", **token(self.again))
        self.lost = self._claim_of_again(api, self.node)
        api.rows("release_lease", **token(self.lost))
        self.waiting = api.spawn(self.queue)

    def _claim_of_again(self, api: Api, node: Node) -> Row:
        [claim] = api.claim(node, self.queue)
        assert claim["lease_id"] == self.again["lease_id"]
        return claim

    def goes_on(self, api: Api) -> None:
        """Everything works, old claims settle, and no token is granted twice."""
        api.rows("reap")
        fresh = api.spawn(self.queue, labels={"app": "new"})  # a class, too
        api.rows("create_queue", queue="another")
        claims = api.claim(self.node, self.queue, qty=10)
        leases = {claim["lease_id"] for claim in claims}
        assert leases == {self.again["lease_id"], self.waiting, fresh}
        tokens = {claim["lease_id"]: claim["claim_token"] for claim in claims}
        assert tokens[self.again["lease_id"]] > self.lost["claim_token"]
        assert min(tokens.values()) > self.lost["claim_token"]
        api.rows("complete_lease", **token(self.running))
        api.complete(*claims)
        assert api.rows("verify_invariants") == []


@pytest.fixture
def life(conn: psycopg.Connection) -> Life:
    """A database at work."""
    conn.execute(_EAGER)
    return Life(Api(conn))


@contextmanager
def connected(dsn: str) -> Iterator[Api]:
    """The functions on another database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield Api(conn)


def restore(dsn: str, script: str) -> None:
    """Load a dump; a newer pg_dump may set what an older server does not know."""
    run_psql(dsn, script)


@pytest.mark.parametrize("cluster", ["the same", "another"])
def test_a_restored_database_goes_on(dsn: str, empty_dsn: str, life: Life, cluster: str) -> None:
    restore(empty_dsn, dump(dsn))
    with connected(empty_dsn) as api:
        if cluster == "another":
            api.conn.execute(_FOREIGN)
            api.conn.execute("update hwqueue.node_state set server_started_at = '2020-01-01Z'")
        life.goes_on(api)


def test_a_dump_that_is_restored_in_place_goes_on(dsn: str, conn: psycopg.Connection, life: Life) -> None:
    """The database keeps its oid, its tables do not keep their files."""
    script = dump(dsn)
    [lost] = Api(conn).claim(life.node, life.queue)  # after the dump was taken
    conn.execute("drop schema hwqueue cascade")
    restore(dsn, script)
    with connected(dsn) as api:
        life.lost = lost
        life.goes_on(api)


def test_a_copied_database_goes_on(server_dsn: str, dsn: str, conn: psycopg.Connection, life: Life) -> None:
    """The copy has all of the server's marks in common with its original."""
    name = conninfo_to_dict(dsn)["dbname"]
    conn.close()
    with fresh_database(server_dsn, str(name)) as copy, connected(copy) as api:
        life.goes_on(api)


def claimed_in(dsn: str, life: Life) -> int:
    """The token that the lease which waits is given in a database."""
    with connected(dsn) as api:
        claims = api.claim(life.node, life.queue, qty=2)
        [claim] = [claim for claim in claims if claim["lease_id"] == life.waiting]
        return int(claim["claim_token"])


def test_two_that_begin_alike_give_no_token_twice(
    server_dsn: str, dsn: str, conn: psycopg.Connection, life: Life
) -> None:
    """A dump that is restored twice, and a copy of each."""
    script = dump(dsn)
    tokens = [claimed_in(dsn, life)]
    conn.close()
    with ExitStack() as stack:
        for _ in range(2):
            restored = stack.enter_context(fresh_database(server_dsn))
            restore(restored, script)
            source = str(conninfo_to_dict(restored)["dbname"])
            copy = stack.enter_context(fresh_database(server_dsn, source))
            tokens += [claimed_in(restored, life), claimed_in(copy, life)]
    assert len(tokens) == len(set(tokens))


def test_a_copy_that_nobody_has_claimed_from_gives_other_tokens(
    server_dsn: str, dsn: str, conn: psycopg.Connection
) -> None:
    api = Api(conn)
    queue, node = api.queue(), api.node()
    api.spawn(queue)
    conn.close()
    with fresh_database(server_dsn, str(conninfo_to_dict(dsn)["dbname"])) as copy:
        tokens = []
        for each in (copy, dsn):
            with connected(each) as there:
                [claim] = there.claim(node, queue)
                tokens.append(claim["claim_token"])
    assert tokens[0] != tokens[1]


def test_a_logical_switch_over_goes_on(dsn: str, empty_dsn: str, life: Life) -> None:
    """Rows came, the state of sequences did not; transaction ids and server are others."""
    script = dump(dsn)
    without, count = re.subn(r"^SELECT pg_catalog\.setval\(.*\n", "", script, flags=re.M)
    assert count
    restore(empty_dsn, without)
    with connected(empty_dsn) as api:
        api.conn.execute(_FOREIGN)
        api.conn.execute("update hwqueue.node_state set server_started_at = '2020-01-01Z'")
        life.goes_on(api)
        [event] = api.rows("list_events", filter={"code": "positions_repaired"})
        assert event["detail"]["from"] < event["detail"]["to"]


def test_sequences_are_raised_all(conn: psycopg.Connection, life: Life) -> None:
    """Each identity column has its sequence raised above its rows; so has a future one."""
    api = Api(conn)
    for _ in range(2):  # gangs wait, and changes of them that nobody has looked at
        members = Jsonb([{"task": "t", "count": 2}])
        [member, _] = api.rows("spawn_gang", queue=life.queue, members=members)
        api.rows("cancel_gang", gang=member["gang_id"])
    outlive(conn)
    for table, column, sequence in conn.execute(_KEY_SEQUENCES).fetchall():
        [most] = conn.execute(f"select max({column}) from {table}").fetchone() or (None,)
        conn.execute(f"select setval('{sequence}', 1)")
        conn.execute("select hwqueue.raise_sequences(), hwqueue.repair_positions()")
        [last] = conn.execute(f"select last_value from {sequence}").fetchone() or (0,)
        assert most is None or last >= most, table


PARENTS = ("join", "shard", "approved", "nap", "train")
STEPS: list[Row] = [
    step("left"),
    step("right"),
    step("join", "left", "right"),
    each("shard", [1, 2, 3], max_parallel=2),
    {"name": "approved", "kind": "wait", "signal": "approve"},
    {"name": "nap", "kind": "sleep", "for": 3600},
    gang("train", 2, placement={"resources": {"gpu": 1}}),
    step("end", *PARENTS),
]
PAIR: Row = {"placement": {"resources": {"gpu": 2}}}


class Work:
    """A run that has begun what it can, a gang that has room, and one that room is kept for."""

    def __init__(self, api: Api) -> None:
        self.flow = Flow(api, STEPS)
        self.claims = self.flow.items()
        finish(api, self.claims.pop("left"))
        finish(api, self.claims.pop(0))
        self.nodes = [api.node(gpus=gangs.gpus(2)) for _ in range(5)]
        self.queue = api.queue()
        self.busy = api.running(self.queue, self.nodes[0], **gangs.GPU)
        self.small = gangs.spawn(api, self.queue, 2, PAIR, hold="1 hour")
        gangs.reap(api)
        self.large = gangs.spawn(api, self.queue, 3, PAIR)
        gangs.reap(api)

    def states(self, api: Api) -> dict[str, str]:
        train = self.flow.steps()["train"]["gang_id"]
        ids = {"small": self.small, "large": self.large, "train": train}
        return {name: gangs.gang(api, gang_id)["state"] for name, gang_id in ids.items()}

    def goes_on(self, api: Api) -> None:
        """What was claimed is settled, the rest is claimed, and all ends."""
        finish(api, self.busy)
        for claim in self.claims.values():
            finish(api, claim)
        api.rows("signal_workflow_run", run=self.flow.run, name="approve", payload=None)
        api.rows("skip_step", run=self.flow.run, step="nap")
        for _ in range(8):
            gangs.reap(api)
            api.rows("advance_workflows")
            claims = [
                claim
                for node in self.nodes
                for queue in (self.queue, self.flow.queue)
                for claim in api.claim(node, queue, qty=10)
            ]
            for claim in [*claims, *self.flow.items().values()]:
                finish(api, claim)
        assert self.flow.states() == {each["name"]: "completed" for each in STEPS}
        assert self.flow.state == "completed"
        assert set(self.states(api).values()) == {"completed"}
        assert broken(api) == []


@pytest.fixture
def work(conn: psycopg.Connection) -> Work:
    return Work(Api(conn))


@pytest.fixture
def restored(dsn: str, empty_dsn: str, work: Work) -> Iterator[Api]:
    """The functions on a database that its dump was loaded into."""
    run_psql(empty_dsn, dump(dsn))
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield Api(conn)


def test_runs_and_gangs_of_a_restored_database_go_on(work: Work, restored: Api) -> None:
    before = work.states(restored)
    work.flow.calls = restored
    assert work.states(restored) == before
    assert before == {"small": "reserved", "large": "earmarked", "train": "reserved"}
    assert broken(restored) == []
    work.goes_on(restored)
