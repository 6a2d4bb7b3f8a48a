"""Which SQL function calls which, read from the modules below `sql/`."""

import re
from dataclasses import dataclass
from pathlib import Path

from hwqueue.schema.files import SQL_DIR

# Arrows go from a folder to itself or to one further left.
LAYERS = (
    "base",
    "placement",
    "classes",
    "capacity",
    "queues",
    "constraints",
    "eligibility",
    "spawn",
    "claim",
    "nodes",
    "fleet",
    "gangs",
    "everywhere",
    "workflows",
    "schedules",
    "upkeep",
    "explain",
    "api",
)

_MADE = re.compile(r"^create or replace (?:function|view) hwqueue\.(\w+)", re.M)
_IGNORED = re.compile(r"--[^\n]*|'(?:''|[^'])*'")
_CALL = re.compile(r"\bhwqueue\.(\w+)\s*\(")


@dataclass(frozen=True)
class Function:
    """A function or view: its module (`claim/head`), its whole text, and what it calls."""

    name: str
    module: str
    text: str
    calls: frozenset[str]

    @property
    def layer(self) -> str:
        """The folder of its module."""
        return self.module.split("/")[0]


def functions(root: Path = SQL_DIR) -> dict[str, Function]:
    """All functions and views, by name; calls of what is not defined here are left out."""
    found: dict[str, Function] = {}
    for folder in LAYERS:
        for path in sorted((root / folder).glob("*.sql")):
            text = path.read_text(encoding="utf-8")
            starts = [*_MADE.finditer(text)]
            ends = [*(start.start() for start in starts[1:]), len(text)]
            for start, end in zip(starts, ends, strict=True):
                body = text[start.start() : end]
                name = start[1]
                calls = frozenset(_CALL.findall(_IGNORED.sub("''", body))) - {name}
                kind = "view " if " view " in start[0] else ""
                found[kind + name] = Function(name, f"{folder}/{path.stem}", body, calls)
    return found


def calls_between_modules(known: dict[str, Function]) -> dict[tuple[str, str], list[str]]:
    """For each pair of modules, the calls from the first to the second, as `caller -> called`."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for caller in known.values():
        for name in sorted(caller.calls & known.keys()):
            if (called := known[name]).module != caller.module:
                arrows.setdefault((caller.module, called.module), []).append(f"{caller.name} -> {name}")
    return arrows
