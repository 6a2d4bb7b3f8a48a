"""hwqueue node: who may run work, and taking machines out of service."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import typer

from hwqueue.cli.completion import node_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.explanation import counted
from hwqueue.cli.gpus import gpus_of
from hwqueue.cli.inputs import (
    find_node,
    identifier,
    json_object,
    json_value,
    labels,
    moment_after,
    span,
    taint_of,
)
from hwqueue.cli.output import fields_of, say, show_item, show_items, show_one
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import age, exact_duration
from hwqueue.types import Node, NodeTaint, NodeUsage, ServedClass, TagCount
from hwqueue.worker.settings import WorkerSettings

app = typer.Typer(no_args_is_help=True, help="Who may run work; taking machines out of service.")

NodeName = Annotated[str, typer.Argument(help="Name or id of the node.", autocompletion=node_names)]
Domain = Annotated[str, typer.Argument(help="Name of the trust domain.")]


@app.command("list", epilog="Example: hwqueue node list --json")
def list_(ctx: typer.Context) -> None:
    """List the registered nodes and what they have given away."""
    with open_client(ctx) as client:
        found = client.list_nodes()
    empty = "no nodes; a worker registers one: hwqueue worker run"
    show_items(ctx, found, _row, fields=_facts, empty=empty)


@app.command(epilog="Example: hwqueue node show gpu-box-1")
def show(ctx: typer.Context, node: NodeName) -> None:
    """Show a node: labels, capacity, and the use of every device."""
    with open_client(ctx) as client:
        found = find_node(client, node)
    show_item(ctx, found, _facts, fields=_facts)


@app.command(epilog="Example: hwqueue node usage --state silent")
def usage(
    ctx: typer.Context,
    *,
    state: Annotated[
        str | None, typer.Option(help="Only nodes that are live, silent, cordoned or draining.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    after: Annotated[str | None, typer.Option(help="After this name: the last of the page before.")] = None,
) -> None:
    """Show how full the nodes are, by name."""
    with open_client(ctx) as client:
        found = client.node_usage(state=state, limit=limit, after=after)
    show_items(ctx, found, _usage_row, empty="no such nodes")
    if len(found) == limit:
        say(ctx, f"there may be more: --after {found[-1].node_name}")


@app.command("labels", epilog="Example: hwqueue node labels --label zone")
def labels_(
    ctx: typer.Context,
    *,
    label: Annotated[str | None, typer.Option(help="Only this label.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
) -> None:
    """Show how many nodes have each value of each label, the commonest first."""
    with open_client(ctx) as client:
        found = client.tag_distribution(label=label, limit=limit)
    show_items(ctx, found, _label_row, empty="no node has such a label")


@app.command(
    epilog="Example: hwqueue node register gpu-box-1 --label gpu=true "
    "--capacity '{\"cpu_milli\": 8000}' --gpu A100 --gpu A100"
)
def register(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the node, unique.")],
    *,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "--tags",
            help="Label of the node, key=value, or several as JSON; repeatable.",
        ),
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="cpu_milli, memory_mib and countables of your own, as JSON.")
    ] = "{}",
    gpu: Annotated[
        list[str] | None, typer.Option(help="MODEL[:MEMORY][xN], as A100:80GiBx4; repeatable.")
    ] = None,
    rack: Annotated[int | None, typer.Option(min=0, help="Number of its rack.")] = None,
    node_id: Annotated[
        str | None, typer.Option("--id", help="Its id; made from the name if left out.")
    ] = None,
    spec: Annotated[str | None, typer.Option(help="Whole specification instead: JSON or a file.")] = None,
    login: Annotated[
        str | None, typer.Option(help="Login of its worker; the node is yours if left out.")
    ] = None,
) -> None:
    """Register a node by hand, for workers in other languages; `worker run` does it by itself."""
    content = _spec(name, label, capacity, gpu or [], rack) if spec is None else None
    if spec is not None:
        if gpu or rack is not None or label or capacity != "{}":
            raise ConfigError("--spec says everything: leave out --label, --capacity, --gpu, --rack")
        content = {"name": name, "instance_id": uuid4().hex} | json_object(spec, "--spec")
    chosen = identifier(node_id, "--id") if node_id else _id_of(name)
    with open_client(ctx) as client:
        epoch = client.register_node(chosen, content or {})
        if login is not None:
            client.hand_over_node(chosen, login)
    show_one(ctx, {"node_id": chosen, "node_epoch": epoch})


@app.command(epilog="Example: hwqueue node cordon gpu-box-1")
def cordon(ctx: typer.Context, node: NodeName) -> None:
    """Give a node nothing more; what runs there goes on."""
    with open_client(ctx) as client:
        client.cordon_node(find_node(client, node).node_id)
    say(ctx, f"{node} gets nothing more; take it back with: hwqueue node uncordon {node}")


@app.command(epilog="Example: hwqueue node uncordon gpu-box-1")
def uncordon(ctx: typer.Context, node: NodeName) -> None:
    """Give a cordoned or drained node work again."""
    with open_client(ctx) as client:
        client.uncordon_node(find_node(client, node).node_id)
    say(ctx, f"{node} gets work again")


@app.command(epilog="Example: hwqueue node drain gpu-box-1 --deadline 10m")
def drain(
    ctx: typer.Context,
    node: NodeName,
    deadline: Annotated[str | None, typer.Option(help="Ask what still runs to stop after this span.")] = None,
) -> None:
    """Empty a node: nothing more is given, and with --deadline what runs is asked to stop."""
    limit = span(deadline, "--deadline")
    with open_client(ctx) as client:
        found = find_node(client, node)
        client.drain_node(found.node_id, deadline=limit)
    say(ctx, f"{node} is draining, {found.claims} leases still run there")


@app.command(epilog="Example: hwqueue node deregister gpu-box-1")
def deregister(ctx: typer.Context, node: NodeName) -> None:
    """Take a node out of the books; its running leases go back to their queues."""
    with open_client(ctx) as client:
        client.deregister_node(find_node(client, node).node_id)
    say(ctx, f"{node} is gone")


@app.command(epilog="Example: hwqueue node expiry 3d")
def expiry(
    ctx: typer.Context,
    after: Annotated[str, typer.Argument(help="A span, or never.")],
) -> None:
    """Set how long a node may be silent before it is deregistered; 7 d at first.

    A node stays that holds claims, or that was cordoned, tainted or attested.
    """
    with open_client(ctx) as client:
        before = client.set_node_expiry(None if after == "never" else span(after, "AFTER"))
    say(ctx, f"it was {'never' if before is None else exact_duration(before)}")


@app.command(epilog="Example: hwqueue node taint gpu-box-1 dedicated=film:no_schedule")
def taint(
    ctx: typer.Context,
    node: NodeName,
    taint: Annotated[
        str,
        typer.Argument(help="KEY=VALUE:EFFECT or KEY:EFFECT; no_schedule, prefer_no_schedule or no_execute."),
    ],
) -> None:
    """Keep leases off a node that do not tolerate the taint; no_execute stops what runs, too."""
    content = taint_of(taint, "TAINT")
    with open_client(ctx) as client:
        client.taint_node(find_node(client, node).node_id, content)
    say(ctx, f"{node} is tainted {taint}; take it off with: hwqueue node untaint {node} KEY")


@app.command(epilog="Example: hwqueue node untaint gpu-box-1 dedicated")
def untaint(
    ctx: typer.Context,
    node: NodeName,
    key: Annotated[str, typer.Argument(help="Key of the taint.")],
    effect: Annotated[str | None, typer.Option(help="Only the taint with this effect.")] = None,
) -> None:
    """Take an operator's taints off a node; those it registered with stay."""
    with open_client(ctx) as client:
        gone = client.untaint_node(find_node(client, node).node_id, key, effect=effect)
    say(ctx, f"took {gone} {'taint' if gone == 1 else 'taints'} off {node}")


