"""hwqueue webhook: which events are sent to which receivers."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hwqueue.cli.completion import queue_names, webhook_codes, webhook_names
from hwqueue.cli.connect import ask, connection_string, open_client
from hwqueue.cli.events import checked_code
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier, pairs, span
from hwqueue.cli.needed import required
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, say, show_item, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import AsyncClient, Client
from hwqueue.errors import ConfigError, WebhookUnknown
from hwqueue.stopping import calling, until_told
from hwqueue.types import WEBHOOK_CODES, Delivery, Webhook

if TYPE_CHECKING:
    from hwqueue.webhooks.deliver import Limits

app = Commands("Which events are sent to which receivers over HTTP.")

Name = Annotated[str, Argument(help="Name of the webhook.", autocompletion=webhook_names)]


@app.command("hwqueue webhook add pager https://hooks.example/hwqueue --code lease_failed")
def add(
    ctx: typer.Context,
    name: Name,
    url: Annotated[str, Argument(help="Where requests go.")],
    *,
    code: Annotated[
        list[str] | None,
        Option(
            help="Only this code, of events or lease_completed; repeatable. Left out: every event.",
            autocompletion=webhook_codes,
        ),
    ] = None,
    queue: Annotated[
        list[str] | None, Option(help="Only about this queue; repeatable.", autocompletion=queue_names)
    ] = None,
    tenant: Annotated[str | None, Option(help="Only about leases of this tenant.")] = None,
    label: Annotated[
        list[str] | None, Option(help="Only about leases with this label, key=value; repeatable.")
    ] = None,
    bare: Annotated[bool, Option("--bare", help="Print the secret and nothing else.")] = False,
) -> None:
    """Add a webhook and print its secret, this once; or change where one goes and what it is sent.

    Of one that is there, address and filter are replaced and the secret stays.
    """
    secret = ask(
        ctx,
        Client.set_webhook,
        name,
        url,
        codes=[checked_code(each, WEBHOOK_CODES) for each in code or ()] or None,
        queues=queue,
        tenant=tenant,
        labels=pairs(label, "--label") if label else None,
    )
    if secret is None:
        say(ctx, f"{name} is changed; its secret stays: hwqueue webhook rotate {name}")
    elif bare:
        typer.echo(secret)
    else:
        show_one(ctx, {"name": name, "url": url, "secret": secret})
        say(ctx, "keep the secret: it is not shown again")
    if url.startswith("http:"):
        say(
            ctx,
            "without TLS: only hwqueue webhook run --allow-http sends there, on your own network"
            " with --allow-private, too",
        )


@app.command("hwqueue webhook list --json")
def list_(ctx: typer.Context) -> None:
    """List the webhooks and how they go."""
    found = ask(ctx, Client.list_webhooks)
    show_items(ctx, found, _row, empty="no webhooks; add one: hwqueue webhook add NAME URL")


@app.command("hwqueue webhook show pager")
def show(ctx: typer.Context, name: Name) -> None:
    """Show a webhook, without its secret."""
    with open_client(ctx) as client:
        for each in client.list_webhooks():
            if each.name == name:
                return show_item(ctx, each, fields_of)
    raise WebhookUnknown(f"no webhook is named {name}", hint="list them: hwqueue webhook list")


@app.command("hwqueue webhook test pager")
def test(ctx: typer.Context, name: Name) -> None:
    """Have a request of type webhook_test sent."""
    delivery = ask(ctx, Client.test_webhook, name)
    show_one(ctx, {"delivery_id": delivery})
    say(ctx, f"the answer: hwqueue webhook deliveries {name}")


@app.command("hwqueue webhook pause pager")
def pause(ctx: typer.Context, name: Name) -> None:
    """Send nothing until resume; what happens meanwhile is sent then, as far as events are kept."""
    done = ask(ctx, Client.pause_webhook, name)
    say(ctx, f"{name} is paused" if done else f"{name} was paused before")


@app.command("hwqueue webhook resume pager")
def resume(ctx: typer.Context, name: Name) -> None:
    """Go on where a webhook was paused."""
    done = ask(ctx, Client.resume_webhook, name)
    say(ctx, f"{name} goes on" if done else f"{name} was not paused")


@app.command("hwqueue webhook rotate pager --keep 2d")
def rotate(
    ctx: typer.Context,
    name: Name,
    *,
    keep: Annotated[str, Option(help="How long requests are signed with the old secret, too.")] = "1d",
    bare: Annotated[bool, Option("--bare", help="Print the secret and nothing else.")] = False,
) -> None:
    """Replace the secret and print the new one, this once."""
    secret = ask(ctx, Client.rotate_webhook, name, keep=span(keep, "--keep"))
    if bare:
        typer.echo(secret)
        return
    show_one(ctx, {"name": name, "secret": secret})
    say(ctx, "keep the secret: it is not shown again")


@app.command("hwqueue webhook drop pager")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop a webhook; what it has not been sent is not sent any more."""
    done = ask(ctx, Client.drop_webhook, name)
    say(ctx, f"{name} is dropped" if done else f"no webhook is named {name}")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command("hwqueue webhook deliveries pager --state dead")
