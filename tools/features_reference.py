"""Write docs/reference/features.md, what there is and what there is not, from tools/features.toml.

`python tools/features_reference.py` writes the page, `--check` fails when it is out of date.
"""

import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tools" / "features.toml"
PAGE = ROOT / "docs" / "reference" / "features.md"
ANSWERS = ("yes", "in part", "no")

INTRODUCTION = """# Features

<!-- Generated from `tools/features.toml` by `make reference`; do not edit. -->

What readers from procrastinate, River, Oban, Celery and Hatchet look for: {count} features, of
which hwqueue has {yes}, has {in_part} in part, and does not have {no}. The page tells of hwqueue
alone, at this version. *Elsewhere* is what other queues call a feature, as of November 2026; what
they have is in their own documentation.

- **yes**: the page that is linked describes it, and tests show it. `tools/features.toml` names
  them, and a test holds that each of them exists.
- **in part**: the last words say what is missing.
- **no**: hwqueue does not do it.

A job is a *lease* here ([glossary](../glossary.md)). What hwqueue guarantees, and what it does not,
is in the [README](../../README.md).
"""


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table; tools/features.toml says what each field is."""

    group: str
    name: str
    has: str
    says: str
    elsewhere: str = ""
    source: str = ""
    tests: tuple[str, ...] = ()


def features() -> list[Feature]:
    """The rows of the file, in its order."""
    rows = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["feature"]
    return [Feature(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def page() -> str:
    """The whole page."""
    rows = features()
    counts = Counter(row.has for row in rows)
    yes, in_part, no = (counts[answer] for answer in ANSWERS)
    parts = [INTRODUCTION.format(count=len(rows), yes=yes, in_part=in_part, no=no)]
    for group, members in groupby(rows, key=lambda row: row.group):
        parts.append(f"\n## {group}\n\n| feature | here | how | elsewhere |\n|---|---|---|---|\n")
        parts += [f"| {m.name} | **{m.has}** | {m.says} | {elsewhere(m)} |\n" for m in members]
    return "".join(parts)


def elsewhere(feature: Feature) -> str:
    """What other queues call it, and where that can be read."""
    return feature.elsewhere + (f" ([source]({feature.source}))" if feature.source else "")


def main() -> int:
    """Write or check the page; return the exit code."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/reference/features.md is out of date: run `make reference`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