@app.command(epilog="Example: hwqueue node attest gpu-box-1 acme.prod --expires-at 2030-01-31T17:00:00Z")
def attest(
    ctx: typer.Context,
    node: NodeName,
    domain: Domain,
    expires_at: Annotated[
        str | None, typer.Option(help="When it ends, or after which span: 90d; never if left out.")
    ] = None,
    any_instance: Annotated[
        bool,
        typer.Option(
            "--any-instance",
            help="For every instance that the node's login registers: if the node has a login of its own.",
        ),
    ] = False,
) -> None:
    """Vouch that a node belongs to a trust domain, which leases may require.

    When another instance of the node registers, as every worker does that starts, the attestation
    is suspended until `hwqueue node confirm`, unless --any-instance.
    """
    until = moment_after(expires_at, "--expires-at")
    with open_client(ctx) as client:
        client.attest_node(
            find_node(client, node).node_id,
            domain,
            expires_at=until if isinstance(until, datetime) else None,
            expires_after=until if isinstance(until, timedelta) else None,
            any_instance=any_instance,
        )
    say(ctx, f"{node} is trusted for {domain}")


@app.command(epilog="Example: hwqueue node revoke gpu-box-1 acme.prod")
def revoke(ctx: typer.Context, node: NodeName, domain: Domain) -> None:
    """End an attestation; running leases that need it are asked to stop at once."""
    with open_client(ctx) as client:
        was_there = client.revoke_attestation(find_node(client, node).node_id, domain)
    say(ctx, f"{node} is {'no longer' if was_there else 'not'} trusted for {domain}")


@app.command(epilog="Example: hwqueue node confirm gpu-box-1")
def confirm(
    ctx: typer.Context,
    node: NodeName,
    instance: Annotated[
        str | None, typer.Option(help="Only if this instance is registered (instance_id of node show).")
    ] = None,
) -> None:
    """Trust the registered instance of a node for what an earlier one was attested for."""
    with open_client(ctx) as client:
        count = client.confirm_node(find_node(client, node).node_id, instance_id=instance)
    say(ctx, f"confirmed {count} {'attestation' if count == 1 else 'attestations'} of {node}")


