"""Read what the schema holds, as facts that can be compared and kept in a file."""

import json
from pathlib import Path
from typing import Any

import psycopg

from hwqueue.schema.files import statement

# By kind ("function"), then by name ("spawn_lease(text, text, jsonb, jsonb, integer)").
Catalog = dict[str, dict[str, dict[str, Any]]]


def read_catalog(connection: psycopg.Connection) -> Catalog:
    """Everything in schema `hwqueue`."""
    catalog: Catalog = {}
    with connection.transaction():
        connection.execute(statement("pin"), prepare=False)
        for kind, name, facts in connection.execute(statement("catalog")):
            catalog.setdefault(kind, {})[name] = facts
    return catalog


def load_manifest(path: Path) -> tuple[Catalog, int]:
    """The expected catalog, and the major version of the server that it was read from."""
    content = json.loads(path.read_text(encoding="utf-8"))
    catalog: Catalog = {}
    for kind, name, facts in content["objects"]:
        catalog.setdefault(kind, {})[name] = facts
    return catalog, content["server_major"]
