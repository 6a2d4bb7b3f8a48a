"""Sessions that do at random whatever producers, nodes and operators do, all at once.

Every call is a transaction: mostly committed, sometimes rolled back, sometimes kept open while the
session does something else on another connection. That is always something that waits for nobody,
so that whoever waits for the open transaction gets on.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from threading import Event, Lock
from typing import Any, LiteralString, Self
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tests.calls import TASK, Row
from tests.direct import Direct
from tests.oracle.cluster import Cluster
from tests.oracle.occupancy import Rule, may_run
from tests.oracle.tables import cluster_of
from tests.properties.storm_watch import ASSIGNED, faults, look, misgrant, stamp
from tests.properties.storm_work import (
    ADOPTED,
    NODES,
    QUEUE,
    TAINTS,
    Options,
    lease_options,
    limits,
    node_spec,
    on_fast_path,
)

KINDS = 30
MOST_OPEN = 60  # leases; more only make every look slower
MOST_GANGS = 4
# The claim is lost, cancelled, finished; the lease is claimed; the node is gone, superseded; nobody
# could ever run that; the gang, the everywhere task is gone.
DOCUMENTED = {"QHL01", "QHL02", "QHL03", "QHL07", "QHN01", "QHN03", "QHC04", "QHG01", "QHE01"}
# The same of what takes another lease's place: that one is gone, or may not be replaced.
NOT_REPLACED = {"QHL04", "QHA01"}
_STATIC = {Rule.NODE, Rule.TAINT}


@dataclass
class Storm:
    """What all sessions of one storm share."""

    dsn: str
    seed: int
    steps: int
    naming: float = 0.0  # how many leases name one of the latest, which gets a class of its own
    gangs: float = 0.0  # how many calls are about gangs, and all else that is reserved
    limits: float = 0.0  # how many leases have limits
    epochs: dict[UUID, int] = field(default_factory=dict)
    specs: dict[UUID, Options] = field(default_factory=dict)
    instances: Counter[UUID] = field(default_factory=Counter)
    held: dict[UUID, dict[UUID, Row]] = field(default_factory=dict)
    moves: int = 0  # how often the database has been copied, or its server has been killed
    tokens: dict[UUID, int] = field(default_factory=dict)  # the newest one of each lease
    told: dict[UUID, int] = field(default_factory=dict)  # the same, before the last move
    is_killed: bool = False
    kinds: list[Options] = field(default_factory=list)
    spawned: list[UUID] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    is_over: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)

    def connect(self) -> psycopg.Connection[Any]:
        """A session that does not wait for anybody's lock for ever, on however slow a machine."""
        options = "-c lock_timeout=2min"
        conn = psycopg.connect(self.dsn, autocommit=True, options=options)
        stamp(conn)
        return conn

    def move(self, dsn: str) -> None:
        """Go on with a copy of the database, in which nothing is held yet."""
        self.dsn = dsn
        for claims in self.held.values():
            claims.clear()
        self.go_on()

    def go_on(self) -> None:
        """Go on where no lease may be granted a token of before, or a lower one."""
        self.told = dict(self.tokens)
        self.moves += 1
        self.is_killed = False
        self.is_over.clear()

    def report(self, wrong: list[str]) -> None:
        """Stop the storm if something is wrong."""
        if wrong:
            self.wrong += wrong
            self.is_over.set()

    def register(self, direct: Direct, number: int, choose: Random, *, anew: bool = False) -> int:
        """Register a node, where chance puts it; `anew`: another instance, whose claims are new."""
        node = NODES[number]
        with self.lock:
            self.instances[node] += anew
            spec = node_spec(number, choose, self.instances[node])
        return direct.register(node, spec)

    def spec(self, number: int) -> Options:
        """What the node has room for, which never changes."""
        return node_spec(number, Random(0), 0)


