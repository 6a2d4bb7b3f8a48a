"""Reading what people type: JSON, spans, moments, ids and node names."""

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, overload
from uuid import UUID

from psycopg.errors import InsufficientPrivilege

from hwqueue.client import Client
from hwqueue.errors import ConfigError, NodeUnknown
from hwqueue.text import label_value
from hwqueue.types import Node, Taint

_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def json_object(text: str, name: str) -> dict[str, Any]:
    """Read a JSON object typed in place, from a file (its path), or from stdin (`-`).

    Raises: ConfigError.
    """
    value = json_value(text, name)
    if not isinstance(value, dict):
        raise ConfigError(
            f"{name}: a JSON object is needed, not {json.dumps(value)[:80]}",
            hint=f"such as {name} '{{\"gpu\": true}}'",
        )
    return value


def secret_of(path: Path | None, name: str) -> str | None:
    """What a file holds, without the end of its line; None: no file. Raises: ConfigError."""
    if path is None:
        return None
    try:
        secret = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {path} cannot be read") from error
    if not secret:
        raise ConfigError(f"{name}: {path} is empty", hint="make one: openssl rand -hex 32")
    return secret


def json_value(text: str, name: str) -> Any:
    """Read any JSON value typed in place, from a file, or from stdin. Raises: ConfigError."""
    source, origin = _source(text, name)
    try:
        return json.loads(source, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{origin}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="put JSON in single quotes for the shell, or give the path of a file",
        ) from error
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: its brackets are nested too deep to be read") from error


@overload
def span(text: str, name: str) -> timedelta: ...
@overload
def span(text: None, name: str) -> None: ...
@overload
def span(text: str | None, name: str) -> timedelta | None: ...
def span(text: str | None, name: str) -> timedelta | None:
    """Read a span such as `90s`, `5m`, `1h30m` or `2d`; None stays None. Raises: ConfigError."""
    if text is None:
        return None
    parts = _SPAN_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{name}: {text[:80]!r} is not a span", hint="write 90s, 5m, 1h30m, 2d or 500ms")
    try:
        return timedelta(seconds=sum(float(n) * _UNIT_SECONDS[unit] for n, unit in parts))
    except OverflowError as error:
        raise ConfigError(f"{name}: {text[:80]!r} is too long a span") from error


def rate_of(text: str, option: str) -> dict[str, Any]:
    """Read a rate such as 600/1m. Raises: ConfigError."""
    count, _, per = text.partition("/")
    if not count.isdecimal() or not per:
        raise ConfigError(f"{option}: {text[:80]!r} is not COUNT/SPAN", hint="such as 600/1m")
    return {"count": int(count), "per": span(per, option)}


def moment(text: str | None, name: str) -> datetime | None:
    """Read a time with its offset; None stays None. Raises: ConfigError."""
    if text is None:
        return None
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise ConfigError(
            f"{name}: {text[:80]!r} is not a time with an offset",
            hint="write 2030-01-31T18:00:00+01:00 or 2030-01-31T17:00:00Z",
        )
    return value


def moment_after(text: str | None, name: str) -> datetime | timedelta | None:
    """Read a time with its offset, or a span from now; None stays None. Raises: ConfigError.

    The database adds the span to its own clock, which is what the time is compared with.
    """
    if text is None or not text[-1:].isalpha() or text.endswith("Z"):
        return moment(text, name)
    return span(text, name)


def moment_before(text: str | None, name: str) -> datetime | timedelta | None:
    """The same for a span before now, which is below zero. Raises: ConfigError."""
    found = moment_after(text, name)
    return -found if isinstance(found, timedelta) else found


def identifier(text: str, name: str) -> UUID:
    """Read a UUID. Raises: ConfigError."""
    try:
        return UUID(text)
    except ValueError as error:
        raise ConfigError(
            f"{name}: {text[:80]!r} is not an id", hint="ids look like 01890a5d-ac96-774b-bcce-…"
        ) from error


def pairs(items: list[str], name: str) -> dict[str, str]:
    """Read `key=value` items. Raises: ConfigError."""
    found: dict[str, str] = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not key or not sign:
            raise ConfigError(f"{name}: {item[:80]!r} is not key=value")
        if key in found:
            raise ConfigError(f"{name}: {key!r} is given twice")
        found[key] = value
    return found


def labels(items: list[str] | None, name: str) -> dict[str, Any]:
    """Read labels of a node: `key=value` (`hwqueue.text.label_value`), or JSON objects.

    Raises: ConfigError, also when two of them set the same label.
    """
    found: dict[str, Any] = {}
    for item in items or []:
        if "=" in item and not item.lstrip().startswith("{"):
            part = {key: label_value(value) for key, value in pairs([item], name).items()}
        else:
            part = json_object(item, name)
        for key in part.keys() & found.keys():
            raise ConfigError(f"{name}: {key!r} is given twice")
        found |= part
    return found


def taint_of(text: str, name: str) -> Taint:
    """Read `key=value:effect` or `key:effect`. Raises: ConfigError."""
    what, colon, effect = text.rpartition(":")
    key, _, value = what.partition("=")
    if not colon or not key:
        raise ConfigError(
            f"{name}: {text[:80]!r} is not KEY=VALUE:EFFECT", hint="such as dedicated=film:no_schedule"
        )
    return Taint(key=key, value=value or None, effect=effect)


def find_node(client: Client, text: str) -> Node:
    """Find a registered node by name or id. Raises: NodeUnknown."""
    for node in client.list_nodes(name=text):
        return node
    for node in client.list_nodes():
        if str(node.node_id) == text.lower():
            return node
    raise NodeUnknown(f"no node is named {text[:80]!r} or has this id", hint="list them: hwqueue node list")


def names_of_nodes(client: Client) -> dict[UUID, str]:
    """The names of the registered nodes; none for a login that may not list them."""
    try:
        return {node.node_id: node.name for node in client.list_nodes()}
    except InsufficientPrivilege:
        return {}


def node_id_of(client: Client, text: str) -> UUID:
    """The id that is given, or that of a registered node: one that is gone is known by its id only.

    Raises: NodeUnknown.
    """
    try:
        return UUID(text)
    except ValueError:
        return find_node(client, text).node_id


def _source(text: str, name: str) -> tuple[str, str]:
    """Return the JSON text and where it came from; what does not begin like JSON is a path."""
    if text == "-":
        return sys.stdin.read(), f"{name} (stdin)"
    if text.lstrip()[:1] in tuple('{["0123456789') or text in ("true", "false", "null"):
        return text, name
    path = Path(text)
    try:
        return path.read_text(encoding="utf-8"), f"{name} ({path})"
    except (OSError, UnicodeDecodeError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(
            f"{name}: {text[:80]!r} is neither JSON nor a file that can be read: {problem}"
        ) from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON; use a number or null")


def _no_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in items:
        if key in found:
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found
