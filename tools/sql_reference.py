"""Write docs/reference/sql.md from sql/api: its comments are the documentation.

`python tools/sql_reference.py` writes the page, `--check` fails when it is out of date.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hwqueue.schema.files import SQL_DIR

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "sql.md"
MODULES = {
    "queues": "Queues and services",
    "leases": "Leases: spawn, read, change",
    "bulk": "Many leases by a filter",
    "gangs": "Gangs",
    "everywhere": "Everywhere tasks",
    "tasks": "Tasks and their defaults",
    "nodes": "Nodes",
    "claims": "Claims: take, keep, settle",
    "checkpoints": "Durable steps and signals",
    "children": "What steps add to themselves",
    "workflows": "Workflows: define, submit, check",
    "runs": "Runs of workflows",
    "run_reports": "What pages show of runs",
    "explain": "Explanations and dry runs",
    "reports": "Views and figures",
    "upkeep": "Upkeep and events",
    "planner": "Planners",
    "webhooks": "Webhooks",
    "schedules": "Schedules",
    "limits": "Limits",
    "tenants": "Tenants",
    "tokens": "Tokens of the HTTP API",
}
INTRODUCTION = """# SQL functions

<!-- Generated from `sql/` by `make reference`; do not edit. -->

Everything that hwqueue does is a function in schema `hwqueue`: any language with a Postgres
driver is a client. Pass arguments by name (`p_queue => 'default'`) and name the result columns that
you read: later versions may add arguments with defaults and columns at the end. Errors have a
SQLSTATE of class `QH` ([errors](errors.md)), JSON as detail, and a hint. What may be in `p_options`
and `p_policy` is in [options](options.md).
"""
ABOUT = {
    "reports": """
Most functions here are also views of the same name and columns, over all queues, nodes or
leases; `pending_no_match` and `pending_contended` are `pending_reasons` by kind.
What they count is told in [why is it pending](../run/why_pending.md#what-the-views-count).
""",
}
# a comment block right above a function that anybody may be granted
PUBLIC = re.compile(
    r"(?P<comment>(?:^--[^\n]*\n)+)"
    r"create or replace function hwqueue\.(?P<name>\w+)\((?P<arguments>[^$]*?)\)"
    r"\s*returns (?P<result>[^$]*?)\s*^language \w+ \w+ security definer",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Function:
    """A public function as its file tells it."""

    name: str
    arguments: str
    result: str
    comment: str


def functions(module: str) -> list[Function]:
    """The public functions of a module of sql/api, by name."""
    found = [
        Function(
            match["name"],
            " ".join(match["arguments"].split()),
            " ".join(match["result"].split()),
            "\n".join(line.removeprefix("--").strip() for line in match["comment"].splitlines()),
        )
        for match in PUBLIC.finditer((SQL_DIR / "api" / f"{module}.sql").read_text(encoding="utf-8"))
    ]
    return sorted(found, key=lambda function: function.name)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for module, title in MODULES.items():
        parts.append(f"\n## {title}\n{ABOUT.get(module, '')}")
        parts += [_entry(function) for function in functions(module)]
    return "".join(parts)


def _entry(function: Function) -> str:
    # "Locks: ..." and its kin stand on lines of their own
    text = re.sub(r"\n(?=(Locks|Idempotent|Wakes)\b)", "  \n", function.comment)
    return (
        f"\n### {function.name}\n\n```sql\nhwqueue.{function.name}({function.arguments})\n"
        f"  returns {function.result}\n```\n\n{text}\n"
    )


def main() -> None:
    """Write or check the page, with every module of sql/api in it."""
    there = {file.stem for file in (SQL_DIR / "api").glob("*.sql")}
    if there != set(MODULES):
        sys.exit(f"{sorted(there ^ set(MODULES))}: in sql/api or in MODULES, and not in both")
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/reference/sql.md is out of date: run `make reference`")


if __name__ == "__main__":
    main()
