"""Run a pipeline on made-up machines, and show where each step ran: `python run.py gpu_training`.

In the database that HWQUEUE_DSN names. In production a worker on each machine does what one process
does here.
"""

import importlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any
from uuid import UUID

from fleet import add_machines

from hwqueue import Client
from hwqueue.testing import Fleet, MadeUpNode, Run, create_queues, drain


def show(client: Client, run_id: UUID, drained: Iterable[Run]) -> Iterator[str]:
    """A line for each step: where it ran, on what, and what came out."""
    ran: defaultdict[str, list[MadeUpNode]] = defaultdict(list)
    for run in drained:
        ran[(run.claim.headers or {})["step"]].append(run.node)
    for step in client.list_workflow_steps(run_id):
        where = step.reason or ""
        if on := ran[step.step]:
            names = {node.name for node in on}
            where = f"{len(on)} runs, {len(names)} machines"
            if len(on) == 1:
                where = f"{on[0].name}, rack {on[0].spec.rack}"
        came_out = shortened(step.error["message"] if step.error else step.result)
        yield f"{step.step:12} {step.state:10} {where:21} {came_out}".rstrip()
    done = client.get_workflow_run(run_id)
    yield f"{done.state}  {shortened(done.result)}".rstrip()


def shortened(value: Any) -> str:
    text = "" if value is None else repr(value)
    return text if len(text) <= 44 else f"{text[:44]}..."


def main(pipeline: ModuleType, client: Client) -> None:
    fleet = Fleet(client)
    add_machines(fleet)
    create_queues(client, pipeline.app)
    try:
        run_id = pipeline.submit(client)
        drained = [*drain(client, pipeline.app, node=fleet, raises=False)]
        if hasattr(pipeline, "decide"):  # it waits for a person
            pipeline.decide(client, run_id)
            drained += drain(client, pipeline.app, node=fleet, raises=False)
        print(*show(client, run_id, drained), sep="\n")
    finally:
        for node in fleet.nodes:
            client.deregister_node(node.node_id)


if __name__ == "__main__":
    with Client() as client:
        main(importlib.import_module(sys.argv[1]), client)
