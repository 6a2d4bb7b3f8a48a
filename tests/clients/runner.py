"""Runs the conformance cases of clients (SCHEMA.md) through SQL and through HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import httpx
import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from hwqueue.client._http import SECRET, as_json
from hwqueue.types.nodes import id_of_node

CASES = Path(__file__).parent / "cases"
CALLS: Mapping[str, Any] = json.loads(CASES.with_name("calls.json").read_text())["calls"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A case, and the steps that its suite has before each."""

    id: str
    steps: list[Json]
    roads: tuple[str, ...]


def cases(folder: Path = CASES) -> Iterator[Case]:
    """Those of all suites."""
    for path in sorted(folder.glob("*.json")):
        suite = json.loads(path.read_text())
        for case in suite["cases"]:
            steps = [*suite.get("before", []), *case["steps"]]
            yield Case(f"{suite['suite']}/{case['id']}", steps, tuple(case.get("roads", ("sql", "http"))))


class Refused(Exception):
    """A call was refused: its code, the field that is named, and over HTTP the status."""

    def __init__(self, code: str | None, name: object, status: int | None = None) -> None:
        super().__init__(f"refused: {code} of {name}, status {status}")
        self.facts = {"code": code, "field": name} | ({} if status is None else {"status": status})


class Road(Protocol):
    """A way to the queue."""

    name: str

    def call(self, name: str, given: Json) -> Any:
        """What a call answers. Raises: Refused."""


@dataclass
class Sql:
    """Calls as SQL functions."""

    connection: psycopg.Connection[Json]
    name: str = "sql"

    def call(self, name: str, given: Json) -> Any:
        types = {key: sql_type for key, sql_type in CALLS[name]["sql"].items() if key in given}
        text = ", ".join(f"p_{key} => %({key})s::{sql_type}" for key, sql_type in types.items())
        values = {key: _for_sql(given[key], sql_type) for key, sql_type in types.items()}
        try:
            cursor = self.connection.cursor(row_factory=dict_row)
            rows = cursor.execute(f"select * from hwqueue.{name}({text})".encode(), values).fetchall()
        except psycopg.Error as error:
            detail = json.loads(error.diag.message_detail or "{}")
            named = str(detail.get("field")).removeprefix("p_")
            in_batch = f"leases[{detail['index']}]." if "index" in detail else ""
            raise Refused(error.sqlstate, in_batch + named) from error
        rows = [{key: as_json(value) for key, value in row.items()} for row in rows]
        match CALLS[name]["answer"]:
            case "rows":
                return rows
            case "row":
                return rows[0]
        return rows[0][name]


def _for_sql(value: Any, sql_type: str) -> Any:
    if sql_type == "jsonb":
        return Jsonb(value)
    return timedelta(seconds=value) if sql_type == "interval" else value


@dataclass
class Http:
    """Calls as requests; a worker's have the secret of the registration that the epoch names."""

    client: httpx.Client
    tokens: Mapping[str, str]
    secrets: dict[tuple[str, str], str] = field(default_factory=dict)
    name: str = "http"

    def call(self, name: str, given: Json) -> Any:
        http = CALLS[name]["http"]
        body, is_worker = dict(given), http["role"] == "worker"
        headers = {"Authorization": f"Bearer {self.tokens['worker' if is_worker else 'admin']}"}
        epoch = str(body.pop("epoch", None))
        path = re.sub(r"{(\w+)}", lambda found: quote(str(body.pop(found[1])), safe=""), http["path"])
        if is_worker:
            node = given["node"]
            headers[SECRET] = self.secrets.get((node, epoch), "x" * 43)
        sent = None if http["method"] == "GET" else body
        response = self.client.request(http["method"], path, headers=headers, json=sent)
        answer = response.json() if response.content else {}
        if response.is_error:
            raise Refused(answer.get("code"), answer.get("field"), response.status_code)
        if name == "register_node":
            self.secrets[given["node"], answer["node_epoch"]] = answer["secret"]
        if CALLS[name]["answer"] == "row":
            return answer
        return answer.get(http.get("in", "items" if CALLS[name]["answer"] == "rows" else "value"))


def fresh() -> Json:
    """The names that each case begins with."""
    start = f"conf-{uuid4().hex[:12]}"
    names: Json = {"queue": start, "other_queue": f"{start}-2", "key": start, "nobody": str(uuid4())}
    for name in ("node", "other"):
        names |= {f"{name}_name": f"{start}-{name}", name: str(id_of_node(f"{start}-{name}"))}
    return names


def run(case: Case, road: Road) -> None:
    """Run a case. Raises: AssertionError, which names the step and what differs."""
    names = fresh()
    for number, step in enumerate(case.steps, 1):
        place = f"{case.id}, step {number} ({step['call']})"
        try:
            answer = road.call(step["call"], filled(step.get("with", {}), names))
        except Refused as error:
            if "error" not in step:
                raise AssertionError(f"{place}: {error}") from error
            wanted = {key: value for key, value in step["error"].items() if key in error.facts}
            compare(error.facts, wanted, names, f"{place}: error")
        else:
            assert "error" not in step, f"{place}: not refused, but answered {answer}"
            if "answer" in step:
                compare(answer, step["answer"], names, f"{place}: answer")


def filled(value: Any, names: Json) -> Any:
    """Arguments, with what names stand for."""
    if isinstance(value, dict):
        return {key: filled(member, names) for key, member in value.items()}
    if isinstance(value, list):
        return [filled(member, names) for member in value]
    return names[value[1:]] if _is_name(value) else value


def compare(found: Any, wanted: Any, names: Json, place: str) -> None:
    """See that what was found has all that is wanted, and keep what is named. Raises: AssertionError."""
    if _is_name(wanted) and wanted[1:] not in names:
        assert found is not None, f"{place}: nothing to call {wanted}"
        if wanted != "$some":
            names[wanted[1:]] = found
        return
    wanted = filled(wanted, names) if _is_name(wanted) else wanted
    if isinstance(wanted, dict):
        assert isinstance(found, dict), f"{place}: {found!r} is no object"
        for key, member in wanted.items():
            compare(found.get(key), member, names, f"{place}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list), f"{place}: {found!r} is no list"
        assert len(found) == len(wanted), f"{place}: {len(wanted)} are wanted, {len(found)} there: {found}"
        for index, member in enumerate(wanted):
            compare(found[index], member, names, f"{place}[{index}]")
    else:
        assert _same(found, wanted), f"{place}: {wanted!r} is wanted, {found!r} there"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\$[a-z_]+", value) is not None


def _same(found: Any, wanted: Any) -> bool:
    """Whether they are equal; an integer may come as its digits, for not every reader has 64 bits."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int) != isinstance(wanted, int):
        return str(found) == str(wanted)
    return bool(found == wanted)
