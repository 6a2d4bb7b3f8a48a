"""Write docs/reference/options.md: every option, read from what checks it.

Keys, types, ranges and defaults of spawns, retries and policies come from the SQL functions that
read them, settings of workers from `WorkerSettings` and the command line; what options mean from
hwqueue/meanings.toml, examples from tools/options.toml. `python tools/options_reference.py` writes
the page, `--check` fails when it is out of date.
"""

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from typer.main import get_command

from hwqueue.app import App
from hwqueue.cli.main import app
from hwqueue.meanings import attributes, meanings, text_of
from hwqueue.schema.files import SQL_DIR
from hwqueue.text import duration
from hwqueue.worker import WorkerSettings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "options.md"
Kind = (
    Literal["spawn", "unique", "replaces", "retry", "policy", "preempt", "preemptible", "tuning"]
    | Literal["task", "app", "gang", "everywhere", "submit", "step"]
)
# The options of these are those of a spawn where they say nothing else.
_AS_SPAWN = ("task", "gang", "everywhere", "submit", "step")

INTRODUCTION = """# Options

<!-- Generated from `sql/`, `hwqueue/meanings.toml`, `hwqueue/worker/settings.py` and
`tools/options.toml` by `make reference`; do not edit. -->

Types are those of JSON. A *span* is a number of seconds, or text such as `"1 hour 30 minutes"`
without months; HTTP takes seconds alone, the command line `90s`, `5m`, `1h30m` or `2d`. Python
takes a `timedelta` in keyword arguments and dataclasses, where a plain number is an error; in a
mapping, which is JSON, it takes seconds, too. A *time* is text with an offset from UTC, in Python a
`datetime` with a time zone. A span from now counts by the database's clock: in SQL and over HTTP it
is a number. Filters over HTTP take times alone.

An option that is null counts as not given. An unknown key is an error that lists those allowed.
"""
SPAWN = """
## Spawn

```sql
select lease_id from hwqueue.spawn_lease('renders', 'draw', '{"frame": 7}',
  '{"priority": 5, "delay": 600}');
```

```python
client.spawn_lease("renders", "draw", {"frame": 7}, priority=5, delay=timedelta(minutes=10))
```

```sh
hwqueue lease spawn renders draw --params '{"frame": 7}' --priority 5 --delay 10m
```

```text
POST /api/v1/leases
{"queue": "renders", "task": "draw", "params": {"frame": 7},
 "options": {"priority": 5, "delay": 600}}
```

A batch has them in each element: `{"task": ..., "params": ..., "options": {...}}`.
"""
UNIQUE = """
### Unique

The value of `unique`. In Python `Unique(key="customer-7", hold=timedelta(hours=1))`, where `hold`
is `while`, and None is open.
"""
REPLACES = """
### Replaces

The value of `replaces`. In Python `Replaces(lease=lease_id, then="requeue")`.
"""
GANG = """
## Gang

```sql
select * from hwqueue.spawn_gang('training', '[{"task": "train", "count": 4}]',
  '{"together": "rack", "priority": 5}');
```

```python
client.spawn_gang("training", [{"task": "train", "count": 4}], together="rack", priority=5)
```

```sh
hwqueue gang spawn training --member train:4 --together rack --priority 5
```

```text
POST /api/v1/gangs
{"queue": "training", "members": [{"task": "train", "count": 4}],
 "options": {"together": "rack", "priority": 5}}
```

From `priority` on they are options of each member that says nothing itself. A member may have those
of a spawn in its `options`, but for the times and keys, `patience` and `notify`.
"""
EVERYWHERE = """
## Everywhere task

```sql
select * from hwqueue.spawn_everywhere('ops', 'agent', '{}', '{"mode": "once", "priority": 5}');
```

```python
client.spawn_everywhere("ops", "agent", mode="once", priority=5)
```

```sh
hwqueue everywhere spawn ops agent --mode once --priority 5
```

```text
POST /api/v1/everywhere
{"queue": "ops", "task": "agent", "options": {"mode": "once", "priority": 5}}
```

From `placement` on they are options of each lease.
"""
RETRY = """
## Retry

The value of `retry`, in a spawn or in a queue's policy. The wait before attempt n is
`base * factor ^ (n - 2)`, at most `max`, less a random part of it. In Python:
`RetryPolicy(kind="fixed", base=timedelta(seconds=30))`.
"""
POLICY = """
## Queue policy

```sql
select hwqueue.set_queue_policy('renders',
  '{"claim_timeout": 300, "retry": {"kind": "fixed", "base": 30}}');
```

```python
retry = RetryPolicy(kind="fixed", base=timedelta(seconds=30))
client.set_queue_policy("renders", QueuePolicy(claim_timeout=timedelta(minutes=5), retry=retry))
```

```sh
hwqueue queue policy renders '{"claim_timeout": 300, "retry": {"kind": "fixed", "base": 30}}'
```

```text
PATCH /api/v1/queues/renders/policy
{"claim_timeout": 300, "retry": {"kind": "fixed", "base": 30}}
```

`create_queue` takes the same. What is not given stays as it is, or is at its default in a new
queue. On the command line a policy is JSON, as in SQL.
"""
PREEMPT = """
### Preempt

The value of the policy `preempt`: [preemption](../run/security.md#preemption) is off without it.
What is left out is at its default.
"""
PREEMPTIBLE = """
### Preemptible

The value of the policy `preemptible`. What is left out is at its default.
"""
TUNING = """
### Tuning

The value of the policy `tuning`. Nobody needs it: the defaults were measured, and tests and
simulations change them. What is left out stays as it is.
"""
TASK = """
## Task defaults

Options that the leases of a task have unless their spawn says otherwise. `set_task` keeps them on
the server, for spawns from everywhere; each call sets all of them. `hwqueue task sync` takes them
from the `@app.task` of an app.

```sql
select hwqueue.set_task('train', '{"placement": {"resources": {"gpu": 1}}, "max_attempts": 1}');
```

```python
client.set_task("train", {"placement": {"resources": {"gpu": 1}}, "max_attempts": 1})


@app.task("train", placement={"resources": {"gpu": 1}}, max_attempts=1)
def train(model: str) -> None: ...
```

```sh
hwqueue task set train '{"placement": {"resources": {"gpu": 1}}, "max_attempts": 1}'
```

```text
PUT /api/v1/tasks/train
{"placement": {"resources": {"gpu": 1}}, "max_attempts": 1}
```
"""
APP = """
`@app.task` takes these as well. They say how a worker runs the handler, or where `Task.spawn` puts
its leases, so the server does not keep them.
"""
SUBMIT = """
## Workflow submission

```sql
select run_id from hwqueue.submit_workflow('film', '{"frames": 40}',
  '{"priority": 5, "affinity_tags": {"gpu": true}}');
```

```python
client.submit_workflow("film", {"frames": 40}, priority=5, affinity_tags={"gpu": True})
```

```sh
hwqueue workflow run film --input '{"frames": 40}' --priority 5 --tags gpu=true
```

```text
POST /api/v1/workflows/film/runs
{"input": {"frames": 40}, "options": {"priority": 5, "affinity_tags": {"gpu": true}}}
```
"""
STEP = """
### Options of a step

The `options` of a step that spawns leases, in a definition or in `steps` of a submission, which
wins: `{"name": "draw", "task": "draw", "options": {"priority": 9, "max_attempts": 1}}`. In Python:
`Step("draw", "draw", options={"priority": 9, "max_attempts": 1})`. What is null or left out comes
from the task's defaults, then from the queue.
"""
RETENTION = """
## Retention

`prune`, which workers call about once a minute, deletes what is kept no longer.

| what | kept for | change it with |
|---|---|---|
| completed and cancelled leases | `retain_completed` ({retain_completed}) | the queue's policy |
| failed (dead) leases | `retain_failed` ({retain_failed}) | the queue's policy |
| idempotency keys | as long as their lease | |
| attempts and their log lines | as long as their lease | |
| events | {event_days} days, 1 to 14 | `set_event_retention(7)` in SQL and Python |
| deliveries of webhooks, once they have ended | as long as events | the same |
| fires of schedules | as long as leases of their queue; a day at least | the queue's policy |
| silent nodes | {node_days} days, then deregistered | `hwqueue node expiry 2d`, `set_node_expiry` |
| deregistered nodes | 30 days | |
| figures by minute | a day | |
"""
WORKER = """
## Worker

Fields of `hwqueue.WorkerSettings`, and the flags of `hwqueue worker run`.

```python
WorkerSettings(dsn="postgresql://gpu_worker@db.example/app", queues=("renders",), concurrency=4)
```

```sh
hwqueue worker run --app tasks:app --queue renders --concurrency 4
```

| setting | default | flag | meaning |
|---|---|---|---|
"""
# The SQL functions that read what the table of keys does not have, by kind; and the files that say
# which options of a spawn a kind has besides its own.
_READ_BY: Mapping[str, tuple[str, str]] = {
    "retry": ("base/options.sql", "normalise_retry"),
    "unique": ("spawn/read.sql", "unique_key"),
    "replaces": ("spawn/replace.sql", "replaces_of"),
}
_SHARED = {"gang": "gangs/spawn.sql", "everywhere": "everywhere/define.sql"}
_WITHOUT_EXAMPLES = ("task", "step", "preempt", "preemptible", "tuning", "unique", "replaces")
# The parts of the page that have a table of options.
SECTIONS: Mapping[Kind, str] = {
    "spawn": SPAWN,
    "unique": UNIQUE,
    "replaces": REPLACES,
    "task": TASK,
    "app": APP,
    "gang": GANG,
    "everywhere": EVERYWHERE,
    "submit": SUBMIT,
    "step": STEP,
    "retry": RETRY,
    "policy": POLICY,
    "preempt": PREEMPT,
    "preemptible": PREEMPTIBLE,
    "tuning": TUNING,
}
# Flags that are not called as their setting.
_FLAGS = {
    "dsn": "--dsn",
    "labels": "--label",
    "queues": "--queue",
    "detect": "--no-detect",
    "gpus": "--gpu",
    "pass_environment": "--pass-env",
    "share": "--processes",
}
# What a type of `known_keys`, or a reader of JSON, takes, said with its bounds.
_TYPES = {
    "boolean": "boolean",
    "domain": "`node`, `rack` or `label:KEY`",
    "integer": "integer, {0:,} to {1:,}",
    "interval": "span, {0} to {1}",
    "number": "number, {0:,} to {1:,}",
    "text": "text, 1 to {0} characters",
    "time": "time",
    "moment": "time, or a span from now",
    "uuid": "uuid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A row of the page: `json`, `python` and `cli` are examples; "" where there is none."""

    key: str
    type: str
    default: str
    meaning: str
    json: str
    python: str
    cli: str


def _sql(name: str) -> str:
    return (SQL_DIR / name).read_text(encoding="utf-8")


def _function(text: str, name: str) -> str:
    """The body of a SQL function."""
    found = re.search(rf"function hwqueue\.{name}\(.*?as \$\$(.*?)\$\$;", text, re.S)
    assert found, name
    return found[1]


def _list(text: str, pattern: str) -> list[str]:
    """The words of the `array[...]` after a pattern."""
    found = re.search(rf"{pattern}array\[(.*?)\]", text, re.S)
    assert found, pattern
    return re.findall(r"'(\w+)'", found[1])


def keys(kind: Kind) -> list[str]:
    """The keys that the SQL functions take, in their order."""
    if table := known_keys().get(kind):
        return [*table, *_list(_sql(_SHARED[kind]), r"v_own \|\| ")] if kind in _SHARED else list(table)
    if kind == "spawn":
        text = _sql("spawn/read.sql")
        own = _list(_function(text, "own_options"), r"select ")
        return [*_list(text, r"v_class_options text\[\] := "), *own]
    if kind in _READ_BY:
        return _list(_reader(kind), r"check_object\([pv]_\w+, ")
    told = set(inspect.signature(App.task).parameters) - {"self", "name"}
    return sorted(told - set(keys("task")))


def known_keys() -> Mapping[str, Mapping[str, list[Any]]]:
    """The table of keys: by kind of object and key, type, least, most and default."""
    text = _function(_sql("base/options.sql"), "known_keys")
    return {kind: json.loads(keys) for kind, keys in re.findall(r"'(\w+)' then '(.*?)'", text, re.S)}


def _rule(kind: Kind, key: str) -> list[Any] | None:
    """The four parts of a row of the table of keys."""
    rule = known_keys().get(kind, {}).get(key)
    return [*rule, None, None, None][:4] if rule else None


def _reader(kind: Kind) -> str:
    """The SQL that reads the options of a kind that the table does not have."""
    if kind in _READ_BY:
        return _function(_sql(_READ_BY[kind][0]), _READ_BY[kind][1])
    return _sql("spawn/read.sql")


def _type(kind: Kind, key: str) -> str:
    """The type and range of an option, "" where its reader says neither."""
    if kind == "app":
        return ""
    if rule := _rule(kind, key):
        return _type_of(rule)
    found = re.search(
        rf"hwqueue\.json_(\w+)\([pv]_\w+ -> '{key.rpartition('.')[2]}',"
        r" (?:p_field \|\| )?'[^']*'(?:,\s+([^()]*))?\)",
        _reader(kind),
    )
    if not found:
        return ""
    given = [part.strip("' \n") for part in (found[2] or "").split(",") if "QH" not in part]
    range_ = [int(part) if part.lstrip("-").isdigit() else part for part in given if part]
    return _TYPES.get(found[1], "").format(*(range_ or ["0"]), "ten years")


def _type_of(rule: list[Any]) -> str:
    name, least, most, _ = rule
    if name == "span":
        least = f"{least} seconds" if isinstance(least, int) and least else str(least)
        return _TYPES["interval"].format(least, most or "ten years")
    if name == "choice":
        *words, last = (f"`{word}`" for word in least)
        return f"{', '.join(words)} or {last}"
    return _TYPES.get(name, "").format(*([most] if name == "text" else [least, most]))


def _default(kind: Kind, key: str) -> str:
    """The default of an option as its reader has it, "" where that does not say it."""
    if kind == "app":
        return ""
    if rule := _rule(kind, key):
        return _default_of(rule, known_keys()["policy"]["tuning"][3].get(key))
    found = re.search(
        rf"coalesce\(hwqueue\.json_\w+\([pv]_\w+ -> '{key}'[^)]*\),\s*(?:interval )?'?([\w. ]+)'?\)",
        _reader(kind),
    )
    return found[1] if found else ""


def _default_of(rule: list[Any], tuned: Any) -> str:
    value = tuned if rule[3] is None else rule[3]
    if isinstance(value, bool):
        return str(value).lower()
    if rule[0] == "span" and isinstance(value, int) and value:
        return f"{value} seconds" if value % 60 else f"{value // 60} minutes"
    return f"{value:,}" if isinstance(value, int | float) else value if isinstance(value, str) else ""


def options(kind: Kind) -> list[Option]:
    """The options of a kind, in the order of the SQL functions.

    Raises: SystemExit, if the two files name others than these functions take, or leave one out.
    """
    file = tomllib.loads((ROOT / "tools" / "options.toml").read_text(encoding="utf-8"))
    own, spawn = file.get(kind, {}), file["spawn"] if kind in _AS_SPAWN else {}
    wanted, said = set(keys(kind)), meanings()[kind].keys()
    shared = meanings()["spawn"].keys() if kind in _AS_SPAWN else set()
    if wrong := (said | own.keys()) - wanted | wanted - said - shared:
        at = f"hwqueue/meanings.toml, tools/options.toml and the SQL functions do not agree on [{kind}]"
        sys.exit(f"{at}: {', '.join(sorted(wrong))}")
    told = {key: spawn.get(key, {}) | own.get(key, {}) for key in keys(kind)}
    return [
        Option(
            key=key,
            type=about.get("type") or _type(kind, key) or _type("spawn", key),
            default=about.get("default") or _default(kind, key) or _default("spawn", key),
            meaning=text_of(kind, key),
            **{name: about.get(name, "") for name in ("json", "python", "cli")},
        )
        for key, about in told.items()
    ]


def _rows(found: list[Option]) -> str:
    lines = ["\n| option | type, range | default | meaning |\n|---|---|---|---|\n"]
    lines += [f"| `{o.key}` | {o.type} | {o.default} | {o.meaning} |\n" for o in found]
    return "".join(lines)


def _examples(kind: Kind, found: list[Option]) -> str:
    """The examples of options; of gangs and everywhere tasks those that a spawn does not have."""
    if kind in ("gang", "everywhere"):
        found = [o for o in found if o.key in meanings()[kind]]
    columns = [name for name in ("json", "python", "cli") if any(getattr(o, name) for o in found)]
    heads = {"json": "SQL, HTTP", "python": "Python", "cli": "command line"}
    lines = [
        f"\n| {' | '.join(heads[name] for name in columns)} |\n{'|---' * len(columns)}|\n",
        *(f"| {' | '.join(_cell(o, name) for name in columns)} |\n" for o in found if o.python),
    ]
    return "".join(lines)


def _cell(option: Option, column: str) -> str:
    text = getattr(option, column)
    if column == "json":
        text = f'"{option.key}": {text}'
    return f"`{text}`" if text else ""


def worker_flags() -> Mapping[str, str]:
    """The flag of each setting that has one."""
    worker: Any = get_command(app)
    run = worker.commands["worker"].commands["run"]
    known = {option for each in run.params for option in each.opts} | {"--dsn"}
    named = {f.name: _FLAGS.get(f.name, f"--{f.name.replace('_', '-')}") for f in fields(WorkerSettings)}
    return {name: flag for name, flag in named.items() if flag in known}


def _worker_rows() -> str:
    about, flags, lines = attributes(WorkerSettings), worker_flags(), []
    for each in fields(WorkerSettings):
        default = "the host's" if each.name == "name" else _plain(each.default)
        default = "`{}`" if each.name == "labels" else default
        flag = f"`{flags[each.name]}`" if each.name in flags else ""
        lines.append(f"| `{each.name}` | {default} | {flag} | {about[each.name]} |\n")
    return "".join(lines)


def _plain(value: object) -> str:
    match value:
        case _ if value is MISSING:
            return "required"
        case timedelta():
            return duration(value)
        case None:
            return "none"
    return f"`{value!r}`"


def page() -> str:
    """The whole page."""
    kept = {key: [*rule, None][3] for key, rule in known_keys()["policy"].items()}
    tables = _tables()
    days = re.search(r"event_days \w+ .*?default (\d+)", tables)
    expiry = re.search(r"node_expiry interval default '(\d+) hours'", tables)
    assert days
    assert expiry
    retention = RETENTION.format(event_days=days[1], node_days=int(expiry[1]) // 24, **kept)
    parts = [INTRODUCTION]
    for kind, text in SECTIONS.items():
        found = options(kind)
        parts += [
            text,
            _rows(found),
            "" if kind in _WITHOUT_EXAMPLES else _examples(kind, found),
        ]
    return "".join([*parts, retention, WORKER, _worker_rows()])


def _tables() -> str:
    return (ROOT / "migrations" / "versions" / "0001_labels.sql").read_text(encoding="utf-8")


def main() -> int:
    """Write or check the page; return the exit code."""
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        print("docs/reference/options.md is out of date: run `make reference`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
