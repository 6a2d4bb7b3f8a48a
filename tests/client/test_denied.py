"""A call that the login may not make says which role may."""

import psycopg
import pytest

from hwqueue.client import AsyncClient


async def test_a_refused_call_says_which_role_is_needed(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("create role denied_here in role hwqueue_producer")
        await connection.execute("set local role denied_here")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="list_leases") as caught:
            await AsyncClient.on(connection).list_leases()
        await connection.rollback()
    [note] = caught.value.__notes__
    assert note.startswith("hint: log in as one who has the role")
    assert "hwqueue_operator looks at everything" in note
