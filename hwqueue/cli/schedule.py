"""hwqueue schedule: what is spawned at which times."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from typer import Argument, Option

from hwqueue.cli.completion import queue_names, schedule_names, task_names, workflow_names
from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import json_object, json_value, moment, span
from hwqueue.cli.output import ExitCode, say, show_items, show_one, show_rows
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import AppName, app_of
from hwqueue.client import Client
from hwqueue.cron_times import cron_times
from hwqueue.errors import ConfigError
from hwqueue.types import FiredTime, Schedule, ScheduleFire, SyncedSchedule
from hwqueue.types.base import given

app = Commands("What is spawned at which times.")

Name = Annotated[str, Argument(help="Name of the schedule.", autocompletion=schedule_names)]
Zone = Annotated[str | None, Option(help="Time zone of --cron, such as Europe/Berlin. Left out: UTC.")]


@app.command("hwqueue schedule create nightly --cron '0 2 * * *' --queue default --task report")
def create(
    ctx: typer.Context,
    name: Name,
    *,
    cron: Annotated[str | None, Option(help="Minute, hour, day of month, month, day of week.")] = None,
    zone: Zone = None,
    every: Annotated[str | None, Option(help="A span instead, at least 10s.")] = None,
    starts_at: Annotated[str | None, Option(help="From when --every is counted. Left out: 1970.")] = None,
    at: Annotated[list[str] | None, Option(help="A time instead; repeatable.")] = None,
    queue: Annotated[str | None, Option(help="Where leases go.", autocompletion=queue_names)] = None,
    task: Annotated[str | None, Option(help="What they call.", autocompletion=task_names)] = None,
    params: Annotated[str | None, Option(help="With which params: JSON, a file, or -.")] = None,
    workflow: Annotated[
        str | None, Option(help="A run of this one instead.", autocompletion=workflow_names)
    ] = None,
    input_: Annotated[str | None, Option("--input", help="Its input: JSON, a file, or -.")] = None,
    options: Annotated[str | None, Option(help="Of the spawn or the submission: JSON, a file, or -.")] = None,
    missed: Annotated[str | None, Option(help="What fires late: latest (the default), all or skip.")] = None,
    missed_window: Annotated[str | None, Option(help="What is older never fires. Left out: 7 days.")] = None,
    overlap: Annotated[str | None, Option(help="While the one before is open: allow, or skip.")] = None,
    jitter: Annotated[str | None, Option(help="A lease may wait up to that long.")] = None,
) -> None:
    """Create a schedule; one that is there with the same specification stays."""
    starts = moment(starts_at, "--starts-at")
    spec = given(
        cron=cron,
        zone=zone,
        every=span(every, "--every"),
        starts_at=starts and starts.isoformat(),
        times=[str(moment(each, "--at")) for each in at] if at else None,
        queue=queue,
        task=task,
        params=None if params is None else json_value(params, "--params"),
        workflow=workflow,
        input=None if input_ is None else json_value(input_, "--input"),
        options=None if options is None else json_object(options, "--options"),
        missed=missed,
        missed_window=span(missed_window, "--missed-window"),
        overlap=overlap,
        jitter=span(jitter, "--jitter"),
    )
    done = ask(ctx, Client.create_schedule, name, spec)
    say(ctx, f"{name} is made" if done else f"{name} is there already")


@app.command("""hwqueue schedule set nightly '{"cron": "30 2 * * *"}'""")
def set_(
    ctx: typer.Context,
    name: Name,
    changes: Annotated[str, Argument(help="Keys of its specification, null resets one: JSON, a file, or -.")],
) -> None:
    """Change a schedule; what was due before is not made up for when its times change."""
    spec = ask(ctx, Client.set_schedule, name, json_object(changes, "CHANGES"))
    show_one(ctx, {"name": name, "spec": spec})


@app.command("hwqueue schedule list --json")
def list_(
    ctx: typer.Context,
    *,
    limit: Annotated[int, Option(min=1, max=10_000, help="At most this many.")] = 100,
    after: Annotated[str | None, Option(help="The last name of a page, to get the next one.")] = None,
) -> None:
    """List the schedules by name, and how they go."""
    found = ask(ctx, Client.list_schedules, after=after, limit=limit)
    show_items(ctx, found, _row, empty="no schedules; make one: hwqueue schedule create NAME")


@app.command("hwqueue schedule next '30 2 * * *' --zone Europe/Berlin --around dst")
def next_(
    ctx: typer.Context,
    expr: Annotated[str, Argument(help="Minute, hour, day of month, month, day of week.")],
    *,
    zone: Zone = None,
    name: Annotated[str, Option(help="Of the schedule: decides the values of H.")] = "",
    count: Annotated[int, Option(help="How many.", min=1, max=1000)] = 5,
    after: Annotated[str | None, Option(help="From this time on. Left out: now.")] = None,
    around: Annotated[
        str | None, Option(help="dst: from a day before the zone's clocks change next.")
    ] = None,
) -> None:
    """Show the next times of a cron expression; needs no database."""
    known = zone or "UTC"
    since = moment(after, "--after") or datetime.now(UTC)
    if around not in (None, "dst"):
        raise ConfigError(f"--around is dst, not {around!r:.40}")
    times = cron_times(expr, known, name, since)  # it checks the zone
    if around:
        times = cron_times(expr, known, name, _before_change(known, since))
    rows = [{"at": at.astimezone(ZoneInfo(known)), "utc": at} for at in islice(times, count)]
    show_rows(ctx, rows, empty="no times")


@app.command("hwqueue schedule pause nightly --reason 'month end'")
def pause(
    ctx: typer.Context,
    name: Name,
    *,
    reason: Annotated[str | None, Option(help="Why, for those who look at it.")] = None,
) -> None:
    """Let nothing fire until resume, but by trigger and backfill."""
    done = ask(ctx, Client.pause_schedule, name, reason)
    say(ctx, f"{name} is paused" if done else f"{name} was paused before")


@app.command("hwqueue schedule resume nightly")
def resume(ctx: typer.Context, name: Name) -> None:
    """Let a schedule fire again; what was due meanwhile does not."""
    done = ask(ctx, Client.resume_schedule, name)
    say(ctx, f"{name} goes on" if done else f"{name} was not paused")


@app.command("hwqueue schedule trigger nightly")
def trigger(
    ctx: typer.Context,
    name: Name,
    *,
    params: Annotated[str | None, Option(help="Instead of its params or input: JSON, a file, or -.")] = None,
) -> None:
    """Fire a schedule now, paused or not."""
    given_params = None if params is None else json_value(params, "--params")
    fired = ask(ctx, Client.trigger_schedule, name, given_params)
    show_items(ctx, [fired], _fired)
    if fired.outcome != "spawned":
        raise typer.Exit(ExitCode.FAILED)


@app.command("hwqueue schedule backfill nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z")
def backfill(
    ctx: typer.Context,
    name: Name,
    *,
    since: Annotated[str, Option("--from", help="The first time that fires may be this one.")],
    until: Annotated[str, Option("--to", help="Times before this one; not later than now.")],
    fire: Annotated[bool, Option("--fire", help="Do it; left out: only say what would fire.")] = False,
) -> None:
    """Fire times that have passed, each once: not those that have spawned something."""
    first, last = moment(since, "--from"), moment(until, "--to")
    assert first is not None
    assert last is not None
    done = ask(ctx, Client.backfill_schedule, name, first, last, dry_run=not fire)
    show_items(ctx, done, _fired, empty="no times")
    if not fire:
        say(ctx, "nothing was done; add --fire")


@app.command("hwqueue schedule history nightly --limit 20")
def history(
    ctx: typer.Context,
    name: Name,
    *,
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 50,
    before: Annotated[str | None, Option(help="The last fire_at of a page, to get the next one.")] = None,
) -> None:
    """List which times fired and what came of it, newest first."""
    found = ask(ctx, Client.schedule_history, name, limit=limit, before=moment(before, "--before"))
    show_items(ctx, found, _fire, empty="it has not fired")


@app.command("hwqueue schedule sync --app tasks:app --origin billing")
def sync(
    ctx: typer.Context,
    *,
    app_name: AppName = None,
    origin: Annotated[
        str, Option(help="Whose they are; what it declared before and the app has no more, goes.")
    ],
) -> None:
    """Make the schedules that an app's tasks declare those of the database."""
    synced = ask(ctx, Client.sync_schedules, origin, app_of(ctx, app_name).schedules)
    show_items(ctx, synced, row_of(SyncedSchedule, "name change"), empty="the app declares no schedules")


