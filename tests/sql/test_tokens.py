"""Tokens of the HTTP API: create_token, check_token, list_tokens, revoke_token."""

import hashlib
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api

_numbers = count(1)


def made(api: Api, role: str = "viewer", **rest: Any) -> tuple[str, bytes]:
    """Make a token; its name and the hash of its secret."""
    name = f"token-{next(_numbers)}"
    digest = hashlib.sha256(name.encode()).digest()
    api.rows("create_token", name=name, secret_sha256=digest, role=role, **rest)
    return name, digest


def listed(api: Api, name: str) -> dict[str, Any]:
    """What list_tokens says of a token."""
    [row] = [row for row in api.rows("list_tokens") if row["name"] == name]
    return row


def test_a_token_is_known_by_its_hash(api: Api) -> None:
    name, digest = made(api, "producer", tenant="film")
    assert api.row("check_token", secret_sha256=digest) == {
        "name": name, "role": "producer", "tenant": "film", "expires_at": None,
    }  # fmt: skip
    assert api.rows("check_token", secret_sha256=bytes(32)) == []
    assert api.rows("check_token", secret_sha256=digest[:31]) == []


def test_it_ends(api: Api, clock: Clock) -> None:
    _, digest = made(api, expires_at=clock.now() + timedelta(hours=1))
    assert api.rows("check_token", secret_sha256=digest)
    clock.advance(timedelta(hours=1))
    assert api.rows("check_token", secret_sha256=digest) == []
    name, _ = made(api, expires_at="infinity")
    assert listed(api, name)["expires_at"] is None


def test_it_is_revoked_once_and_for_all(api: Api, clock: Clock) -> None:
    name, digest = made(api)
    at = clock.now()
    assert api.value("revoke_token", name=name) is True
    clock.advance(timedelta(minutes=1))
    assert api.value("revoke_token", name=name) is False
    assert api.rows("check_token", secret_sha256=digest) == []
    assert listed(api, name)["revoked_at"] == at
    again = {"name": name, "secret_sha256": bytes(32), "role": "viewer"}
    assert api.refused("QHK02", "create_token", **again).field == "p_name"
    api.refused("QHK01", "revoke_token", name="nobody")


def test_its_use_is_noted_to_the_hour(api: Api, clock: Clock) -> None:
    name, digest = made(api)
    assert listed(api, name)["used_at"] is None
    first = clock.now()
    api.rows("check_token", secret_sha256=digest)
    clock.advance(timedelta(minutes=59))
    api.rows("check_token", secret_sha256=digest)
    assert listed(api, name)["used_at"] == first
    clock.advance(timedelta(minutes=2))
    api.rows("check_token", secret_sha256=digest)
    assert listed(api, name)["used_at"] == first + timedelta(minutes=61)


def test_who_made_and_ended_it(api: Api) -> None:
    with api.conn.transaction():
        api.conn.execute("select set_config('hwqueue.actor', 'token:ops', true)")
        name, _ = made(api)
    user = api.one("select session_user")
    row = listed(api, name)
    assert (row["created_by"], row["created_login"]) == ("token:ops", user)
    assert row["revoked_login"] is None
    api.rows("revoke_token", name=name)
    row = listed(api, name)
    assert (row["revoked_by"], row["revoked_login"]) == (user, user)


@pytest.mark.thorough
def test_bad_arguments(api: Api, clock: Clock) -> None:
    good = {"name": "new", "secret_sha256": bytes(32), "role": "viewer"}
    for argument, values in {
        "name": ("", None),
        "secret_sha256": (b"short", None),
        "role": ("king", None),
        "tenant": ("", "t" * 101),
        # what has ended already; what nobody could read again, too
        "expires_at": (clock.now(), "10000-01-01", "-infinity"),
    }.items():
        for value in values:
            assert api.fault("create_token", **good | {argument: value}) == f"p_{argument}"
