"""How large the project is, and how large it may be: tests/budgets.toml.

`python -m tests.budgets` writes the present numbers, and those of layers into sql/README.md. A commit that
raises one says why in its body.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path

from hwqueue.schema.catalog import load_manifest
from hwqueue.schema.drift import MANIFEST
from hwqueue.schema.files import SQL_DIR
from tests.migrations.call_graph import Function, functions

ROOT = Path(__file__).parents[1]
BUDGETS = ROOT / "tests" / "budgets.toml"
README = SQL_DIR / "README.md"
COMMAND = "python -m tests.budgets"
HEADER = f"""\
# How large the project may be. tests/unit/test_budgets.py compares: no number may be higher in the
# project than here, nor more than 1 % (or 2) lower. `{COMMAND}` writes the present
# ones, lines rounded up. A commit that raises one says why in its body.
"""
NOTES = {
    "lines": "of Python, the generated sync half of the client left out",
    "docs": "pages below docs/, and words of the glossary",
    "sql": "tables; functions: of them public ones, and short ones (25 lines) with one caller",
    "sql_lines": "hand-written, by folder; around: what stands beside the folders",
    "reach_functions": "how many functions a call may run, by the static call graph",
    "reach_files": "and in how many files these stand",
    "below_functions": "the same without what stands above claims: runs, teams and schedules",
    "below_files": "and in how many files these stand",
    "below_chain": "and how many of them call each other in a row, at most",
}
ABOVE = ("gangs", "everywhere", "workflows", "schedules")
REACHING = ("spawn_lease", "claim_task", "settle_and_claim", "complete_lease", "reap")
SHORT = 25

Budgets = dict[str, dict[str, int]]


def measured(known: dict[str, Function]) -> Budgets:
    """The present numbers."""
    below = {key: function for key, function in known.items() if function.layer not in ABOVE}
    return {
        "lines": {
            "hwqueue": lines_below("hwqueue", "*.py", without="_sync"),
            "tests": lines_below("tests", "*.py"),
        },
        "docs": {
            "pages": sum("_build" not in page.parts for page in (ROOT / "docs").rglob("*.md")),
            "words": lines_with(ROOT / "docs" / "glossary.md", r"^\| \*\*"),
        },
        "sql": {
            "tables": count_tables(),
            "functions": sum(not is_view_key(key) for key in known),
            "public": sum(f.layer == "api" and not is_view_key(key) for key, f in known.items()),
            "short_with_one_caller": len(short_with_one_caller(known)),
        },
        "sql_lines": {
            folder.name: lines_below(folder, "*.sql")
            for folder in sorted(SQL_DIR.iterdir())
            if folder.is_dir()
        }
        | {"around": sum(map(lines_in, SQL_DIR.glob("[!s]*.sql")))},
        "reach_functions": {name: len(reach(known, name)) for name in REACHING},
        "reach_files": {name: files(known, name) for name in REACHING},
        "below_functions": {name: len(reach(below, name)) for name in REACHING},
        "below_files": {name: files(below, name) for name in REACHING},
        "below_chain": {name: chain(below, name, {}) for name in REACHING},
    }


def faults(present: Budgets, budgets: Budgets) -> list[str]:
    """What is above its budget, and which budgets stand too high."""
    found = []
    for name, number in sorted(flat(present).items()):
        budget = flat(budgets).get(name)
        if budget is None:
            found.append(f"{name} has no budget: {COMMAND}")
        elif number > budget:
            found.append(
                f"{name} is {number}, its budget {budget}: make it smaller; or raise it with "
                f"`{COMMAND}` and say why in the commit's body"
            )
        elif budget - number > max(2, budget // 100):
            found.append(f"{name} is {number} now, its budget still {budget}: lower it, {COMMAND}")
    gone = flat(budgets).keys() - flat(present).keys()
    return found + [f"{name} is not measured any more: {COMMAND}" for name in sorted(gone)]


def flat(budgets: Budgets) -> dict[str, int]:
    """The numbers by their whole names, such as `sql_lines.claim`."""
    return {
        f"{group}.{name}": number for group, numbers in budgets.items() for name, number in numbers.items()
    }


def reach(known: dict[str, Function], name: str) -> set[str]:
    """Every function that a call of this one may run, itself among them."""
    found: set[str] = set()
    left = [name]
    while left:
        if (called := left.pop()) not in found:
            found.add(called)
            left += known[called].calls & known.keys()
    return found


def files(known: dict[str, Function], name: str) -> int:
    """In how many files stands what a call may run."""
    return len({known[called].module for called in reach(known, name)})


def chain(known: dict[str, Function], name: str, lengths: dict[str, int]) -> int:
    """The longest row of functions that call each other; one that calls itself again counts once."""
    if name not in lengths:
        lengths[name] = 0
        called = known[name].calls & known.keys()
        lengths[name] = 1 + max((chain(known, each, lengths) for each in sorted(called)), default=0)
    return lengths[name]


def short_with_one_caller(known: dict[str, Function]) -> list[str]:
    """Internal functions of few lines that a single other one calls."""
    callers = Counter(called for function in known.values() for called in function.calls)
    return [
        key
        for key, function in known.items()
        if callers[key] == 1 and function.layer != "api" and length(function) <= SHORT
    ]


def length(function: Function) -> int:
    """Lines of a definition, signature to end."""
    quote = re.search(r"\bas (\$\w*\$)", function.text)
    end = function.text.index(quote[1], quote.end()) if quote else len(function.text)
    return function.text.count("\n", 0, end) + 1


def count_tables() -> int:
    """Tables, without Alembic's and without partitions."""
    catalog, _ = load_manifest(SQL_DIR / MANIFEST)
    return sum(
        facts["relkind"] in "rp" and facts["partition"] is None and name != "alembic_version"
        for name, facts in catalog["table"].items()
    )


def is_view_key(key: str) -> bool:
    """Whether a key of the call graph is a view's."""
    return key.startswith("view ")


def lines_below(folder: str | Path, pattern: str, *, without: str = "") -> int:
    """Lines of the files below a folder."""
    files = (ROOT / folder).rglob(pattern)
    return sum(lines_in(file) for file in files if not without or without not in file.parts)


def lines_in(path: Path) -> int:
    """All lines of a file."""
    return path.read_bytes().count(b"\n")


def lines_with(path: Path, pattern: str) -> int:
    """Lines that begin so."""
    return len(re.findall(pattern, path.read_text(encoding="utf-8"), re.M))


def read() -> Budgets:
    """The budgets that hold."""
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def rounded(number: int) -> int:
    """Up to three digits, at most 1 % more: a line more is no new budget."""
    step: int = 10 ** max(0, len(str(number)) - 3)
    return -(-number // step) * step


def write_lines(readme: str, lines: dict[str, int]) -> str:
    """sql/README.md with the lines that each layer may have."""
    return re.sub(
        r"^(\| `(\w+)` \| )[\d,]+(?= \|)", lambda row: f"{row[1]}{lines[row[2]]:,}", readme, flags=re.M
    )


def main() -> None:
    """Write the present numbers."""
    groups = []
    for group, numbers in measured(functions()).items():
        written = rounded if group.endswith("lines") else int
        rows = "".join(f"{name} = {written(number)}\n" for name, number in numbers.items())
        groups.append(f"\n# {NOTES[group]}\n[{group}]\n{rows}")
    BUDGETS.write_text(HEADER + "".join(groups), encoding="utf-8")
    README.write_text(write_lines(README.read_text(encoding="utf-8"), read()["sql_lines"]), encoding="utf-8")


if __name__ == "__main__":
    main()