class Session:
    """One producer, worker and operator; runs in a thread of its own."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm = storm
        self.choose = Random(f"{storm.seed}-{number}-{storm.moves}")
        self.closing = ExitStack()

    def __enter__(self) -> Self:
        self.conn = self.closing.enter_context(self.storm.connect())
        self.other = self.closing.enter_context(self.storm.connect())
        self.direct = Direct(self.conn)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def run(self) -> None:
        """Act until the storm is over."""
        for _ in range(self.storm.steps):
            if self.storm.is_over.is_set():
                return
            self.step()

    def step(self) -> None:
        """One call, in a transaction that ends in one of the ways."""
        calls = CALLS
        if self.storm.gangs and self.choose.random() < self.storm.gangs:
            calls = GANG_CALLS
        kind = self.choose.choices(list(calls), [weight for _, weight in calls.values()])[0]
        holds = 50 if kind in ("claim", "settle_and_claim") else 15
        ending = self.choose.choices(["commit", "roll back", "hold"], [75, 10, holds])[0]
        stamp(self.conn)
        try:
            with self.conn.transaction(force_rollback=ending == "roll back"):
                note = calls[kind][0](self)
                if ending == "hold":
                    for _ in range(self.choose.randint(1, 3)):
                        self.meanwhile()
            if note is not None and ending != "roll back":
                note()
        except psycopg.DatabaseError as error:
            self.refused(kind, error)
        with self.storm.lock:
            self.storm.done[kind] += 1

    def meanwhile(self) -> None:
        """Something on the other connection that waits for nobody."""
        direct, kind = Direct(self.other), self.choose.choice(["spawn", "heartbeat", "reap"])
        stamp(self.other)
        if kind == "spawn":
            spawn(self, direct)
        elif kind == "reap":
            direct.reap()
        else:
            heartbeat(self, direct)
        with self.storm.lock:
            self.storm.done[kind] += 1

    def refused(self, kind: str, error: psycopg.DatabaseError) -> None:
        """An error that nobody documented ends the storm: so does a deadlock, or a long wait."""
        with self.storm.lock:
            self.storm.refused[f"{kind} {error.sqlstate}"] += 1
        if self.storm.is_killed and isinstance(error, psycopg.OperationalError):
            return
        # what an asynchronous commit had told us may be gone since
        gone = {"QHL04", "QHL05"} if self.storm.moves else set()
        if error.sqlstate not in DOCUMENTED | gone:
            self.storm.report([f"{kind}: {error.sqlstate} {error}"])

    def enough_waits(self) -> bool:
        """Whether more leases would only make every look slower."""
        [(number,)] = self.conn.execute("select count(*) from hwqueue.ready").fetchall()
        return int(number) > MOST_OPEN

    def node(self) -> UUID:
        return self.choose.choice(NODES)

    def some_lease(self) -> UUID | None:
        recent = self.storm.spawned[-MOST_OPEN:]
        return self.choose.choice(recent) if recent else None

    def lease_like_others(self, others: list[UUID]) -> Options:
        """Mostly of a kind that there is: every new kind brings new terms, for ever."""
        kinds = self.storm.kinds
        naming = self.storm.naming
        if len(kinds) < KINDS or self.choose.random() < max(0.03, naming):
            kinds.append(lease_options(self.choose, others, naming))
        return self.choose.choice(kinds[-KINDS:])

    def some_claims(self, node: UUID, most: int) -> list[Row]:
        """Claims that the node believes it has; it forgets them."""
        with self.storm.lock:
            held = self.storm.held[node]
            count = min(len(held), self.choose.randint(1, most))
            return [held.pop(lease) for lease in self.choose.sample(sorted(held), count)]

    def hold(self, node: UUID, rows: list[Row]) -> None:
        """The node remembers claims."""
        with self.storm.lock:
            self.storm.held[node].update((row["lease_id"], row) for row in rows)

    def keep(self, node: UUID, rows: list[Row]) -> None:
        """The node remembers what it is granted; whoever decides next finds no rule broken."""
        self.hold(node, rows)
        with self.storm.lock:
            self.storm.done["granted"] += len(rows)
            for row in rows:
                token = max(row["claim_token"], self.storm.tokens.get(row["lease_id"], 0))
                self.storm.tokens[row["lease_id"]] = token
        told = self.storm.told
        old = [row for row in rows if row["claim_token"] <= told.get(row["lease_id"], 0)]
        self.storm.report([f"{row} has a token of before the crash or the copy" for row in old])
        if rows:
            seen = look(self.conn, verify=False)
            self.storm.report(faults(seen, self.storm.specs, verify=False))

    def check_granted(self, node: UUID, rows: list[Row]) -> None:
        """The node may run what it was given; asked while its lock is held, so nothing changes."""
        if not rows:
            return
        cluster = cluster_of(self.conn, rows[0]["now"])
        with self.conn.cursor(row_factory=dict_row) as cursor:
            claims = {row["lease_id"]: row for row in cursor.execute(ASSIGNED, [node])}
        running = {claim.lease.lease_id: claim.lease for claim in cluster.running}
        facts = cluster.nodes[node]
        alone = Cluster({node: facts})
        for row in rows:
            broken = may_run(running[row["lease_id"]], facts, alone) & _STATIC
            self.storm.report([f"{row} on {facts}: {rule}" for rule in broken])
        mine = claims.pop(rows[0]["lease_id"])
        # What was reserved was given it then, beside others.
        if len(rows) == 1 and not mine["was_reserved"]:
            self.storm.report(misgrant(mine, [*claims.values()], self.storm.specs[node]))


Note = Callable[[], object] | None


def spawn(session: Session, direct: Direct | None = None) -> Note:
    """A few new leases, unless enough wait."""
    if session.enough_waits():
        return None
    others = session.storm.spawned[-5:]
    leases = []
    for _ in range(session.choose.randint(1, 3)):
        options = session.lease_like_others(others)
        if session.storm.limits and session.choose.random() < session.storm.limits:
            options = options | limits(session.choose)
        try:
            with (direct or session.direct).conn.transaction():
                leases.append((direct or session.direct).spawn(QUEUE, options)["lease_id"])
        except psycopg.DatabaseError as error:
            session.refused("spawn", error)
    return lambda: session.storm.spawned.extend(leases)


def spawn_dependents(session: Session) -> Note:
    """Leases that want to run where one that is not due yet will, and one that keeps away."""
    if session.enough_waits():
        return None
    late = session.direct.spawn(QUEUE, {"delay": session.choose.randint(1, 60)})["lease_id"]
    domain = session.choose.choice(["node", "rack"])
    near = {"placement": {"require": [{"lease": str(late), "domain": domain}]}}
    far = {"placement": {"require": [{"lease": str(late), "domain": domain, "away": True}]}}
    batch = [near] * session.choose.randint(1, 4) + [far]
    leases = [late, *(row["lease_id"] for row in session.direct.spawn_many(QUEUE, batch))]
    return lambda: session.storm.spawned.extend(leases)


def spawn_alternatives(session: Session) -> Note:
    """Two leases of which one is to run."""
    if session.enough_waits():
        return None
    choice = {"one_of": str(UUID(int=session.choose.getrandbits(128), version=4))}
    batch = [session.choose.choice([{}, {"placement": {"require": [{"rack": [rack]}]}}]) for rack in (0, 1)]
    rows = session.direct.spawn_many(QUEUE, [choice | options for options in batch])
    leases = [row["lease_id"] for row in rows]
    return lambda: session.storm.spawned.extend(leases)


def claim(session: Session) -> Note:
    """A node claims; if it has been fenced, it is told so."""
    node, qty = session.node(), session.choose.choice([1, 1, 1, 3])
    try:
        with session.conn.transaction():
            rows = session.direct.claim(QUEUE, node, session.storm.epochs[node], qty)
    except psycopg.DatabaseError as error:
        session.refused("claim", error)
        return _register(session, NODES.index(node), anew=True)  # the node comes back
    session.check_granted(node, _with_time(session, rows))
    return lambda: session.keep(node, rows)


def settle_and_claim(session: Session) -> Note:
    """A node settles and claims in one call."""
    node = session.node()
    ended = session.some_claims(node, 4)
    cut = session.choose.randint(0, len(ended))
    rows = session.direct.settle_and_claim(
        QUEUE, node, session.storm.epochs[node], ended[:cut], qty=2, completed=ended[cut:]
    )
    claimed = [row for row in rows if row["kind"] == "claimed"]
    return lambda: session.keep(node, claimed)


def _with_time(session: Session, rows: list[Row]) -> list[Row]:
    now = session.conn.execute("select hwqueue.clock()").fetchone()
    assert now is not None
    return [row | {"now": now[0]} for row in rows]


def settle(session: Session) -> Note:
    """A claim ends in one of the ways."""
    for row in session.some_claims(session.node(), 1):
        end = session.choose.choice([session.direct.complete, session.direct.fail, session.direct.release])
        end(row["lease_id"], row["claim_token"])
    return None


def settle_many(session: Session) -> Note:
    """Claims of two nodes are completed in one call."""
    claims = session.some_claims(session.node(), 3) + session.some_claims(session.node(), 3)
    session.direct.complete_many(claims)
    return None


def heartbeat(session: Session, direct: Direct | None = None) -> Note:
    """A node extends what it believes it holds."""
    node = session.node()
    with session.storm.lock:
        held = list(session.storm.held[node].values())
    try:
        (direct or session.direct).heartbeat(node, session.storm.epochs[node], held)
    except psycopg.DatabaseError as error:
        session.refused("heartbeat", error)
        if direct is None:
            raise
    return None


def extend(session: Session) -> Note:
    """A claim is extended, and remembered still: perhaps one that a crash has left."""
    node = session.node()
    for row in session.some_claims(node, 1):
        session.direct.extend(row["lease_id"], row["claim_token"], timedelta(seconds=40))
        return lambda: session.hold(node, [row])
    return None


def cancel(session: Session) -> Note:
    """Somebody cancels a lease in whatever state it is."""
    if lease := session.some_lease():
        session.direct.cancel(lease)
    return None


def requeue(session: Session) -> Note:
    """Somebody wants a lease to run again."""
    if lease := session.some_lease():
        session.direct.requeue(lease)
    return None


def reap(session: Session) -> Note:
    session.direct.reap()
    return None


def relabel(session: Session) -> Note:
    """The same instance registers somewhere else."""
    return _register(session, session.choose.randrange(len(NODES)), anew=False)


def restart(session: Session) -> Note:
    """Another instance takes over: what the old one held ends."""
    return _register(session, session.choose.randrange(len(NODES)), anew=True)


def _register(session: Session, number: int, *, anew: bool) -> Note:
    epoch = session.storm.register(session.direct, number, session.choose, anew=anew)
    return lambda: session.storm.epochs.update({NODES[number]: epoch})


def die(session: Session) -> Note:
    """A node forgets all that it holds."""
    with session.storm.lock:
        session.storm.held[session.node()].clear()
    return None


def advance(session: Session) -> Note:
    """Time passes: what is not kept alive expires."""
    return _move_clock(session, 9)


def step_back(session: Session) -> Note:
    """The server's clock is corrected by up to a minute, as after a failover."""
    return _move_clock(session, -session.choose.choice([1, 5, 60]))


