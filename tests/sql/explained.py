"""What tests of explanations ask again and again."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.calls import Row
from tests.sql.api import Api, Node


def explain(api: Api, lease: UUID) -> Row:
    return api.row("explain_lease", lease=lease)


def explain_class(api: Api, lease: UUID) -> Row:
    """Explain the class of a lease."""
    return api.row("explain_class", **{"class": class_of(api, lease)})


def class_of(api: Api, lease: UUID) -> int:
    """The placement class of a lease."""
    return int(api.one("select class_id from hwqueue.lease where lease_id = %s", lease))


def near(found: Row, node: Node) -> Row:
    """What an explanation says of one node."""
    [row] = [row for row in found["nearest"] if row["node_id"] == str(node.node_id)]
    return dict(row)


def codes(found: Row, node: Node) -> list[str]:
    """The codes of what keeps a node out."""
    return [reason["code"] for reason in near(found, node)["reasons"]]


def funnel(found: Row) -> Mapping[str, int]:
    """The nodes that are left after each stage."""
    return {stage["stage"]: stage["nodes"] for stage in found["funnel"]}


def actions(found: Row) -> list[str]:
    return [one["action"] for one in found["help"]]


def label(key: str, *values: Any) -> Row:
    """A label that must have one of these values."""
    return {"label": key, "op": "in", "values": list(values)}
