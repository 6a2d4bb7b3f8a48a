"""A worker without a login of the database: it makes the calls of its node over HTTP."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

import aiohttp
from psycopg.types.json import Jsonb

from hwqueue import calls
from hwqueue.calls import Call
from hwqueue.client._drivers import Rows
from hwqueue.client._http import LONGEST_WAIT_SECONDS, NODE_CALLS, OF_THE_NODE, SECRET, as_json, rows_of
from hwqueue.client._json import check_json
from hwqueue.client._settle import Batch
from hwqueue.errors import BY_SQLSTATE, BadArgument, ConfigError, HwqueueError, NodeNotBound
from hwqueue.worker.session import NodeClient

_TIMEOUT = aiohttp.ClientTimeout(60, sock_connect=10)
_WAIT_TIMEOUT = aiohttp.ClientTimeout(LONGEST_WAIT_SECONDS + 10, sock_connect=10)
# Less than the server's own, and than those of most proxies: who is the first to close loses no request.
_KEEP_ALIVE_SECONDS = 4.0
# What passes by itself, also where a proxy in front says it.
_PASSING = (408, 429, 502, 503, 504)
_ROUTES: Mapping[Call, str] = {each.call: route for route, each in NODE_CALLS.items()}


class Gateway:
    """The way to an HTTP server: it makes a node's calls as a connection would.

    Args:
        url: Of the server, without `/api/v1`.
        token_file: Holds a token of role worker.
        node_id: The node.
    """

    def __init__(self, url: str, token_file: Path, node_id: UUID) -> None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"token_file: {error}") from error
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigError(f"token_file: {token_file} holds no token")
        base = f"{url.rstrip('/')}/api/v1/nodes/{node_id}/"
        self._http = aiohttp.ClientSession(
            base,
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            connector=aiohttp.TCPConnector(keepalive_timeout=_KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            json_serialize=partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
            proxy=_proxy_for(url),
            timeout=_TIMEOUT,
        )

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make a call of the node; the server says that its token does it."""
        body = {
            name.removeprefix("p_"): _in_json(value)
            for name, value in arguments.items()
            if name not in OF_THE_NODE
        }
        if call is calls.REGISTER_NODE:
            answer = await self._ask("POST", "register", json=body)
            self._http.headers[SECRET] = answer["secret"]
            return [[int(answer["node_epoch"])]]
        return rows_of(call, await self._ask("POST", _ROUTES[call], json=body))

    async def announced(self, queues: Collection[str], after: float | None) -> Mapping[str, Any]:
        """Wait until something is announced that came after this time of the server's."""
        params = {"queue": list(queues), **({} if after is None else {"after": after})}
        return await self._ask("GET", "wait", params=params, timeout=_WAIT_TIMEOUT)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()

    async def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            async with self._http.request(method, path, allow_redirects=False, **request) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise HwqueueError(f"no answer of the server: {error!r}", retryable=True) from error
        if not 200 <= response.status < 300:
            raise _error_of(response, body)
        answer: dict[str, Any] = json.loads(body)
        return answer


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a server: `HTTPS_PROXY`, `NO_PROXY`."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


class GatewayClient(NodeClient):
    """A worker's client on a `Gateway`."""

    def __init__(self, gateway: Gateway) -> None:
        self._pool = None
        self._actor = None
        self._runner = self.gateway = gateway

    async def close(self) -> None:
        """Close the connections."""
        await self.gateway.close()

    async def check_schema(self) -> None:
        """The server has looked at the schema."""

    async def announced(self, queues: Collection[str], after: float | None) -> Mapping[str, Any]:
        """What the server has heard."""
        return await self.gateway.announced(queues, after)

    async def settle_batch(self, node_id: UUID, node_epoch: int, batch: Batch, **asked: Any) -> Rows:
        """`settle_and_claim`, as the client on a database makes it."""
        check_json(batch.items, "settle")
        given = {f"p_{name}": value for name, value in asked.items() if value is not None}
        given |= {
            "p_settle": batch.items,
            "p_completed": batch.completed,
            "p_completed_tokens": batch.tokens,
        }
        return await self._runner.run(calls.SETTLE_AND_CLAIM, given)


def _in_json(value: Any) -> Any:
    """An argument of a call as a request has it."""
    if isinstance(value, Jsonb):
        return value.obj
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else as_json(value)


def _error_of(response: aiohttp.ClientResponse, body: bytes) -> HwqueueError:
    """What the server, or a proxy in front of it, says that went wrong."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    status = response.status
    message = problem.get("detail") or f"the server answers {status} {response.reason}"
    code, hint = problem.get("code"), problem.get("hint")
    if status == 401:
        hint = "put another token into the file: hwqueue token create NAME --role worker --node NODE"
        return NodeNotBound(message, hint=hint)
    if code in BY_SQLSTATE:
        return BY_SQLSTATE[code](message, detail=problem.get("facts"), hint=hint)
    if status == 413:
        return BadArgument(message, hint=hint)
    return HwqueueError(message, hint=hint, retryable=status in _PASSING)
