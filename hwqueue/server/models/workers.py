"""What workers over HTTP send, and what they get."""

from __future__ import annotations

from typing import Any

from pydantic import Field, create_model

from hwqueue.client._http import NODE_CALLS, NodeCall
from hwqueue.server.models.base import (
    EXAMPLE_ID,
    Answer,
    BigInt,
    Flag,
    Id,
    Moment,
    Number,
    Object,
    Request,
    Seconds,
    Whole,
    example,
)

_FORMS: dict[str, Any] = {
    "uuid": Id,
    "uuid[]": list[Id],
    "text": str,
    "text[]": list[str],
    "integer": Whole,
    "bigint": int,
    "bigint[]": list[int],
    "boolean": Flag,
    "interval": Seconds,
    "timestamp with time zone": Moment,
    "jsonb": Any,
}


class Registration(Request):
    """A node, as `register_node` takes it."""

    model_config = example(spec={"name": "edge-1", "instance_id": "a-start", "labels": {"gpu": True}})

    spec: Object


class Registered(Answer):
    """What opens the node from now on: `secret` in the header Node-Secret of each request."""

    node_epoch: BigInt
    secret: str


class Value(Answer):
    """What the function returns."""

    value: Any


class Items(Answer):
    """The rows that the function returns, by its columns."""

    items: list[dict[str, Any]]


class Waited(Answer):
    """What was announced: work for the queues, or that claims are to stop."""

    work: bool
    stop: bool
    after: Number = Field(description="To ask after next: a time of the server's.")


_LEASE = {"lease_id": EXAMPLE_ID, "claim_token": 947000000000000000}
_EXAMPLES: dict[str, Any] = {
    "queues": ["renders"],
    "settle": [{**_LEASE, "outcome": "complete", "result": 7}],
    "reports": [{**_LEASE, "fraction": 0.5}],
    "logs": [{**_LEASE, "lines": [{"line": 1, "at": "2030-01-31T12:00:00Z", "message": "loaded"}]}],
    "lease": EXAMPLE_ID,
    "token": _LEASE["claim_token"],
    "run": EXAMPLE_ID,
    "lease_ids": [EXAMPLE_ID],
    "step": "train",
    "name": "loaded",
    "signal": "approved",
    "items": [{"name": "shard-1", "params": {"shard": 1}}],
    "spec": {"name": "more", "steps": [{"name": "a", "task": "train"}]},
    "defaults": {"train": {"max_attempts": 3}},
    "extend": 600,
    "retry_after": 30,
}


def form_of(route: str, node_call: NodeCall) -> type[Request]:
    """The form of a request: the arguments of the function."""
    members: dict[str, Any] = {
        name: (_FORMS[sql_type], ...) if node_call.is_needed(name) else (_FORMS[sql_type] | None, None)
        for name, sql_type in node_call.arguments.items()
    }
    needed = {name: _EXAMPLES[name] for name in node_call.arguments if node_call.is_needed(name)}
    with_example = type("Request", (Request,), {"model_config": example(**needed)})
    made: type[Request] = create_model(
        f"Node{route.title()}",
        __base__=with_example,
        __doc__=f"The arguments of `{node_call.call.name}`.",
        **members,
    )
    return made


FORMS = {route: form_of(route, node_call) for route, node_call in NODE_CALLS.items()}
