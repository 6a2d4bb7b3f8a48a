"""What a call did: the plan of every statement in it, nested ones included, as auto_explain tells.

with explained(conn) as work:
    api.claim(node, queue)
assert work.rows_read("ready") < 100
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.errors import Diagnostic

Plan = dict[str, Any]

_SETTINGS = {
    "log_min_duration": "0",
    "log_nested_statements": "on",
    "log_analyze": "on",
    "log_buffers": "on",
    "log_timing": "off",
    "log_format": "json",
    "log_level": "notice",
}


@dataclass
class Work:
    """All plans of a call, innermost first: the last one is the call itself."""

    plans: list[Plan] = field(default_factory=list)

    @property
    def nodes(self) -> list[Plan]:
        """Every node of every plan."""
        return [node for plan in self.plans for node in _walk(plan["Plan"])]

    def scans(self, *tables: str) -> list[Plan]:
        """The nodes that read these tables."""
        return [
            node
            for node in self.nodes
            if node.get("Relation Name") in tables and node["Node Type"].endswith("Scan")
        ]

    def rows_read(self, table: str) -> float:
        """Rows fetched from the table, those that a filter dropped included."""
        return sum(_rows_read(node) for node in self.scans(table))

    def whole_table_scans(self, *tables: str) -> list[str]:
        """What reads one of these tables from end to end: must be empty for large ones."""
        return [
            f"{node['Relation Name']}: {plan['Query Text']}"
            for plan in self.plans
            for node in _walk(plan["Plan"])
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] in tables
        ]

    @property
    def most_rows(self) -> float:
        """The rows that one node of a plan looked at, over all its loops, at most."""
        dropped = ("Rows Removed by Filter", "Rows Removed by Join Filter")
        each = (
            node["Actual Loops"] * (node["Actual Rows"] + sum(node.get(key, 0) for key in dropped))
            for node in self.nodes
        )
        return float(max(each))

    @property
    def buffers(self) -> int:
        """Pages touched by the whole call, in memory or not."""
        root = self.plans[-1]["Plan"]
        return int(root["Shared Hit Blocks"]) + int(root["Shared Read Blocks"])


@contextmanager
def explained(conn: psycopg.Connection[Any]) -> Iterator[Work]:
    """Collect the plans of what is called inside."""
    work = Work()

    def collect(diag: Diagnostic) -> None:
        _, found, plan = (diag.message_primary or "").partition("plan:\n")
        if found:
            work.plans.append(json.loads(plan))

    conn.execute("load 'auto_explain'")
    for name, value in _SETTINGS.items():
        conn.execute("select set_config(%s, %s, false)", [f"auto_explain.{name}", value])
    conn.add_notice_handler(collect)
    try:
        yield work
    finally:
        conn.remove_notice_handler(collect)
        conn.execute("select set_config('auto_explain.log_min_duration', '-1', false)")
    # the calls made to collect them are not part of it
    work.plans = [
        plan for plan in work.plans if not plan["Query Text"].lower().startswith("select set_config")
    ]
    assert work.plans, "no plan was told: is auto_explain there?"


def _walk(node: Plan) -> Iterator[Plan]:
    yield node
    for child in node.get("Plans", []):
        yield from _walk(child)


def _rows_read(node: Plan) -> float:
    each = node["Actual Rows"]
    each += node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float(each * node["Actual Loops"])
