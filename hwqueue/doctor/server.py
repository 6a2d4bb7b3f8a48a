"""Checks of the server: version, settings, what this login may do, who holds back vacuum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg import sql

from hwqueue.doctor.facts import Holder, Server, Skew, Table
from hwqueue.doctor.finding import Finding, fail, ok, skip, warn
from hwqueue.schema.bundle import ROLES
from hwqueue.text import duration, size

OLDEST, NEWEST = 15, 18
"""The major versions of Postgres that the tests run on, and those between."""

WORKER_CONNECTIONS = 5
"""What a busy worker opens: four for its calls, one that listens."""

_MUCH = 0.8  # of the connections that there are
_SKEW_SECONDS = 2.0
_DEAD, _DEAD_SHARE = 100_000, 0.5
_HUGE_BYTES = 20 * 2**30
_OLD_XID = 1_000_000_000  # of the 2,100,000,000 at which Postgres stops


def version(server: Server) -> Finding:
    """Whether the server is one of those that hwqueue is tested on."""
    major = server.version_number // 10_000
    said = f"Postgres {server.version}"
    if major < OLDEST:
        return fail("version", said, f"upgrade it: hwqueue needs Postgres {OLDEST} or newer")
    if major > NEWEST:
        return warn("version", said, f"hwqueue is tested up to {NEWEST}: look for a newer release")
    return ok("version", said)


def encoding(server: Server) -> Finding:
    """Whether the database knows what its text is."""
    if server.encoding == "SQL_ASCII":
        return fail(
            "encoding",
            "the database has SQL_ASCII: it takes any bytes for text, and hwqueue is not installed into it",
            "move to a database in UTF-8: create database NAME encoding 'UTF8' locale 'C.UTF-8' "
            "template template0;",
        )
    return ok("encoding", server.encoding)


def isolation(server: Server) -> Finding:
    """Whether transactions begin as claims and settlements need it."""
    if server.isolation not in ("read committed", "read uncommitted"):
        return warn(
            "isolation",
            f"transactions are {server.isolation} by default: hwqueue's own connections ask for "
            "read committed in two more messages a call, calls in transactions of yours are "
            "refused",
            f"alter role {_identifier(server.login)} set default_transaction_isolation = "
            "'read committed'; and so for each login of the queue",
        )
    return ok("isolation", f"{server.isolation} by default")


def writable(server: Server) -> Finding:
    """Whether it is the primary."""
    if server.in_recovery:
        return fail(
            "primary",
            "this is a standby: nothing can be claimed here",
            "connect to the primary; with several hosts in the DSN add target_session_attrs=read-write",
        )
    if server.read_only:
        return fail(
            "primary",
            "transactions are read-only here",
            "look for default_transaction_read_only of the server, the database and this login",
        )
    return ok("primary", "it can be written to")


def login(server: Server) -> Finding:
    """What this login may do."""
    held = ", ".join(server.roles_held)
    if server.is_superuser:
        return warn(
            "login",
            f"{server.login} is a superuser",
            "give each service a login with the role that it needs: docs/run/security.md",
        )
    if server.owns_schema:
        return ok("login", f"{server.login} owns the schema{f', and has {held}' if held else ''}")
    if not server.roles_held:
        return fail(
            "login",
            f"{server.login} has none of the queue's roles, so it may call nothing",
            f"grant it one: grant hwqueue_worker to {_identifier(server.login)}; (or another of "
            f"{', '.join(ROLES)})",
        )
    if "hwqueue_tenants" in server.roles_held and len(server.roles_held) > 1:
        return warn(
            "login",
            f"{server.login} is bound to tenants and has {held}: some of what those may call is about all",
            f"leave it hwqueue_tenants alone: revoke the other roles from {_identifier(server.login)};",
        )
    return ok("login", f"{server.login} has {held}")


def roles(server: Server) -> Finding:
    """Whether the queue's roles exist."""
    missing = [role for role in ROLES if role not in server.roles_there]
    if missing:
        return warn(
            "roles",
            f"there are no {', '.join(missing)}: only the schema's owner can use the queue",
            "let a login with CREATEROLE run hwqueue db upgrade --from-owner OWNER, "
            "or let all services log in as the owner",
        )
    return ok("roles", "all exist")


def clock(skew: Skew) -> Finding:
    """Whether this machine and the server agree on the time."""
    ahead = skew.seconds
    if abs(ahead) > _SKEW_SECONDS + skew.uncertainty:
        side = "ahead of" if ahead > 0 else "behind"
        return warn(
            "clock",
            f"the server's clock is {duration(abs(ahead))} {side} this machine's",
            "run NTP on both: claims are timed by the server alone, but deadlines and start times "
            "that programs compute are not",
        )
    return ok("clock", "this machine and the server agree")


