"""Calls of the SQL functions in short forms, and what the tests here share around them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from psycopg.types.numeric import Int8

from hwqueue.testing import Clock
from tests.calls import TASK, Calls, Row
from tests.direct import Direct
from tests.patience import looks

NOBODY = UUID("00000000-0000-7000-8000-000000000000")  # no lease and no node has this id

_TABLES = """
  select relname from pg_class
  where relnamespace = 'hwqueue'::regnamespace and relkind = 'r' order by relname
"""
_ALL_OVER = "select pg_snapshot_xmin(pg_current_snapshot()) > %s::text::xid8"
_COUNTED = """
  select counted_to >= %s from hwqueue.reap_cursor order by version desc limit 1
"""
_numbers = count(1)


@dataclass(frozen=True)
class Refusal:
    """How a call was refused."""

    code: str
    message: str
    detail: Row
    hint: str

    @property
    def field(self) -> str | None:
        """The argument at fault, as a path."""
        return self.detail.get("field")


@dataclass(frozen=True)
class Node:
    """A registered node and the epoch that it was given."""

    node_id: UUID
    epoch: int
    name: str

    @property
    def who(self) -> Row:
        """The arguments that say which node calls."""
        return {"node": self.node_id, "epoch": self.epoch}


class Api(Calls):
    """Calls, and short forms of those that most tests make."""

    def wake_payload(self, queue: str) -> str:
        """What a notification of new work in a queue carries."""
        payload = self.row("wake_payloads", queues=[queue])["payload"]
        assert isinstance(payload, str)
        return payload

    def refused(self, code: str, function: str, /, **arguments: Any) -> Refusal:
        """Call a function that must refuse with `code`, say how to do better, and write nothing."""
        with self.unchanged(), pytest.raises(psycopg.Error) as caught:
            self.rows(function, **arguments)
        refusal = read_refusal(caught.value)
        assert refusal.code == code, refusal
        assert refusal.hint, "no hint"
        assert refusal.message[0] == refusal.message[0].lower(), refusal.message
        return refusal

    def fault(self, function: str, /, **arguments: Any) -> str | None:
        """Call a function that must refuse an argument (QHA01); the one at fault, as a path."""
        return self.refused("QHA01", function, **arguments).field

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What is done inside must write nothing."""
        before = self.contents()
        yield
        assert self.contents() == before, "something was written"

    def one(self, query: LiteralString, *values: Any) -> Any:
        """The only value that a query returns."""
        [(value,)] = self.conn.execute(query, values).fetchall()
        return value

    def contents(self) -> Row:
        """A fingerprint of every table: its row count and a digest of its rows."""
        tables = [name for (name,) in self.conn.execute(_TABLES).fetchall()]
        query = sql.SQL(" union all ").join(
            sql.SQL("select {}, count(*), md5(string_agg(t::text, '|' order by t::text)) from {} t").format(
                name, sql.Identifier("hwqueue", name)
            )
            for name in tables
        )
        return {name: (rows, digest) for name, rows, digest in self.conn.execute(query)}

    def queue(self, **policy: Any) -> str:
        """Make a queue of the test's own; its name."""
        name = f"queue-{next(_numbers)}"
        self.rows("create_queue", queue=name, policy=policy)
        return name

    def node(self, node_id: UUID | None = None, **spec: Any) -> Node:
        """Register a node of the test's own; the spec is completed where it says nothing."""
        node = node_id or uuid4()
        spec = {"name": f"node-{next(_numbers)}", "instance_id": "first"} | spec
        epoch = self.value("register_node", node=node, spec=spec)
        return Node(node, epoch, spec["name"])

    def spawn(self, queue: str, task: str = TASK, params: Any = None, /, **options: Any) -> UUID:
        """Spawn a lease; its id."""
        row = self.row("spawn_lease", queue=queue, task=task, params=params, options=options)
        lease = row["lease_id"]
        assert isinstance(lease, UUID)
        return lease

    def needing(self, queue: str, **resources: int) -> UUID:
        """Spawn a lease that asks for resources; its id."""
        return self.spawn(queue, placement={"resources": resources})

    def claim(self, node: Node, *queues: str, **arguments: Any) -> list[Row]:
        """Claim for the node; the rows."""
        return self.rows("claim_task", queues=list(queues), **node.who, **arguments)

    def claim_published(self, node: Node, queue: str) -> Row:
        """Claim a lease whose terms wait for what other tests have open; upkeep publishes them."""
        for _ in looks():
            self.rows("reap")
            for row in self.claim(node, queue):
                return row
        raise AssertionError("its terms were never published")

    def claimed(self, node: Node, *queues: str, **arguments: Any) -> list[UUID]:
        """Claim for the node; the ids of the leases in the order given."""
        return [row["lease_id"] for row in self.claim(node, *queues, **arguments)]

    def granted(self, lease: UUID, node: Node, *queues: str, **arguments: Any) -> Row:
        """Claim for the node, which must get this lease alone; the claim."""
        [row] = self.claim(node, *queues, **arguments)
        assert row["lease_id"] == lease
        return row

    def running(self, queue: str, node: Node | None = None, params: Any = None, /, **options: Any) -> Row:
        """Spawn a lease and claim it, on a node of its own unless one is given; the claim."""
        lease = self.spawn(queue, TASK, params, **options)
        return self.granted(lease, node or self.node(), queue)

    def lease(self, lease: UUID) -> Row:
        """The lease as it is now."""
        return self.row("get_lease", lease=lease)

    def state(self, lease: UUID) -> str:
        """The state of the lease now."""
        state = self.lease(lease)["state"]
        assert isinstance(state, str)
        return state

    def used(self, node: Node) -> Row:
        """What list_nodes says of the node."""
        return self.row("list_nodes", name=node.name)

    def listed(self, queue: str) -> Row:
        """What list_queues says of the queue."""
        [row] = [row for row in self.rows("list_queues") if row["queue"] == queue]
        return row

    def complete(self, *claims: Row) -> None:
        """Complete claims, each in a call of its own."""
        for claim in claims:
            self.rows("complete_lease", **token(claim))

    def verdicts(self, node: Node, *claims: Row) -> list[str]:
        """What the node's next heartbeat says of its claims, in the order given."""
        rows = self.rows("heartbeat_node", **node.who, claims=beat(*claims))
        told = {row["lease_id"]: row["verdict"] for row in rows}
        return [told[claim["lease_id"]] for claim in claims]

    def reap(self) -> None:
        """Reap as upkeep does about once a second; three times, since changes make others."""
        for _ in range(3):
            self.rows("reap")

    def reap_after(self, clock: Clock, span: timedelta) -> None:
        """Let time pass, then reap."""
        clock.advance(span)
        self.rows("reap")

    def prune_after(self, clock: Clock, span: timedelta) -> None:
        """Let time pass, then prune."""
        clock.advance(span)
        self.rows("prune")

    def settle_terms(self) -> None:
        """Reap until everything that is asked about other leases is published."""
        self.rows("reap")
        Direct(self.conn).settle_terms()

    def leave_all(self) -> None:
        """Deregister every node, for tests that are about the whole fleet."""
        for row in self.rows("list_nodes"):
            self.rows("deregister_node", node=row["node_id"])

    def sound(self) -> bool:
        """Whether all invariants hold."""
        return self.rows("verify_invariants") == []

    def breaks(self, planted: LiteralString, *values: Any) -> set[tuple[str, str]]:
        """The rules that a change breaks, and for whom; the change is taken back."""
        with self.conn.transaction(force_rollback=True):
            assert self.conn.execute(planted, values).rowcount > 0, "nothing was changed"
            return {(row["rule"], row["subject"]) for row in self.rows("verify_invariants")}


