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


def test_it_is_revoked_once_and_for_all(api: Api, clock: Clock) -> None:
    name, digest = made(api)
    at = clock.now()
    assert api.value("revoke_token", name=name) is True
    clock.advance(timedelta(minutes=1))
    assert api.value("revoke_token", name=name) is False
    assert api.rows("check_token", secret_sha256=digest) == []
    assert listed(api, name)["revoked_at"] == at


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
    assert listed(api, name)["created_by"] == "token:ops"
    row = api.conn.execute("select session_user").fetchone()
    assert (listed(api, name)["created_login"],) == row
    assert listed(api, name)["revoked_login"] is None
    api.rows("revoke_token", name=name)
    row = api.conn.execute("select session_user").fetchone()
    assert (listed(api, name)["revoked_by"],) == row
    assert (listed(api, name)["revoked_login"],) == row


def test_a_name_is_given_once(api: Api) -> None:
    name, _ = made(api)
    api.rows("revoke_token", name=name)
    again = {"name": name, "secret_sha256": bytes(32), "role": "viewer"}
    assert api.refused("QHK02", "create_token", **again).field == "p_name"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "p_name"),
        ({"name": None}, "p_name"),
        ({"secret_sha256": b"short"}, "p_secret_sha256"),
        ({"secret_sha256": None}, "p_secret_sha256"),
        ({"role": "king"}, "p_role"),
        ({"role": None}, "p_role"),
        ({"tenant": ""}, "p_tenant"),
        ({"tenant": "t" * 101}, "p_tenant"),
    ],
)
@pytest.mark.thorough
def test_bad_arguments(api: Api, change: dict[str, Any], field: str) -> None:
    good = {"name": "new", "secret_sha256": bytes(32), "role": "viewer"}
    assert api.fault("create_token", **(good | change)) == field


def test_a_token_cannot_have_ended_already(api: Api, clock: Clock) -> None:
    good = {"name": "new", "secret_sha256": bytes(32), "role": "viewer"}
    for moment in (clock.now(), "10000-01-01", "-infinity"):  # what nobody could read again, too
        refused = api.refused("QHA01", "create_token", **good, expires_at=moment)
        assert refused.field == "p_expires_at"


def test_infinity_is_no_end(api: Api) -> None:
    name, _ = made(api, expires_at="infinity")
    assert listed(api, name)["expires_at"] is None


def test_an_unknown_name(api: Api) -> None:
    api.refused("QHK01", "revoke_token", name="nobody")
