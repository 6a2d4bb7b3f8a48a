"""hwqueue node: who may run work, and taking machines out of service."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Concatenate
from uuid import UUID, uuid4

import typer
from typer import Argument, Option

from hwqueue.cli.completion import node_names
from hwqueue.cli.connect import Answer, P, ask, open_client
from hwqueue.cli.explanation import counted
from hwqueue.cli.gpus import gpus_of
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import (
    find_node,
    identifier,
    json_object,
    json_value,
    labels,
    moment_after,
    node_id_of,
    span,
    taint_of,
)
from hwqueue.cli.output import fields_of, say, say_more, show_item, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import age, exact_duration, plural
from hwqueue.types import Node, NodeTaint, NodeUsage, ServedClass, TagCount
from hwqueue.worker.settings import WorkerSettings

app = Commands("Who may run work; taking machines out of service.")

NodeName = Annotated[str, Argument(help="Name or id of the node.", autocompletion=node_names)]
Domain = Annotated[str, Argument(help="Name of the trust domain.")]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine has."""

    capacity: Annotated[str, Option(help="cpu_milli, memory_mib and countables of your own, as JSON.")] = "{}"
    gpu: Annotated[list[str] | None, Option(help="MODEL[:MEMORY][xN], as A100:80GiBx4; repeatable.")] = None
    rack: Annotated[int | None, Option(min=0, help="Number of its rack.")] = None

    def spec(self, name: str, label: list[str] | None) -> dict[str, Any]:
        """The specification of a node that is such a machine. Raises: ConfigError."""
        content: dict[str, Any] = {
            "name": name,
            "instance_id": uuid4().hex,
            "labels": labels(label, "--label"),
            "capacity": json_object(self.capacity, "--capacity"),
            "gpus": [gpu.as_json() for gpu in gpus_of(self.gpu or [], name)],
        }
        return content if self.rack is None else content | {"rack": self.rack}


@app.command("hwqueue node list --json")
def list_(ctx: typer.Context) -> None:
    """List the registered nodes and what they have given away."""
    found = ask(ctx, Client.list_nodes)
    empty = "no nodes; a worker registers one: hwqueue worker run"
    show_items(ctx, found, _row, fields=_facts, empty=empty)


@app.command("hwqueue node show gpu-box-1")
def show(ctx: typer.Context, node: NodeName) -> None:
    """Show a node: labels, capacity, and the use of every device."""
    found = ask(ctx, find_node, node)
    show_item(ctx, found, _facts, fields=_facts)


@app.command("hwqueue node usage --state silent")
def usage(
    ctx: typer.Context,
    *,
    state: Annotated[
        str | None, Option(help="Only nodes that are live, silent, cordoned or draining.")
    ] = None,
    limit: Annotated[int, Option(min=1, help="At most this many.")] = 100,
    after: Annotated[str | None, Option(help="After this name: the last of the page before.")] = None,
) -> None:
    """Show how full the nodes are, by name."""
    found = ask(ctx, Client.node_usage, state=state, limit=limit, after=after)
    show_items(ctx, found, _usage_row, empty="no such nodes")
    say_more(ctx, found, limit, "--after {0.node_name}")


@app.command("hwqueue node labels --label zone")
def labels_(
    ctx: typer.Context,
    *,
    label: Annotated[str | None, Option(help="Only this label.")] = None,
    limit: Annotated[int, Option(min=1, help="At most this many.")] = 100,
) -> None:
    """Show how many nodes have each value of each label, the commonest first."""
    found = ask(ctx, Client.tag_distribution, label=label, limit=limit)
    show_items(ctx, found, _label_row, empty="no node has such a label")


@app.command(
    "hwqueue node register gpu-box-1 --label gpu=true "
    "--capacity '{\"cpu_milli\": 8000}' --gpu A100 --gpu A100"
)
def register(
    ctx: typer.Context,
    name: Annotated[str, Argument(help="Name of the node, unique.")],
    *,
    label: Annotated[
        list[str] | None,
        Option("--label", "--tags", help="Label of the node, key=value, or several as JSON; repeatable."),
    ] = None,
    machine: Machine,
    node_id: Annotated[str | None, Option("--id", help="Its id; made from the name if left out.")] = None,
    spec: Annotated[str | None, Option(help="Whole specification instead: JSON or a file.")] = None,
    login: Annotated[str | None, Option(help="Login of its worker; the node is yours if left out.")] = None,
) -> None:
    """Register a node by hand, for workers in other languages; `worker run` does it by itself."""
    if spec is None:
        content = machine.spec(name, label)
    elif label or machine != Machine():
        raise ConfigError("--spec says everything: leave out --label, --capacity, --gpu, --rack")
    else:
        content = {"name": name, "instance_id": uuid4().hex} | json_object(spec, "--spec")
    # left out, the id that a worker of this name would take, so that one can follow the other
    chosen = (
        identifier(node_id, "--id") if node_id else WorkerSettings(dsn="unused", name=name).effective_node_id
    )
    with open_client(ctx) as client:
        epoch = client.register_node(chosen, content)
        if login is not None:
            client.hand_over_node(chosen, login)
    show_one(ctx, {"node_id": chosen, "node_epoch": epoch})