def _move_clock(session: Session, seconds: int) -> Note:
    session.conn.execute(
        "update hwqueue.test_clock set offset_by = offset_by + make_interval(secs => %s)", [seconds]
    )
    return None


def adopt(session: Session) -> Note:
    """Work that runs already, and that nobody asks about; on a node that counts nothing."""
    node = session.choose.choice([node for n, node in enumerate(NODES) if on_fast_path(n)])
    row = session.direct.adopt(QUEUE, node, ADOPTED)
    return lambda: session.keep(node, [row])


def match(session: Session) -> Note:
    """Somebody asks where a lease could run."""
    options = lease_options(session.choose, [])
    session.direct.match(options.get("placement", {}), {"queue": QUEUE, "task": "work"})
    return None


def update(session: Session) -> Note:
    """A lease that waits is changed."""
    if lease := session.some_lease():
        placement = lease_options(session.choose, []).get("placement", {})
        session.direct.update(lease, {"placement": placement})
    return None


def spawn_gang(session: Session) -> Note:
    """Two or three leases that start together, unless enough gangs wait."""
    if len(session.direct.rows("list_gangs", state="waiting")) > MOST_GANGS:
        return None
    each = session.choose.choice(
        [{}, *({"placement": {"resources": one}} for one in ({"cpu_milli": 700}, {"gpu": 1}))]
    )
    among: list[dict[str, Any]] = [{"together": "rack"}, {"together": ["rack", "fleet"]}]
    options = session.choose.choice([{}, {"on_lost": "replace"}, *among])
    rows = session.direct.spawn_gang(QUEUE, [each] * session.choose.randint(2, 3), **options)
    leases = [row["lease_id"] for row in rows]
    return lambda: session.storm.spawned.extend(leases)


