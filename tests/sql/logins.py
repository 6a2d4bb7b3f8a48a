"""Logins of a test's own, each with some roles, and the functions over a connection of each."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.sql.api import Api

WORKER, OPERATOR, ADMIN = "hwqueue_worker", "hwqueue_operator", "hwqueue_admin"


class Logins:
    """Makes logins and group roles, and drops them at the end."""

    def __init__(self, dsn: str, conn: psycopg.Connection[Any], stack: ExitStack) -> None:
        self._dsn = dsn
        self._conn = conn
        self._stack = stack

    def role(self, *member_of: str, login: bool = False) -> str:
        """Make a role that has the named ones; its name."""
        name = f"hwqueue test {uuid4().hex[:12]}"
        self._conn.execute(
            sql.SQL("create role {} {}").format(
                sql.Identifier(name), sql.SQL("login" if login else "nologin")
            )
        )
        self._stack.callback(self.drop, name)
        for role in member_of:
            self._conn.execute(sql.SQL("grant {} to {}").format(sql.Identifier(role), sql.Identifier(name)))
        return name

    def drop(self, name: str) -> None:
        """Drop a role, if it is still there."""
        self._conn.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))

    def api(self, *member_of: str) -> tuple[str, Api]:
        """Make a login that has the named roles; its name and the functions as it calls them."""
        name = self.role(*member_of, login=True)
        return name, self.as_login(name)

    def as_login(self, name: str) -> Api:
        """The functions over a connection of this login."""
        # a superuser's connection that is this login's from here on: session_user is the login,
        # and the test needs no password
        conn = psycopg.connect(self._dsn, autocommit=True)
        self._stack.callback(conn.close)
        conn.execute(sql.SQL("set session authorization {}").format(sql.Identifier(name)))
        return Api(conn)


@contextmanager
def made_logins(dsn: str, conn: psycopg.Connection[Any]) -> Iterator[Logins]:
    """Logins that are dropped at the end."""
    with ExitStack() as stack:
        yield Logins(dsn, conn, stack)