@app.command("hwqueue schedule drop nightly")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop a schedule; what it spawned stays."""
    done = ask(ctx, Client.drop_schedule, name)
    say(ctx, f"{name} is dropped" if done else f"no schedule is named {name}")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


def _before_change(zone: str, since: datetime) -> datetime:
    """A day before the clocks of a zone change next. Raises: ConfigError if they do not in two years."""
    clock = ZoneInfo(zone)
    for hours in range(2 * 366 * 24):
        at = since + timedelta(hours=hours)
        if at.astimezone(clock).utcoffset() != (at + timedelta(hours=1)).astimezone(clock).utcoffset():
            return at - timedelta(days=1)
    raise ConfigError(f"the clocks of {zone} do not change", hint="leave --around out")


def _when(schedule: Schedule) -> str:
    spec: Mapping[str, Any] = schedule.spec
    if schedule.kind == "cron":
        return f"{spec['cron']} {spec['zone']}"
    return f"every {timedelta(seconds=spec['every'])}" if schedule.kind == "every" else "at times"


_row = row_of(
    Schedule,
    "name when what next_at last_at last=last_outcome missed paused origin problem",
    when=_when,
    what=lambda each: each.spec.get("task") or each.spec.get("workflow"),
    paused=lambda each: each.paused_by and " ".join(filter(None, (each.paused_by, each.paused_reason))),
    problem=lambda each: each.plan_error or ("not planned" if each.is_dry else each.last_error),
)
_fired = row_of(FiredTime, "fire_at outcome lease_id run_id error")
_fire = row_of(ScheduleFire, "fire_at fired_at cause outcome lease_id run_id error")
