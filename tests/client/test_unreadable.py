"""JSON that other clients wrote and Python cannot hold: it is text, and hides nothing else."""

import json
from typing import Any

import psycopg
import pytest

from hwqueue.client import Client
from hwqueue.client._json import read_json
from tests.sql.api import Api

LONG = "7" * 5000
LARGE = "1" + "0" * 400 + ".5"


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("text", [LONG, f"-{LONG}", LARGE, f"-{LARGE}", nested(221), nested(5000)])
def test_what_cannot_be_held_is_text(text: str) -> None:
    assert read_json(text.encode()) == text
    assert read_json(text) == text


def test_the_rest_of_it_is_as_it_is() -> None:
    told = read_json(f'{{"a": {LONG}, "b": [1, 2.5, {LARGE}], "c": "{LONG}"}}'.encode())
    assert told == {"a": LONG, "b": [1, 2.5, LARGE], "c": LONG}


@pytest.mark.parametrize(
    "value", [None, 1, 2.5, "text", 10**4000, -(10**300), [[{"a": 1}]] * 300, json.loads(nested(220))]
)
def test_all_else_is_read(value: Any) -> None:
    assert read_json(json.dumps(value).encode()) == value


def test_ordinary_json_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes several times as long as reading it; payloads of workers come this way."""
    for careful in ("_integer", "_float", "_is_deep"):
        monkeypatch.setattr(f"hwqueue.client._json.{careful}", None)
    value = {"frames": list(range(2000)), "weights": [-1.5e30, 0.1], "name": "x" * 500}
    assert read_json(json.dumps(value).encode()) == value


def test_one_lease_hides_no_other(conn: psycopg.Connection, dsn: str) -> None:
    """On connections of the client's own, and on one that the caller has."""
    api = Api(conn)
    node = api.node()
    api.rows("create_queue", queue="q", policy={})
    odd = [f'{{"odd": {text}}}' for text in (LONG, LARGE, nested(221), nested(2000))]
    for text in odd:
        conn.execute("select hwqueue.spawn_lease('q', 't', %s, %s)", [text, f'{{"headers": {text}}}'])
    with Client(dsn, pool_size=1) as own:
        plain = own.spawn_lease("q", "t", {"plain": 1}).lease_id
        for client in (own, Client.on(conn)):
            leases = client.list_leases()
            assert len(leases) == 5
            for each in leases:
                lease = client.get_lease(each.lease_id)
                assert (each.lease_id == plain) == (lease.params == {"plain": 1})
                assert json.loads(json.dumps(lease.params)) == lease.params
        claims = own.claim_task(["q"], node.node_id, node.epoch, qty=5)
        assert len(claims) == 5
        for claim, error in zip(claims, [*odd, odd[0]], strict=True):
            assert all(isinstance(name, str) for name in claim.headers or {})
            conn.execute("select hwqueue.fail_lease(%s, %s, %s)", [claim.lease_id, claim.claim_token, error])
        assert {own.get_lease(each.lease_id).state for each in leases} == {"scheduled"}