def deliveries(
    ctx: typer.Context,
    name: Name,
    *,
    state: Annotated[str | None, Option(help="waiting, delivered or dead.")] = None,
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 50,
    before: Annotated[str | None, Option(help="The last delivery_id of a page, to get the next one.")] = None,
) -> None:
    """List what is to be sent or was, newest first."""
    found = ask(
        ctx,
        Client.list_deliveries,
        name,
        state=state,
        limit=limit,
        before=None if before is None else identifier(before, "--before"),
    )
    show_items(ctx, found, _delivery, empty="no such deliveries")


@app.command("hwqueue webhook redeliver pager --dead")
def redeliver(
    ctx: typer.Context,
    name: Name,
    delivery: Annotated[str | None, Argument(help="Its delivery_id.")] = None,
    *,
    dead: Annotated[bool, Option("--dead", help="All that were given up.")] = False,
) -> None:
    """Send a delivery again, delivered or dead; or all that are dead."""
    if (delivery is None) is not dead:
        raise ConfigError(
            "name a delivery, or give --dead", hint=f"list them: hwqueue webhook deliveries {name}"
        )
    wanted = None if delivery is None else identifier(delivery, "DELIVERY")
    with open_client(ctx) as client:
        count = total = client.redeliver(name, wanted)
        while count and dead:
            total += (count := client.redeliver(name))
    say(ctx, f"{total} to be sent again")
    if not total and wanted:
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command("hwqueue webhook run --concurrency 50")
@until_told()
def run(
    ctx: typer.Context,
    *,
    once: Annotated[bool, Option("--once", help="Send what is due now, then end: for cron.")] = False,
    concurrency: Annotated[
        int, Option(min=1, max=1000, help="Requests at once; ten at most to one webhook.")
    ] = 20,
    timeout: Annotated[str, Option(help="Longest time of a request, at most 9m.")] = "15s",
    poll: Annotated[str, Option(help="How often to ask when there is nothing.")] = "1s",
    allow_private: Annotated[
        bool, Option("--allow-private", help="Send to private, loopback and link-local addresses, too.")
    ] = False,
    allow_http: Annotated[bool, Option("--allow-http", help="Send without TLS, too.")] = False,
) -> None:
    """Send what webhooks are to be told of, until SIGTERM or Ctrl-C.

    Needs a login with hwqueue_operator and a machine that reaches the receivers; any number may
    run.
    """
    with required("webhooks"):
        from hwqueue.webhooks.deliver import Limits  # noqa: PLC0415
    longest, every = span(timeout, "--timeout"), span(poll, "--poll")
    if not timedelta(0) < longest <= timedelta(minutes=9):
        raise ConfigError(f"--timeout must be above 0 and at most 9m, got {timeout}")
    limits = Limits(
        timeout=longest, concurrency=concurrency, allow_private=allow_private, allow_http=allow_http
    )
    if not options_of(ctx).verbose:
        # at INFO httpx logs URLs, which may hold secrets
        logging.getLogger("hwqueue.webhooks").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(_run(connection_string(ctx), limits, every, once=once))


async def _run(dsn: str, limits: Limits, poll: timedelta, *, once: bool) -> None:
    from hwqueue.webhooks.deliver import Deliverer  # noqa: PLC0415

    async with AsyncClient(dsn, pool_size=4) as client:
        deliverer = Deliverer(client, limits)
        with calling(deliverer.stop):
            await (deliverer.run_once() if once else deliverer.run(poll=poll))


_row = row_of(
    Webhook, "name url codes queues tenant paused=paused_reason waiting delivered failed dead failing_since"
)
_delivery = row_of(
    Delivery,
    "delivery_id code state attempts=attempt_count created_at next_at=available_at status answer",
    answer=lambda delivery: delivery.error or delivery.response,
)
