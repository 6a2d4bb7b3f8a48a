"""Which errors pass by themselves, so that the same call is worth repeating."""

from __future__ import annotations

import psycopg

from hwqueue.driver_errors import PASSING
from hwqueue.errors import HwqueueError, NodeUnknown

# The driver has no SQLSTATE when a connection cannot be made, only words: of libpq, of the
# server, of PgBouncer.
_NOT_YET = (
    "cannot connect to server",
    "connection refused",
    "connection slots",
    "could not translate host name",
    "failed to resolve host",
    "hot standby",
    "in recovery mode",
    "login has been failing",
    "network is unreachable",
    "no route to host",
    "no such file or directory",  # the server's Unix socket
    "not accepting connections",
    "not yet accepting connections",
    "read-only",  # target_session_attrs, while no server is the primary
    "server closed the connection",
    "shutting down",
    "starting up",
    "timed out",
    "timeout expired",
    "too many clients",
)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later, on a database that was reached before."""
    if isinstance(error, HwqueueError):
        return error.retryable or isinstance(error, NodeUnknown)
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:  # the connection was lost, or there is none
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate.startswith(PASSING)


def may_come_up(error: BaseException) -> bool:
    """Whether a first connection may succeed later: the server is away, not our settings wrong.

    A name that cannot be resolved is waited for, too: containers start in any order.
    """
    if not isinstance(error, psycopg.OperationalError):
        return False
    if isinstance(error, psycopg.errors.ConnectionTimeout):
        return True
    words = str(error).lower()
    return any(phrase in words for phrase in _NOT_YET)