@app.command("hwqueue node cordon gpu-box-1")
def cordon(ctx: typer.Context, node: NodeName) -> None:
    """Give a node nothing more; what runs there goes on."""
    _call(ctx, node, Client.cordon_node)
    say(ctx, f"{node} gets nothing more; take it back with: hwqueue node uncordon {node}")


@app.command("hwqueue node uncordon gpu-box-1")
def uncordon(ctx: typer.Context, node: NodeName) -> None:
    """Give a cordoned or drained node work again."""
    _call(ctx, node, Client.uncordon_node)
    say(ctx, f"{node} gets work again")


@app.command("hwqueue node drain gpu-box-1 --deadline 10m")
def drain(
    ctx: typer.Context,
    node: NodeName,
    deadline: Annotated[str | None, Option(help="Ask what still runs to stop after this span.")] = None,
) -> None:
    """Empty a node: nothing more is given, and with --deadline what runs is asked to stop."""
    limit = span(deadline, "--deadline")
    with open_client(ctx) as client:
        found = find_node(client, node)
        client.drain_node(found.node_id, deadline=limit)
    say(ctx, f"{node} is draining, {found.claims} leases still run there")


@app.command("hwqueue node deregister gpu-box-1")
def deregister(ctx: typer.Context, node: NodeName) -> None:
    """Take a node out of the books; its running leases go back to their queues."""
    _call(ctx, node, Client.deregister_node)
    say(ctx, f"{node} is gone")


@app.command("hwqueue node expiry 3d")
def expiry(ctx: typer.Context, after: Annotated[str, Argument(help="A span, or never.")]) -> None:
    """Set how long a node may be silent before it is deregistered; 7 d at first.

    A node stays that holds claims, or that was cordoned, tainted or attested.
    """
    before = ask(ctx, Client.set_node_expiry, None if after == "never" else span(after, "AFTER"))
    say(ctx, f"it was {'never' if before is None else exact_duration(before)}")


@app.command("hwqueue node taint gpu-box-1 dedicated=film:no_schedule")
def taint(
    ctx: typer.Context,
    node: NodeName,
    taint: Annotated[
        str, Argument(help="KEY=VALUE:EFFECT or KEY:EFFECT; no_schedule, prefer_no_schedule or no_execute.")
    ],
) -> None:
    """Keep leases off a node that do not tolerate the taint; no_execute stops what runs, too."""
    content = taint_of(taint, "TAINT")
    _call(ctx, node, Client.taint_node, content)
    say(ctx, f"{node} is tainted {taint}; take it off with: hwqueue node untaint {node} KEY")


@app.command("hwqueue node untaint gpu-box-1 dedicated")
def untaint(
    ctx: typer.Context,
    node: NodeName,
    key: Annotated[str, Argument(help="Key of the taint.")],
    effect: Annotated[str | None, Option(help="Only the taint with this effect.")] = None,
) -> None:
    """Take an operator's taints off a node; those it registered with stay."""
    gone = _call(ctx, node, Client.untaint_node, key, effect=effect)
    say(ctx, f"took {plural(gone, 'taint')} off {node}")


@app.command("hwqueue node reserve gpu-box-1 film lab")
def reserve(
    ctx: typer.Context,
    node: NodeName,
    tenants: Annotated[list[str] | None, Argument(help="Any of them; none: for all.")] = None,
    stop: Annotated[bool, Option("--stop", help="Ask leases of others that run there to stop.")] = False,
) -> None:
    """Say for which tenants a node is, instead of those before."""
    _call(ctx, node, Client.set_node_tenants, tenants or [], stop=stop)
    say(ctx, f"{node} is for {', '.join(tenants) if tenants else 'all tenants'}")