def _lead(session: Session) -> int | None:
    """A planner that leads for a moment, unless another one does."""
    holder, ttl = f"{id(session)}", timedelta(seconds=1)
    epoch: int | None = session.direct.value("lead_planner", holder=holder, ttl=ttl)
    return epoch


def reserve_gang(session: Session) -> Note:
    """A planner proposes any place for a gang."""
    epoch = _lead(session)
    gangs = session.direct.rows("list_gangs", state="waiting")
    if epoch is not None and gangs:
        gang, rack = session.choose.choice(gangs)["gang_id"], session.choose.randrange(3)
        session.direct.value("reserve_gang", gang=gang, place=f"rack {rack}", round=1, epoch=epoch)
    return None


def reserve_leases(session: Session) -> Note:
    """A planner assigns any leases to any nodes."""
    epoch = _lead(session)
    leases = {str(lease) for _ in range(3) if (lease := session.some_lease())}
    if epoch is not None and leases:
        places = [{"lease": lease, "node": str(session.node())} for lease in sorted(leases)]
        hold = timedelta(seconds=session.choose.randint(1, 20))
        session.direct.rows("reserve_leases", places=places, hold=hold, round=1, epoch=epoch)
    return None


def spawn_replacing(session: Session) -> Note:
    """A lease that takes the place of another one, in whatever state that is."""
    if (old := session.some_lease()) is None:
        return None
    how: Options = session.choose.choice([{}, {"then": "requeue"}, {"overlap": True}])
    each: Options = session.choose.choice([{}, {"placement": {"resources": {"gpu": 1}}}])
    options = each | {"tenant": "t", "replaces": {"lease": str(old)} | how}
    try:
        with session.conn.transaction():
            new = session.direct.spawn(QUEUE, options)
    except psycopg.DatabaseError as error:
        if error.sqlstate not in NOT_REPLACED:
            raise
        return None
    return lambda: session.storm.spawned.append(new["lease_id"])


