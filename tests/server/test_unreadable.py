"""What other clients have written: whatever the database lets in, lists show the others."""

from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from hwqueue.cli.main import app
from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.client.test_unreadable import LARGE, LONG, nested
from tests.server.conftest import V1, Http, ok

STRANGE = '"\\u0001\\ud83d\\ude00\\r\\n"'
ODD = [LONG, LARGE, f"-{LARGE}", nested(221), nested(2000), '"NaN"', STRANGE]


@pytest.fixture
def leases(dsn: str, sql: Client, queue: str) -> list[str]:
    """Leases with something odd in all that is written by users, and a plain one, newest first."""
    made = []
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name=str(node), instance_id="first"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        for odd in ODD:
            value = f'{{"odd": {odd}}}'
            spawned = connection.execute(
                "select lease_id from hwqueue.spawn_lease(%s, 't', %s, %s)",
                [queue, value, f'{{"headers": {value}}}'],
            ).fetchone()
            assert spawned is not None
            [claim] = sql.claim_task([queue], node, epoch)
            connection.execute(
                "select hwqueue.fail_lease(%s, %s, %s, false)", [*spawned, claim.claim_token, value]
            )
            made.append(str(spawned[0]))
    return [str(sql.spawn_lease(queue, "t").lease_id), *reversed(made)]


async def test_lists_show_all(http: Http, queue: str, leases: list[str]) -> None:
    page = ok(await http.get(f"{V1}/leases", params={"queue": queue}))
    assert [lease["lease_id"] for lease in page["items"]] == leases
    for lease_id in leases[1:]:
        lease = ok(await http.get(f"{V1}/leases/{lease_id}"))
        assert lease["state"] == "failed"
        for member in ("params", "headers", "error"):
            assert lease[member], member
    page = await http.get("/leases", params={"queue": queue})
    for lease_id in leases:
        assert lease_id in page.text
        assert (await http.get(f"/leases/{lease_id}")).status_code == 200


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_so_does_the_terminal(dsn: str, queue: str, leases: list[str], form: tuple[str, ...]) -> None:
    listed = _cli(dsn, *form, "lease", "list", "--queue", queue)
    for lease_id in leases:
        assert lease_id in listed
        assert lease_id in _cli(dsn, *form, "lease", "show", lease_id)


def _cli(dsn: str, *words: str) -> str:
    result = CliRunner().invoke(app, ["--dsn", dsn, *words])
    assert result.exit_code == 0, result.output
    return result.stdout
