"""Runs the checks, from the connection up: what cannot work without another is left out."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg

from hwqueue.client import Client
from hwqueue.connections import with_timeouts
from hwqueue.doctor import server as of_server
from hwqueue.doctor import work as of_work
from hwqueue.doctor.facts import Server, read_holders, read_server, read_tables, read_work
from hwqueue.doctor.finding import Finding, fail, ok, skip, warn
from hwqueue.driver_errors import CONNECTION_ADVICE
from hwqueue.errors import ConfigError, HwqueueError, SchemaTooOld
from hwqueue.schema import check, read_version
from hwqueue.schema.bundle import ROLES
from hwqueue.schema.state import refuse_incompatible

_CONNECT_SECONDS = 5
_HEAR_SECONDS = 3.0
_SHOWN = 3


def examine(dsn: str, *, deep: bool = False) -> Iterator[Finding]:
    """Check an installation; changes nothing.

    Args:
        dsn: Connection string of the login whose service is to run: what it may not see is said.
        deep: Count again what must hold at every instant, which reads whole tables.
    """
    yield of_work.extras()
    try:
        conninfo = with_timeouts(dsn, seconds=_CONNECT_SECONDS, fallback_application_name="hwqueue doctor")
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
        yield fail("connection", reason, CONNECTION_ADVICE)
        return
    with connection:
        info = connection.info
        yield ok("connection", f"{info.user} at {info.host}:{info.port}, database {info.dbname}")
        server, skew = read_server(connection)
        primary = of_server.writable(server)
        yield primary
        if primary.advice:
            return  # nothing else works on a standby, LISTEN included
        yield pooler(connection, conninfo)
        yield of_server.clock(skew)
        yield from (check_of(server) for check_of in of_server.CHECKS)
        yield from of_server.horizon(server, read_holders(connection))
        schema = installed(connection)
        yield schema
        if not schema.advice:
            yield drift(dsn)
            yield of_server.roles(server)
            yield of_server.login(server)
            yield from of_server.tables(read_tables(connection))
            yield from _of_the_queue(connection, server, deep=deep)


def _of_the_queue(connection: psycopg.Connection, server: Server, *, deep: bool) -> Iterator[Finding]:
    try:
        work = read_work(Client.on(connection))
    except psycopg.errors.InsufficientPrivilege:
        yield skip(
            "queues and workers",
            f"{server.login} may not look at them",
            "run hwqueue doctor as a login with hwqueue_operator",
        )
        return
    yield of_server.connections(server, work.nodes.get("live", 0))
    yield from (check_of(work) for check_of in of_work.CHECKS)
    yield from of_work.unserved(work)
    if deep:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            broken = Client.on(connection).verify_invariants()
        yield from of_work.invariants(broken)


def installed(connection: psycopg.Connection) -> Finding:
    """Whether the schema is there, and fits this package."""
    try:
        found = read_version(connection)
        if found is None:
            return fail("schema", "there is none", "install it: hwqueue db upgrade")
        refuse_incompatible(found)
    except psycopg.errors.InsufficientPrivilege:
        return fail(
            "schema",
            f"{connection.info.user} may not use it",
            f"grant it a role: {', '.join(ROLES[:-1])} or {ROLES[-1]}",
        )
    except HwqueueError as error:
        advice = error.hint or "hwqueue db upgrade"
        if isinstance(error, SchemaTooOld):
            advice = "upgrade it: hwqueue db upgrade"
        return fail("schema", str(error), advice)
    return ok("schema", f"revision {found.revision}, of hwqueue {found.package_version}")


def drift(dsn: str) -> Finding:
    """Whether somebody has changed the schema by hand."""
    try:
        report = check(dsn)
    except (psycopg.errors.InsufficientPrivilege, ConfigError):
        return skip("drift", "this login may not read the schema", "hwqueue db check, as its owner")
    if report.drifts:
        shown = "; ".join(str(each) for each in report.drifts[:_SHOWN])
        more = f" and {len(report.drifts) - _SHOWN} more" if len(report.drifts) > _SHOWN else ""
        return fail(
            "drift",
            f"it is not as installed: {shown}{more}",
            "hwqueue db check lists all of it; put back what was changed by hand",
        )
    return ok("drift", "everything is as installed")


def pooler(connection: psycopg.Connection, conninfo: str, within: float = _HEAR_SECONDS) -> Finding:
    """Whether notifications come through; a pooler in transaction mode swallows them."""
    channel = f"hwqueue_{uuid4().hex}"
    connection.execute(f"listen {channel}")
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as other:
        other.execute("select pg_catalog.pg_notify(%s, '')", [channel])
    heard = any(connection.notifies(timeout=within, stop_after=1))
    connection.execute(f"unlisten {channel}")
    if not heard:
        return warn(
            "notifications",
            "LISTEN hears nothing: a pooler in transaction mode, such as PgBouncer, is in between",
            "give workers a direct connection with --listen, or let them poll: --listen off",
        )
    return ok("notifications", "LISTEN works: workers hear of new work at once")