def raw(text: str) -> Jsonb:
    """JSON as it is written here: numbers and depths that Python would not write."""
    return Jsonb(text, dumps=str)


def nested(depth: int) -> Jsonb:
    """An object whose key `a` holds lists in lists."""
    return raw('{"a":' + "[" * depth + "]" * depth + "}")


def token(claim: Row) -> Row:
    """The arguments that name a claim to the functions that settle it."""
    return {"lease": claim["lease_id"], "token": claim["claim_token"]}


def beat(*claims: Row) -> list[Row]:
    """Claims as heartbeat_node takes them."""
    return [{"lease_id": str(c["lease_id"]), "claim_token": c["claim_token"]} for c in claims]


def settlement(claim: Row, outcome: str = "complete", **more: Any) -> Row:
    """A claim's end as settle_and_claim takes it."""
    return beat(claim)[0] | {"outcome": outcome} | more


def completed(*claims: Row) -> Row:
    """The arguments of settle_and_claim for claims that are done and have no result."""
    return {
        "completed": [claim["lease_id"] for claim in claims],
        "completed_tokens": [Int8(claim["claim_token"]) for claim in claims],
    }


def outlive(conn: psycopg.Connection[Any]) -> None:
    """Wait until every transaction that is open now, anywhere on the server, has ended.

    What may have been seen by a transaction that still runs is kept for it; other tests have some.
    """
    mine = conn.execute("select pg_current_xact_id()::text").fetchone()
    for _ in looks():
        if conn.execute(_ALL_OVER, mine).fetchone() == (True,):
            return
    raise AssertionError("some session on this server keeps a transaction open")


def count_all(conn: psycopg.Connection[Any]) -> None:
    """Reap until everything that has ended by now is counted.

    A transaction that is open at the very moment of a reap, anywhere, puts that off to the next.
    """
    now = conn.execute("select hwqueue.clock()").fetchone()
    for _ in looks():
        conn.execute("select hwqueue.reap()")
        if conn.execute(_COUNTED, now).fetchone() == (True,):
            return
    raise AssertionError("some session keeps a transaction open in which it has settled something")


def read_refusal(error: psycopg.Error) -> Refusal:
    """The parts of an error that a client can use."""
    diag = error.diag
    return Refusal(
        code=error.sqlstate or "",
        message=diag.message_primary or "",
        detail=json.loads(diag.message_detail or "{}"),
        hint=diag.message_hint or "",
    )


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """The call inside must be refused with `code`; for calls that are not made through an Api."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value
