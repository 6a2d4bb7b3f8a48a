"""A run of a workflow on the made-up cluster: it goes on up to a step that no node can run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from hwqueue.client import Client

WORKFLOW = "demo-pipeline"
_H100 = {"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}
_STEPS: list[dict[str, Any]] = [
    {"name": "fetch", "task": "fetch"},
    {"name": "clean", "task": "clean", "after": ["fetch"]},
    {"name": "check-quality", "task": "check", "after": ["fetch"]},
    {
        "name": "train",
        "task": "train",
        "after": ["clean", "check-quality"],
        "placement": {"resources": {"gpu": 1}},
    },
    {"name": "evaluate", "task": "evaluate", "after": ["train"], "placement": _H100},
    {"name": "publish", "task": "publish", "after": ["evaluate"]},
    {"name": "tell", "task": "tell", "after": [{"step": "evaluate", "on": "failed"}]},
]


def stop(client: Client) -> None:
    """Cancel the runs that earlier demos left open."""
    for run in client.list_workflow_runs(workflow=WORKFLOW, state="running"):
        client.cancel_workflow_run(run.run_id, reason="another demo begins")


def play(client: Client, queue: str, nodes: Collection[UUID]) -> UUID:
    """Submit a run and let nodes complete its steps until none can run another; its id.

    Args:
        nodes: Registered ones that may claim from the queue; whatever they claim is completed.
    """
    client.define_workflow({"name": WORKFLOW, "queue": queue, "steps": _STEPS})
    run = client.submit_workflow(WORKFLOW, {"dataset": "s3://demo/films"})
    there = [node for node in client.list_nodes() if node.node_id in nodes]
    while sum(_turn(client, queue, node.node_id, node.node_epoch) for node in there):
        pass
    return run.run_id


def _turn(client: Client, queue: str, node: UUID, epoch: int) -> int:
    """Let a node claim and complete what it may run; how much that was."""
    claims = client.claim_task([queue], node, epoch, qty=10)
    for claim in claims:
        client.complete_lease(claim.lease_id, claim.claim_token)
    return len(claims)