def spawn_everywhere(session: Session) -> Note:
    """A lease on each node that suits; those of the task before are stopped."""
    stop_everywhere(session.direct)
    zone = {"require": [{"label": "zone", "op": "exists"}]}
    asked = session.choose.choice([{}, zone, {"resources": {"gpu": 1}}])
    options = {"placement": asked, "mode": session.choose.choice(["once", "always"])}
    session.direct.rows("spawn_everywhere", queue=QUEUE, task=TASK, options=options)
    return None


def stop_everywhere(direct: Direct) -> None:
    """Stop all everywhere tasks, and what runs of them."""
    for row in direct.rows("list_everywhere", limit=1000):
        if row["state"] != "stopped":
            direct.rows("stop_everywhere", everywhere=row["everywhere_id"], running="stop")


def cancel_gang(session: Session) -> Note:
    """Somebody does not want a gang any more."""
    if gangs := session.direct.rows("list_gangs"):
        session.direct.value("cancel_gang", gang=session.choose.choice(gangs)["gang_id"])
    return None


def operate(call: LiteralString, **values: Any) -> Callable[[Session], Note]:
    """An operator's call about some node."""

    def act(session: Session) -> Note:
        given: dict[str, Any] = {"node": session.node()} | values
        if "taint" in given:
            given["taint"] = Jsonb(session.choose.choice(TAINTS))
        session.conn.execute(call, given)
        return None

    return act


CALLS: dict[str, tuple[Callable[[Session], Note], int]] = {
    "spawn": (spawn, 16),
    "spawn_dependents": (spawn_dependents, 1),
    "spawn_alternatives": (spawn_alternatives, 1),
    "claim": (claim, 34),
    "settle_and_claim": (settle_and_claim, 8),
    "settle": (settle, 16),
    "settle_many": (settle_many, 3),
    "heartbeat": (heartbeat, 10),
    "extend": (extend, 1),
    "cancel": (cancel, 9),
    "requeue": (requeue, 1),
    "update": (update, 1),
    "reap": (reap, 6),
    "relabel": (relabel, 4),
    "restart": (restart, 3),
    "die": (die, 1),
    "advance": (advance, 2),
    "step_back": (step_back, 1),
    "adopt": (adopt, 2),
    "match": (match, 1),
    "taint": (operate("select hwqueue.taint_node(%(node)s, %(taint)s)", taint=True), 1),
    "untaint": (
        operate(
            "select hwqueue.untaint_node(n.node_id, t ->> 'key')"
            " from hwqueue.node n, jsonb_array_elements(n.operator_taints) t"
            " where n.node_id = %(node)s"
        ),
        3,
    ),
    "cordon": (operate("select hwqueue.cordon_node(%(node)s)"), 1),
    "uncordon": (operate("select hwqueue.uncordon_node(%(node)s)"), 3),
    "drain": (operate("select hwqueue.drain_node(%(node)s, interval '5 s')"), 1),
    "deregister": (operate("select hwqueue.deregister_node(%(node)s)"), 1),
    "prune": (operate("select * from hwqueue.prune()"), 1),
}
# A storm with gangs makes these besides.
GANG_CALLS: dict[str, tuple[Callable[[Session], Note], int]] = {
    "spawn_gang": (spawn_gang, 4),
    "reserve_gang": (reserve_gang, 2),
    "reserve_leases": (reserve_leases, 3),
    "cancel_gang": (cancel_gang, 1),
    "spawn_replacing": (spawn_replacing, 2),
    "spawn_everywhere": (spawn_everywhere, 1),
    "gang_tick": (reap, 6),
    "gang_claim": (claim, 6),
}
