"""Write docs/reference/sql.md from the function files: their headers are the documentation.

`python tools/sql_reference.py` writes the page, `--check` fails when it is out of date.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from hwqueue.schema.files import SQL_DIR

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "sql.md"
SUBJECTS = {
    "queues": "Queues",
    "leases": "Leases: spawn, look at, change",
    "nodes": "Nodes",
    "claims": "Claims: take, keep, settle",
    "explain": "Explanations",
    "maintenance": "Maintenance",
}
INTRODUCTION = """# SQL functions

Generated from `sql/` by `make reference`; do not edit.

Everything that hwqueue does is a function in schema `hwqueue`: any language with a Postgres
driver is a client. Pass arguments by name (`p_queue => 'default'`) and name the result columns that
you read: later versions may add arguments with defaults and columns at the end. Errors have a
SQLSTATE of class `QH` ([errors](errors.md)), JSON as detail, and a hint.
"""
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


def functions(subject: str) -> list[Function]:
    """The public functions of a folder of sql/, by name."""
    found = [
        Function(
            match["name"],
            " ".join(match["arguments"].split()),
            " ".join(match["result"].split()),
            "\n".join(line.removeprefix("--").strip() for line in match["comment"].splitlines()),
        )
        for path in sorted((SQL_DIR / subject).glob("*.sql"))
        for match in PUBLIC.finditer(path.read_text(encoding="utf-8"))
    ]
    return sorted(found, key=lambda function: function.name)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for subject, title in SUBJECTS.items():
        parts.append(f"\n## {title}\n")
        parts += [_entry(function) for function in functions(subject)]
    return "".join(parts)


def _entry(function: Function) -> str:
    # "Locks: ..." and its kin stand on lines of their own
    text = re.sub(r"\n(?=(Locks|Idempotent|Wakes)\b)", "  \n", function.comment)
    return (
        f"\n### {function.name}\n\n```sql\nhwqueue.{function.name}({function.arguments})\n"
        f"  returns {function.result}\n```\n\n{text}\n"
    )


def main() -> None:
    """Write or check the page."""
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/reference/sql.md is out of date: run `make reference`")


if __name__ == "__main__":
    main()
