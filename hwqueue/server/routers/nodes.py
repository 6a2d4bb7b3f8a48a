"""Nodes: look at them, take them out of service and back."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from hwqueue.client import AsyncClient
from hwqueue.errors import NodeUnknown
from hwqueue.server.dependencies import AuthenticatedRoute, Caller
from hwqueue.server.models import nodes as models
from hwqueue.server.models.base import Id
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import NO_NODE, Operator, Reader
from hwqueue.types import Node

router = APIRouter(route_class=AuthenticatedRoute, prefix="/nodes", tags=["nodes"])


@router.get("", response_model=models.NodePage)
async def list_nodes(
    *,
    caller: Reader,
    page: Paged,
    name: Annotated[str | None, Query(min_length=1, max_length=253)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    after: Annotated[
        str | None,
        Query(min_length=1, max_length=253, description="Cursor: `next` of the page before."),
    ] = None,
) -> Any:
    """Registered nodes with what they have and what is in use, by name."""
    async with caller.read() as client:
        found = await client.list_nodes(name=name, after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.name, name="after")


@router.get("/{node_id:uuid}", response_model=models.NodeOut, responses=NO_NODE)
async def get_node(node_id: Id, caller: Reader) -> Any:
    """A node with what it has and what is in use."""
    async with caller.call() as client:
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/cordon", response_model=models.NodeOut, responses=NO_NODE)
async def cordon_node(node_id: Id, caller: Operator) -> Any:
    """Grant it no more claims; running ones go on."""
    async with caller.call() as client:
        await client.cordon_node(node_id)
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/uncordon", response_model=models.NodeOut, responses=NO_NODE)
async def uncordon_node(node_id: Id, caller: Operator) -> Any:
    """Undo cordon and drain."""
    async with caller.call() as client:
        await client.uncordon_node(node_id)
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/drain", response_model=models.NodeOut, responses=NO_NODE)
async def drain_node(node_id: Id, caller: Operator, body: models.DrainRequest | None = None) -> Any:
    """Cordon it and, with a deadline, ask what runs there to stop by then."""
    async with caller.call() as client:
        await client.drain_node(node_id, deadline=body.span if body else None)
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/deregister", status_code=204, responses=NO_NODE)
async def deregister_node(node_id: Id, caller: Operator) -> None:
    """Take it out of the fleet; its claims end at once, with one attempt used."""
    async with caller.call() as client:
        await client.deregister_node(node_id)


@router.post("/{node_id:uuid}/taint", response_model=models.NodeOut, responses=NO_NODE)
async def taint_node(node_id: Id, body: models.TaintRequest, caller: Operator) -> Any:
    """Keep leases off it that do not tolerate the taint."""
    async with caller.call() as client:
        taint = body.model_dump(exclude_none=True)
        await client.taint_node(node_id, taint)
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/untaint", responses=NO_NODE)
async def untaint_node(node_id: Id, body: models.UntaintRequest, caller: Operator) -> models.Untainted:
    """Take taints of operators off it; those that it registered with stay."""
    async with caller.call() as client:
        removed = await client.untaint_node(node_id, body.key, effect=body.effect)
    return models.Untainted(removed=removed)


@router.put("/{node_id:uuid}/tenants", response_model=models.NodeOut, responses=NO_NODE)
async def set_node_tenants(node_id: Id, body: models.NodeTenantsRequest, caller: Operator) -> Any:
    """Say for which tenants it is, any of them, instead of those before."""
    async with caller.call() as client:
        await client.set_node_tenants(node_id, body.tenants, stop=body.stop)
        return await _find(client, node_id, caller)


@router.post("/{node_id:uuid}/hand-over", response_model=models.NodeOut, responses=NO_NODE)
async def hand_over_node(node_id: Id, body: models.HandOverRequest, caller: Operator) -> Any:
    """Give it and its claims to another login; its attestations are suspended."""
    async with caller.call() as client:
        await _find(client, node_id, caller)  # one that left has a login, and no answer here
        await client.hand_over_node(node_id, body.login)
        return await _find(client, node_id, caller)


async def _find(client: AsyncClient, node_id: Id, caller: Caller) -> Node:
    """The node. Raises: NodeUnknown."""
    for node in await client.list_nodes(node_id=node_id):
        return node
    raise NodeUnknown(
        f"node {node_id} is not registered",
        detail={"field": "node_id", "node_id": str(node_id)},
        hint="list them: GET /api/v1/nodes",
    )
