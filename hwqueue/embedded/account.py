"""Which operating system user runs the server: Postgres refuses to run as root."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwqueue.embedded.errors import NoPermission

# `postgres` exists where a Postgres package was ever installed; the others exist everywhere.
_CANDIDATES = ("postgres", "nobody", "daemon")


@dataclass(frozen=True)
class Account:
    """An unprivileged user that root runs the server as."""

    name: str
    uid: int
    gid: int


def server_account(data: Path) -> Account | None:
    """The user to run the server as; None means the current one.

    Only root needs another: the owner of `data` where it exists, else the first candidate.

    Raises:
        NoPermission: running as root and no unprivileged user exists.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := _by_uid(data.stat().st_uid)):
        return owner
    for name in _CANDIDATES:
        if account := _by_name(name):
            return account
    raise NoPermission(
        f"running as root, and none of the users {', '.join(_CANDIDATES)} exists to run the server",
        hint="create one: useradd --system postgres",
    )


def switch_to(account: Account | None) -> dict[str, Any]:
    """The `subprocess.run` arguments that run a program as `account`."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


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
