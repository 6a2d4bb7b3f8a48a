"""Tokens of the HTTP API, through both clients."""

from datetime import UTC, datetime, timedelta

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument, TokenNameTaken, TokenUnknown

DIGEST = bytes(range(32))


async def test_from_made_to_revoked(client: AsyncClient) -> None:
    ends = datetime.now(UTC) + timedelta(days=1)
    await client.create_token("ci", DIGEST, "producer", tenant="film", expires_at=ends)
    grant = await client.check_token(DIGEST)
    assert grant is not None
    assert (grant.name, grant.role, grant.tenant, grant.expires_at) == (
        "ci", "producer", "film", ends,
    )  # fmt: skip
    [token] = await client.list_tokens()
    assert (token.name, token.used_at is None, token.revoked_at) == ("ci", False, None)
    assert await client.revoke_token("ci") is True
    assert await client.revoke_token("ci") is False
    assert await client.check_token(DIGEST) is None


async def test_what_is_refused(client: AsyncClient) -> None:
    await client.create_token("ci", DIGEST, "viewer")
    with pytest.raises(TokenNameTaken):
        await client.create_token("ci", bytes(32), "viewer")
    with pytest.raises(TokenUnknown):
        await client.revoke_token("nobody")
    with pytest.raises(BadArgument) as caught:
        await client.create_token("new", "text", "viewer")  # type: ignore[arg-type]
    assert caught.value.field == "secret_sha256"