@app.command("hwqueue node attest gpu-box-1 acme.prod --expires-at 2030-01-31T17:00:00Z")
def attest(
    ctx: typer.Context,
    node: NodeName,
    domain: Domain,
    expires_at: Annotated[
        str | None, Option(help="When it ends, or after which span: 90d; never if left out.")
    ] = None,
    any_instance: Annotated[
        bool,
        Option(
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
    _call(
        ctx,
        node,
        Client.attest_node,
        domain,
        expires_at=until if isinstance(until, datetime) else None,
        expires_after=until if isinstance(until, timedelta) else None,
        any_instance=any_instance,
    )
    say(ctx, f"{node} is trusted for {domain}")


@app.command("hwqueue node revoke gpu-box-1 acme.prod")
def revoke(ctx: typer.Context, node: NodeName, domain: Domain) -> None:
    """End an attestation; running leases that need it are asked to stop at once."""
    was_there = _call(ctx, node, Client.revoke_attestation, domain)
    say(ctx, f"{node} is {'no longer' if was_there else 'not'} trusted for {domain}")


@app.command("hwqueue node confirm gpu-box-1")
def confirm(
    ctx: typer.Context,
    node: NodeName,
    instance: Annotated[
        str | None, Option(help="Only if this instance is registered (instance_id of node show).")
    ] = None,
) -> None:
    """Trust the registered instance of a node for what an earlier one was attested for."""
    count = _call(ctx, node, Client.confirm_node, instance_id=instance)
    say(ctx, f"confirmed {plural(count, 'attestation')} of {node}")


@app.command("hwqueue node hand-over gpu-box-1 worker_7")
def hand_over(
    ctx: typer.Context,
    node: NodeName,
    login: Annotated[str, Argument(help="Login, or a role that its logins have.")],
) -> None:
    """Give a node and its claims to another login; its attestations are suspended.

    A node that has left the fleet is named by its id.
    """
    with open_client(ctx) as client:
        client.hand_over_node(node_id_of(client, node), login)
    say(ctx, f"{node} belongs to {login}; if it was attested: hwqueue node confirm {node}")


@app.command("hwqueue node what-if --label gpu_model=A100 --gpu A100 --gpu A100 --count 3")
def what_if(
    ctx: typer.Context,
    *,
    label: Annotated[
        list[str] | None, Option(help="Label such a node has, key=value, or several as JSON; repeatable.")
    ] = None,
    machine: Machine,
    count: Annotated[int, Option(min=1, help="This many such nodes.")] = 1,
    spec: Annotated[
        str | None, Option(help="Whole specification, or a list of them, instead: JSON or a file.")
    ] = None,
) -> None:
    """Show which pending work such nodes could run if they were there; nothing is changed."""
    if spec is None:
        nodes = machine.spec("what-if", label) | {"count": count}
    elif label or machine != Machine() or count != 1:
        raise ConfigError("--spec says everything: leave out --label, --capacity, --gpu, --rack, --count")
    else:
        nodes = json_value(spec, "--spec")
    found = ask(ctx, Client.what_if, nodes)
    show_items(ctx, found, _served_row, empty="nothing that is pending could run on such nodes")


def _call(
    ctx: typer.Context,
    node: str,
    call: Callable[Concatenate[Client, UUID, P], Answer],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Answer:
    """Make a call about a node, which is registered. Raises: NodeUnknown."""
    with open_client(ctx) as client:
        return call(client, find_node(client, node).node_id, *args, **kwargs)


def _used(used: float, total: float | None) -> str | None:
    """Used of what there is; None for what the node does not count."""
    return None if total is None else f"{used:.10g}/{total:.10g}"


def _share(name: str) -> Callable[[Node], str | None]:
    return lambda node: _used(node.used.get(name, 0), node.capacity.get(name))


def _taint_text(taint: NodeTaint) -> str:
    """Write a taint as `hwqueue node taint` takes it."""
    value = "" if taint.value is None else f"={taint.value}"
    return f"{taint.key}{value}:{taint.effect}"


def _facts(node: Node) -> dict[str, object]:
    return {"state": node.state, "tenants": node.tenants} | fields_of(node)


_row = row_of(
    Node,
    "name state claims gpus_used cpu_used memory_used labels tenants taints",
    gpus_used=lambda node: _used(sum(gpu.milli_used for gpu in node.gpus) / 1000, len(node.gpus)),
    cpu_used=_share("cpu_milli"),
    memory_used=_share("memory_mib"),
    tenants=lambda node: node.tenants or None,
    taints=lambda node: [_taint_text(each) for each in node.taints if not each.key.startswith("tenant:")],
)
_label_row = row_of(TagCount, "label value nodes live claims")
_served_row = row_of(
    ServedClass,
    "queue asks=words pending oldest_at fits_at_once live_node_fits=is_served_already class_id",
    pending=lambda one: counted(one.pending),
)
_usage_row = row_of(
    NodeUsage,
    "name=node_name rack state seen claims cpu_used memory_used gpus_used gpus_free cores_free tenants",
    seen=lambda node: age(node.seen_at, datetime.now(UTC)),
    tenants=lambda node: node.tenants or None,
    cpu_used=lambda node: _used(node.cpu_used, node.cpu_milli),
    memory_used=lambda node: _used(node.memory_used, node.memory_mib),
    gpus_used=lambda node: _used(node.gpu_milli_used / 1000, node.gpus),
    cores_free=lambda node: _used(node.cores_free, node.cores) if node.cores else None,
)
