"""Workers without a login of the database: their token is bound to nodes, each with a secret.

Every request opens its node first (`enter_node`), in the transaction of the call itself: what the
token or the node's secret does not open, or another node holds, is refused there.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import ValidationError
from pydantic_core import to_json

from hwqueue.client._http import LONGEST_WAIT_SECONDS, NODE_CALLS, SECRET, NodeCall, answer_of
from hwqueue.errors import NodeNotBound
from hwqueue.server.auth import hash_of, unauthorised
from hwqueue.server.dependencies import AuthenticatedRoute, Caller
from hwqueue.server.models import workers as models
from hwqueue.server.models.base import Id, Name
from hwqueue.server.models.workers import FORMS
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.roles import Principal, Scope
from hwqueue.server.routers.shared import Responses, Worker
from hwqueue.types.nodes import id_of_node

router = APIRouter(route_class=AuthenticatedRoute, prefix="/nodes", tags=["workers"])

SECRET_LENGTH = 43
"""Characters of 32 random bytes."""

Secret = Annotated[
    str,
    Header(
        alias=SECRET,
        min_length=SECRET_LENGTH,
        max_length=SECRET_LENGTH,
        description="That of the node's registration.",
    ),
]
_RESPONSES: Responses = {
    404: {"description": "The token has no such node registered."},
    409: {"description": "The node was registered again, or the claim is not its own."},
}
_JSON = "application/json"
_GONE = "this token lets nobody in: unknown, revoked or expired"


@router.post("/{node_id:uuid}/register", responses=_RESPONSES)
async def register_worker(node_id: Id, body: models.Registration, caller: Worker) -> models.Registered:
    """Register the node of a worker; the secret of the registration before opens it no more.

    The token is bound to the node's name, and the id is the one that belongs to the name.
    """
    name = body.spec.get("name")
    if not isinstance(name, str) or node_id != id_of_node(name):
        raise NodeNotBound(
            f"{node_id} is not the id of that name",
            detail={"field": "spec.name"},
            hint="it is the version 5 UUID of the name in the namespace uuid5(NAMESPACE_DNS, 'node.hwqueue')",
        )
    secret = secrets.token_urlsafe(32)
    async with caller.call() as client:
        epoch = await client.register_bound_node(_token_of(caller), node_id, body.spec, hash_of(secret))
    if epoch is None:
        raise unauthorised(_GONE)
    return models.Registered(node_epoch=epoch, secret=secret)


@router.get("/{node_id:uuid}/wait", responses=_RESPONSES)
async def wait_for_work(
    node_id: Id,
    caller: Worker,
    secret: Secret,
    queue: Annotated[list[Name], Query(max_length=1000, description="Whose work is meant.")] = [],  # noqa: B006
    after: Annotated[
        float | None, Query(allow_inf_nan=False, description="`after` of the answer before.")
    ] = None,
) -> models.Waited:
    """Wait until there may be work, or claims are to stop: 20 seconds at most.

    It is a hint, and may come for nothing; poll as well. Such a request counts as an event stream.
    """
    with caller.services.streams.slot(caller.principal.counted_name):
        async with _refusing(), caller.call() as client:
            await client.enter_node(_token_of(caller), node_id, hash_of(secret))
            work = [each.payload for each in await client.wake_payloads(queue)] if queue else []
            stop = await client.node_wake_payload(node_id)
        heard, now = await caller.services.announcements.wait([*work, stop], after, LONGEST_WAIT_SECONDS)
    return models.Waited(work=not set(work).isdisjoint(heard), stop=stop in heard, after=now)


class NodeRoute(AuthenticatedRoute):
    """A call of a node, of which a fleet makes many a second.

    To find out what a function needs, and to check what it answers, takes FastAPI several times what the
    database needs. So requests that are as they must be are read here; FastAPI says what is wrong with
    others.
    """

    async def answer_quickly(self, request: Request, principal: Principal, body: bytes) -> Response | None:
        """The answer to a request that is as it must be."""
        headers = request.headers
        given = headers.getlist(SECRET)
        is_usual = len(given) == 1 and len(given[0]) == SECRET_LENGTH and not request.url.query
        if not is_usual or headers.get("content-type") != _JSON or not principal.has(Scope.WORK):
            return None
        try:
            form = FORMS[self.path_format.rpartition("/")[2]].model_validate_json(body)
        except ValidationError:
            return None
        caller = Caller(principal, request.app.state.services)
        answer = await self.endpoint(request.path_params["node_id"], form, caller, given[0])
        return Response(to_json(answer), media_type=_JSON)


def _add_route(route: str, node_call: NodeCall) -> None:
    """The route of one call."""

    async def make_call(node_id: Id, body: Any, caller: Worker, secret: Secret) -> Any:
        call = node_call.call
        values: dict[str, Any] = {"p_node": node_id} if "p_node" in call.required else {}
        for name, sql_type in node_call.arguments.items():
            if (value := getattr(body, name)) is not None:
                values[f"p_{name}"] = timedelta(seconds=value) if sql_type == "interval" else value
        async with _refusing(), caller.node_call(_key_of(caller, node_id, secret)) as client:
            rows = await client._call(call, **values)
        return answer_of(call, rows)

    make_call.__annotations__["body"] = FORMS[route]
    router.add_api_route(
        f"/{{node_id:uuid}}/{route}",
        make_call,
        methods=["POST"],
        name=f"node_{route}",
        summary=node_call.call.name,
        description=f"{node_call.says} SQL: `{node_call.call.name}`.",
        response_model=models.Items if node_call.call.columns else models.Value,
        responses=_RESPONSES,
        route_class_override=NodeRoute,
    )


for _route, _node_call in NODE_CALLS.items():
    _add_route(_route, _node_call)


def _key_of(caller: Caller, node_id: UUID, secret: str) -> dict[str, Any]:
    """What opens a node."""
    return {"token": _token_of(caller), "node": node_id, "secret": hash_of(secret)}


@asynccontextmanager
async def _refusing() -> AsyncIterator[None]:
    """Who opens a node with a token that has ended is not known, as in all other requests."""
    try:
        yield
    except NodeNotBound as error:
        raise unauthorised(str(error)) from None


def _token_of(caller: Caller) -> bytes:
    """The hash of the worker's token. Raises: HTTPProblem (403)."""
    digest = caller.principal.token_sha256
    if digest is None:
        raise HTTPProblem(403, "workers show a token", hint="hwqueue token create NAME --role worker")
    return digest
