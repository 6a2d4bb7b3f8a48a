"""The OpenAPI document is current and complete, its options are the client's, and answers fit it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings
from jsonschema_rs import validator_for
from limits import parse
from pydantic import ValidationError
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import allow_header_conformance, positive_data_acceptance

from hwqueue.client import Client
from hwqueue.meanings import meaning
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.server.models.base import Request
from hwqueue.server.models.options import options_of
from tests.server.conftest import V1, Http, live, ok

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
Operation = dict[str, Any]
KINDS = {
    "GET /metrics": "text/plain",
    f"GET {V1}/events/stream": "text/event-stream",
    f"GET {V1}/leases/{{lease_id}}/logs/stream": "text/event-stream",
    f"GET {V1}/runs/{{run_id}}/stream": "text/event-stream",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(ServerSettings(dsn="")).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, Operation]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def test_the_committed_document_is_current(document: dict[str, Any]) -> None:
    assert json.loads(PAGE.read_text(encoding="utf-8")) == document, "run `make reference`"


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for name, operation in operations(document):
        assert operation["description"], name
        assert set(operation["tags"]) <= tags, name
        assert operation["operationId"].isidentifier(), name


def test_every_operation_tells_its_problems(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        responses = operation["responses"]
        if V1 in name:
            assert operation["security"] == [{"token": []}], name
            assert {"401", "403", "429", "500", "503", "504"} <= responses.keys(), name
        if "{" in name:
            assert "422" in responses, name
            new = ("/webhooks/{webhook}", "/schedules/{schedule}", "/limits/{limit}", "/tenants/{tenant}")
            may_be_new = "/tasks/" in name or name.endswith(new)
            assert "404" in responses or may_be_new, name
        if "requestBody" in operation:
            assert {"400", "408", "413", "422"} <= responses.keys(), name
        if name.startswith(f"GET {V1}") and not name.endswith("/stream"):
            assert "304" in responses, name
        for status, response in responses.items():
            assert response["description"], (name, status)
            if status in ("204", "304"):
                continue
            kind = KINDS.get(name, "application/json")
            wanted = "application/problem+json" if status >= "4" else kind
            assert list(response["content"]) == [wanted], (name, status)


def test_every_request_has_an_example_that_fits(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        if "requestBody" not in operation:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        reference = schema.get("$ref") or schema["anyOf"][0]["$ref"]
        model = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert model["examples"], name
        whole = {"$ref": reference, "components": document["components"]}
        for example in model["examples"]:
            validator_for(whole).validate(example)


async def test_the_server_gives_the_document(http: Http, document: dict[str, Any]) -> None:
    assert ok(await http.get(f"{V1}/openapi.json")) == document


class Options(TypedDict, total=False):
    """Some of those of a spawn."""

    lease_id: UUID | str | None
    delay: timedelta | None
    priority: int | None
    notify: bool | None
    labels: Mapping[str, Any] | None


def test_types_follow_from_the_annotations() -> None:
    made = options_of(Options, "spawn")(Request)
    body = {"lease_id": str(UUID(int=1)), "delay": 1.5, "priority": 3, "notify": True, "labels": {"a": 1}}
    assert made.model_validate(body).model_dump(mode="json") == body
    assert made.model_validate({}).model_dump(exclude_none=True) == {}
    for name, wrong in (("lease_id", "7"), ("delay", -1), ("priority", True), ("notify", 1), ("x", 1)):
        with pytest.raises(ValidationError):
            made.model_validate({name: wrong})


def test_notes_and_examples_are_added() -> None:
    made = options_of(Options, "spawn", notes={"delay": "W."}, examples={"delay": 3})(Request)
    delay = made.model_json_schema()["properties"]["delay"]
    assert delay["description"] == meaning("spawn.delay", "W.")
    assert delay["examples"] == [3]
    with pytest.raises(TypeError, match="has no pace, size, speed"):
        options_of(Options, "spawn", kinds={"speed": int}, notes={"size": "W."}, examples={"pace": 1})


def test_what_has_no_type_in_json_or_no_meaning_is_refused() -> None:
    class Odd(TypedDict):
        raw: bytes | None

    with pytest.raises(TypeError, match=r"raw: .* has no type in JSON"):
        options_of(Odd, "spawn")
    with pytest.raises(KeyError, match="raw"):
        options_of(Odd, "spawn", kinds={"raw": str})


# What the functions refuse is tested on every server: tests/sql/test_bad_input.py.

load_all_checks()
DOCUMENT = schemathesis.openapi.from_dict(create_app(ServerSettings(dsn="")).openapi()).exclude(
    path_regex="/stream$"  # they would not end
)
SECRET = "of an admin"
# GET is there, too: of a workflow of this name. The document has it under the path with {workflow}.
ALSO_A_NAME = ("/api/v1/workflows/check",)


@pytest.fixture(scope="module")
def address(database: str) -> Iterator[str]:
    """A server in a thread of its own, with a queue of the name that the examples use."""
    told = ServerSettings(dsn=database, auth="tokens", rate_limit=None, token_cache=timedelta(minutes=5))
    with pytest.MonkeyPatch.context() as patch, Client(database, pool_size=1) as client:
        # one of the checks is that tokens which nobody knows are refused
        patch.setattr("hwqueue.server.rate_limits._UNKNOWN_TOKENS", parse("100000/second"))
        client.create_queue("renders")
        client.create_token("admin", hashlib.sha256(SECRET.encode()).digest(), "admin")
        with live(create_app(told)) as url:
            yield url


@DOCUMENT.parametrize()
@settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
def test_the_server_keeps_its_word(case: schemathesis.Case[Any], address: str) -> None:
    # an empty list is nothing in a URL, and so nothing that could be refused
    assume([] not in (case.query or {}).values())
    if _is_long((case.query or {}).get("wait")):
        case.query["wait"] = 0.1  # nothing ends while it waits
    case.call_and_validate(
        base_url=address,
        headers={"Authorization": f"Bearer {SECRET}"},
        excluded_checks=[
            # rules that go over several members are the database's: what fits may still be refused
            positive_data_acceptance,
            *([allow_header_conformance] if case.path in ALSO_A_NAME else ()),
        ],
    )


def _is_long(wait: Any) -> bool:
    with suppress(TypeError, ValueError):
        return float(wait) > 1  # numbers come as text, too
    return False
