"""Methods about tokens of the HTTP API."""

from __future__ import annotations

from datetime import datetime, timedelta

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart


class AsyncTokens(AsyncPart):
    """Say who may use the HTTP API. The database keeps hashes; secrets are the caller's."""

    async def create_token(
        self,
        name: str,
        secret_sha256: bytes,
        role: str,
        *,
        tenant: str | None = None,
        expires_at: datetime | None = None,
        expires_after: timedelta | None = None,
    ) -> None:
        """Let in a caller who knows a secret.

        Args:
            name: Whom its actions are put down to; never given twice.
            secret_sha256: 32 bytes, the hash of at least 32 random ones.
            role: `producer`, `viewer`, `operator` or `admin`.
            tenant: The only one that it sees and spawns for; None: all.
            expires_at, expires_after: When it ends, with a time zone, or how long from now by the
                database's clock; None: never.

        Raises: TokenNameTaken, BadArgument.
        SQL: create_token. Safe inside your transaction: yes.
        """
        await self._call(
            calls.CREATE_TOKEN,
            p_name=name,
            p_secret_sha256=secret_sha256,
            p_role=role,
            p_tenant=tenant,
            p_expires_at=expires_at,
            p_expires_after=expires_after,
        )

    async def check_token(self, secret_sha256: bytes) -> types.TokenGrant | None:
        """Whose secret has this hash; None when it lets nobody in (any more).

        SQL: check_token. Safe inside your transaction: yes.
        """
        found = await self._rows(calls.CHECK_TOKEN, p_secret_sha256=secret_sha256)
        return found[0] if found else None

    async def list_tokens(self) -> list[types.ApiToken]:
        """All tokens that there ever were, newest first.

        SQL: list_tokens. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_TOKENS)

    async def revoke_token(self, name: str) -> bool:
        """End a token; servers that have just seen it let it in for some seconds more.

        Returns: Whether it was not revoked before.
        Raises: TokenUnknown.
        SQL: revoke_token. Safe inside your transaction: yes.
        """
        return await self._value(calls.REVOKE_TOKEN, p_name=name)
