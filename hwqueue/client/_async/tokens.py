"""Methods about tokens of the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain


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
        nodes: Sequence[str] | None = None,
    ) -> None:
        """Let in a caller who knows a secret.

        Args:
            name: Whom its actions are put down to; never given twice.
            secret_sha256: 32 bytes, the hash of at least 32 random ones.
            role: `producer`, `viewer`, `operator`, `admin` or `worker`.
            tenant: The only one that it sees and spawns for; None: all.
            expires_at, expires_after: When it ends, with a time zone, or how long from now by the
                database's clock; None: never.
            nodes: Of role `worker`: names of the nodes that it may register, or how they begin,
                `edge-*`; 1 to 100.

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
            p_nodes=nodes,
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

    async def register_bound_node(
        self,
        token_sha256: bytes,
        node_id: UUID | str,
        spec: types.NodeSpec | Mapping[str, Any],
        secret_sha256: bytes,
    ) -> int | None:
        """Register a node for the bearer of a token of role `worker`; for the HTTP server.

        Args:
            secret_sha256: The hash of what opens the node from now on (`enter_node`).

        Returns: The node epoch; None when the token lets nobody in.
        Raises: NodeNotBound, and as `register_node`.
        SQL: register_bound_node. Safe inside your transaction: no, it locks the node until the end.
        """
        return await self._value(
            calls.REGISTER_BOUND_NODE,
            p_token_sha256=token_sha256,
            p_node=node_id,
            p_spec=plain(spec, "spec"),
            p_secret_sha256=secret_sha256,
        )

    async def enter_node(self, token_sha256: bytes, node_id: UUID | str, secret_sha256: bytes) -> int:
        """Open a node for a request of its worker, until the transaction ends.

        Returns: Its epoch.
        Raises: NodeNotBound when the token lets nobody in; NodeUnknown for every node that is not the
            token's; NodeSuperseded.
        SQL: enter_node. Safe inside your transaction: yes.
        """
        return await self._value(
            calls.ENTER_NODE, p_token_sha256=token_sha256, p_node=node_id, p_secret_sha256=secret_sha256
        )
