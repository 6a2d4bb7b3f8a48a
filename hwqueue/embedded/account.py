"""Which operating system user runs the server: Postgres refuses to run as root."""

import logging
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hwqueue.embedded.errors import NoPermission

# `postgres` exists where a Postgres package was ever installed; `hwqueue` is for who makes one.
_DEDICATED = ("postgres", "hwqueue")
# Exist everywhere, but any other program run as one of them could read the data and the password.
_SHARED = ("nobody", "daemon")
# The programs of other embedded servers are no strangers.
_OWN_PROGRAMS = {"postgres", "initdb", "pg_ctl"}
_MAKE_ONE = "useradd --system --no-create-home hwqueue"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Account:
    """An unprivileged user that root runs the server as."""

    name: str
    uid: int
    gid: int


def server_account(data: Path) -> Account | None:
    """The user to run the server as; None means the current one.

    Only root needs another: the owner of `data` where it exists, else a user of its own
    (`postgres` or `hwqueue`). Where neither exists, as in a bare container, a shared one that no
    other program runs as at this moment, with a warning.

    Raises:
        NoPermission: running as root, and there is no such user.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := _by_uid(data.stat().st_uid)):
        return owner
    for name in _DEDICATED:
        if account := _by_name(name):
            return account
    for name in _SHARED:
        if (account := _by_name(name)) and not _has_other_programs(account):
            _log.warning(
                "the embedded server will run as the user %s, so whatever else is run as %s later "
                "can read its data; better make it a user of its own first: %s",
                *(name, name, _MAKE_ONE),
            )
            return account
    raise NoPermission(
        "root needs another user to run the server as; there is no "
        f"{' or '.join(_DEDICATED)}, and other programs run as {' and '.join(_SHARED)}",
        hint=f"make one: {_MAKE_ONE}",
    )


def switch_to(account: Account | None) -> dict[str, Any]:
    """The `subprocess.run` arguments that run a program as `account`."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _has_other_programs(account: Account) -> bool:
    return any(
        account.uid in process.info["uids"] and process.info["name"] not in _OWN_PROGRAMS
        for process in psutil.process_iter(["uids", "name"])
        if process.info["uids"] is not None
    )


def _by_uid(uid: int) -> Account | None:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return None if uid == 0 else Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _by_name(name: str) -> Account | None:
    try:
        return _by_uid(pwd.getpwnam(name).pw_uid)
    except KeyError:
        return None