@app.command("hand-over", epilog="Example: hwqueue node hand-over gpu-box-1 worker_7")
def hand_over(
    ctx: typer.Context,
    node: NodeName,
    login: Annotated[str, typer.Argument(help="Login, or a role that its logins have.")],
) -> None:
    """Give a node and its claims to another login; its attestations are suspended.

    A node that has left the fleet is named by its id.
    """
    with open_client(ctx) as client:
        client.hand_over_node(_known_id(client, node), login)
    say(ctx, f"{node} belongs to {login}; if it was attested: hwqueue node confirm {node}")


@app.command(
    "what-if",
    epilog="Example: hwqueue node what-if --label gpu_model=A100 --gpu A100 --gpu A100 --count 3",
)
def what_if(
    ctx: typer.Context,
    *,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label such a node has, key=value, or several as JSON; repeatable."),
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="cpu_milli, memory_mib and countables of your own, as JSON.")
    ] = "{}",
    gpu: Annotated[
        list[str] | None, typer.Option(help="MODEL[:MEMORY][xN], as A100:80GiBx4; repeatable.")
    ] = None,
    rack: Annotated[int | None, typer.Option(min=0, help="Number of its rack.")] = None,
    count: Annotated[int, typer.Option(min=1, help="This many such nodes.")] = 1,
    spec: Annotated[
        str | None,
        typer.Option(help="Whole specification, or a list of them, instead: JSON or a file."),
    ] = None,
) -> None:
    """Show which pending work such nodes could run if they were there; nothing is changed."""
    if spec is not None:
        if label or gpu or rack is not None or capacity != "{}" or count != 1:
            raise ConfigError("--spec says everything: leave out --label, --capacity, --gpu, --rack, --count")
        nodes = json_value(spec, "--spec")
    else:
        nodes = _spec("what-if", label, capacity, gpu or [], rack) | {"count": count}
    with open_client(ctx) as client:
        found = client.what_if(nodes)
    empty = "nothing that is pending could run on such nodes"
    show_items(ctx, found, _served_row, empty=empty)


def _spec(
    name: str, label: list[str] | None, capacity: str, gpus: list[str], rack: int | None
) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": name,
        "instance_id": uuid4().hex,
        "labels": labels(label, "--label"),
        "capacity": json_object(capacity, "--capacity"),
        "gpus": [gpu.as_json() for gpu in gpus_of(gpus, name)],
    }
    return content if rack is None else content | {"rack": rack}


def _known_id(client: Client, text: str) -> UUID:
    """The id of a registered node, or the one that is given."""
    try:
        return UUID(text)
    except ValueError:
        return find_node(client, text).node_id


def _id_of(name: str) -> Any:
    """Return the id that a worker of this name would take, so that one can follow the other."""
    return WorkerSettings(dsn="unused", name=name).effective_node_id


def _state(node: Node) -> str:
    if node.draining:
        return "draining"
    if node.cordoned:
        return "cordoned"
    return "live" if node.live else "silent"


def _row(node: Node) -> dict[str, object]:
    return {
        "name": node.name,
        "state": _state(node),
        "claims": node.claims,
        "gpus_used": f"{sum(gpu.milli_used for gpu in node.gpus) / 1000:g}/{len(node.gpus)}",
        "cpu_used": _share(node, "cpu_milli"),
        "memory_used": _share(node, "memory_mib"),
        "labels": dict(node.labels),
        "taints": [_taint_text(taint) for taint in node.taints],
    }


def _label_row(one: TagCount) -> dict[str, object]:
    return {
        "label": one.label,
        "value": one.value,
        "nodes": one.nodes,
        "live": one.live,
        "claims": one.claims,
    }


def _served_row(one: ServedClass) -> dict[str, object]:
    return {
        "queue": one.queue,
        "asks": one.words,
        "pending": counted(one.pending),
        "oldest_at": one.oldest_at,
        "fits_at_once": one.fits_at_once,
        "live_node_fits": one.is_served_already,
        "class_id": one.class_id,
    }


def _usage_row(node: NodeUsage) -> dict[str, object]:
    def share(used: float, total: float | None) -> str | None:
        return None if total is None else f"{used:g}/{total:g}"

    return {
        "name": node.node_name,
        "rack": node.rack,
        "state": node.state,
        "seen": age(node.seen_at, datetime.now(UTC)),
        "claims": node.claims,
        "cpu_used": share(node.cpu_used, node.cpu_milli),
        "memory_used": share(node.memory_used, node.memory_mib),
        "gpus_used": share(node.gpu_milli_used / 1000, node.gpus),
        "gpus_free": node.gpus_free,
        "cores_free": share(node.cores_free, node.cores) if node.cores else None,
    }


def _taint_text(taint: NodeTaint) -> str:
    """Write a taint as `hwqueue node taint` takes it."""
    value = "" if taint.value is None else f"={taint.value}"
    return f"{taint.key}{value}:{taint.effect}"


def _share(node: Node, key: str) -> str | None:
    """Return used of declared; None for what the node does not count."""
    if (declared := node.capacity.get(key)) is None:
        return None
    return f"{node.used.get(key, 0)}/{declared}"


def _facts(node: Node) -> dict[str, object]:
    return {"state": _state(node)} | fields_of(node)
