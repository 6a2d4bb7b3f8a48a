"""hwqueue service: what holds for the services that leases belong to."""

from typing import Annotated

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier
from hwqueue.cli.output import show_one
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.types import ServicePolicy

app = Commands("What holds for services, the service_id of leases.")

ServiceId = Annotated[str, Argument(help="Id of the service.")]


@app.command("hwqueue service set 0197f3a2-7c1e-7000-8000-000000000001 --failure-domain label:zone")
def set_(
    ctx: typer.Context,
    service: ServiceId,
    *,
    failure_domain: Annotated[
        str | None, Option(help="What counts as one place: node, rack or label:KEY.")
    ] = None,
    away_from: Annotated[
        list[str] | None, Option(help="A service that its leases keep away from; once for each.")
    ] = None,
    nothing_away: Annotated[
        bool, Option("--away-from-none", help="Keep away from no service any more.")
    ] = False,
) -> None:
    """Say what holds for a service; what is not given stays as it is."""
    if away_from and nothing_away:
        raise ConfigError("--away-from and --away-from-none exclude each other")
    services = [identifier(each, "--away-from") for each in away_from or []]
    policy = ServicePolicy(
        failure_domain=failure_domain, anti_affinity_services=services if away_from or nothing_away else None
    )
    show_one(ctx, _facts(ask(ctx, Client.set_service_policy, identifier(service, "SERVICE"), policy)))


@app.command("hwqueue service show 0197f3a2-7c1e-7000-8000-000000000001")
def show(ctx: typer.Context, service: ServiceId) -> None:
    """Show what holds for a service."""
    show_one(ctx, _facts(ask(ctx, Client.service_policy, identifier(service, "SERVICE"))))


def _facts(policy: ServicePolicy) -> dict[str, object]:
    return {
        "failure_domain": policy.failure_domain,
        "anti_affinity_services": [str(each) for each in policy.anti_affinity_services or ()],
    }