def connections(server: Server, live_nodes: int) -> Finding:
    """Whether the workers that there are fit into max_connections."""
    wanted = live_nodes * WORKER_CONNECTIONS
    advice = (
        "raise max_connections, or put PgBouncer in transaction mode before the workers: docs/run/database.md"
    )
    if server.connected > server.connections * _MUCH:
        said = f"{server.connected} of {server.connections} connections are open"
        return warn("connections", said, advice)
    if wanted > server.connections:
        said = f"{live_nodes} workers may open {wanted}, there are {server.connections}"
        return warn("connections", said, advice)
    return ok("connections", f"{server.connected} of {server.connections} are open")


def autovacuum(server: Server) -> Finding:
    """Whether dead tuples are removed at all."""
    if not server.autovacuum:
        return fail(
            "autovacuum",
            "autovacuum or track_counts is off: tables grow and claims slow down without end",
            "alter system set autovacuum = on; alter system set track_counts = on; and reload",
        )
    return ok("autovacuum", "on")


def durability(server: Server) -> Finding:
    """Whether what was acknowledged outlives a crash of the server."""
    if not server.outlives_crashes:
        return fail(
            "durability",
            "fsync or full_page_writes is off: a crash of the machine can destroy the database",
            "alter system set fsync = on; alter system set full_page_writes = on; and reload",
        )
    weak = server.synchronous_commit == "off"
    if weak or (server.has_standby and server.synchronous_commit == "local"):
        return warn(
            "durability",
            f"synchronous_commit is {server.synchronous_commit}: claims and results that were "
            "acknowledged can be lost, and the same lease be granted twice",
            "set synchronous_commit = on for the logins of the queue",
        )
    return ok("durability", f"synchronous_commit is {server.synchronous_commit}")


def idle_timeout(server: Server) -> Finding:
    """Whether a transaction that nobody goes on with is ended."""
    if server.idle_timeout == 0:
        return warn(
            "idle transactions",
            "nothing ends a transaction that stays open: one holds back vacuum, new affinity terms "
            "and followers of events",
            f"alter role {_identifier(server.login)} set idle_in_transaction_session_timeout = "
            "'1min'; and so for each login of applications",
        )
    return ok("idle transactions", f"are ended after {duration(server.idle_timeout)}")


def wraparound(server: Server) -> Finding:
    """Whether Postgres has transaction ids left."""
    if server.oldest_xid_age > _OLD_XID:
        return fail(
            "transaction ids",
            f"the oldest is {server.oldest_xid_age:,} back: Postgres stops at 2,100,000,000",
            "end what holds back vacuum (below), then vacuum freeze the database",
        )
    return ok("transaction ids", f"the oldest is {server.oldest_xid_age:,} back")


CHECKS: Sequence[Callable[[Server], Finding]] = (
    version,
    encoding,
    isolation,
    autovacuum,
    durability,
    idle_timeout,
    wraparound,
)
"""Those that ask whether the server is fit for a queue, and find one thing each."""


def horizon(server: Server, holders: Sequence[Holder]) -> list[Finding]:
    """Who keeps dead tuples from being removed."""
    found = [_holder(holder) for holder in holders]
    if not server.sees_sessions:
        found.append(
            skip(
                "vacuum horizon",
                "this login does not see the transactions of others",
                f"grant pg_read_all_stats to {_identifier(server.login)};"
                if "hwqueue_operator" in server.roles_held
                else "run it as an operator who has pg_read_all_stats (deploy/logins.sql)",
            )
        )
    return found or [ok("vacuum horizon", "no old transaction, prepared transaction or unread slot")]


def _holder(holder: Holder) -> Finding:
    since = f", open for {duration(holder.seconds)}" if holder.seconds is not None else ""
    also = "; new affinity terms and followers of events wait for it" if holder.writes else ""
    name = sql.Literal(holder.name).as_string().strip()  # others chose it, and a person pastes it
    end = {
        "session": f"ask its owner, or select pg_terminate_backend({holder.name});",
        "prepared": f"commit prepared {name}; or rollback prepared {name};",
        "slot": f"start its reader, or select pg_drop_replication_slot({name}); it also "
        "keeps the log, until the disk is full",
        "standby": f"end the long query on {holder.name}, or turn off hot_standby_feedback there",
    }
    return warn("vacuum horizon", f"{holder.who}{since}{also}", end[holder.kind])


def _identifier(name: str) -> str:
    return sql.Identifier(name).as_string()


def tables(found: Sequence[Table]) -> list[Finding]:
    """Whether tables are bloated, or larger than a queue's should be."""
    findings = []
    for table in found:
        if table.dead > _DEAD and table.dead > _DEAD_SHARE * (table.live + table.dead):
            findings.append(
                warn(
                    "tables",
                    f"{table.name} has {table.dead:,} dead tuples and {table.live:,} live ones",
                    f"end what holds back vacuum, then vacuum hwqueue.{table.name};",
                )
            )
    total = sum(table.bytes for table in found)
    if total > _HUGE_BYTES:
        largest = f"{found[0].name} {size(found[0].bytes)}"
        findings.append(
            warn(
                "tables",
                f"the queue takes {size(total)}, {largest} of that",
                "keep finished leases for a shorter time (retain_completed, retain_failed), and "
                "large payloads elsewhere",
            )
        )
    return findings or [ok("tables", f"{size(total)}, no bloat")]
