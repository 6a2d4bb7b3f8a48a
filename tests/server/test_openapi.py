"""The OpenAPI document is current and complete, and what the server answers fits it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import validator_for

from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from tests.server.conftest import V1, Http, ok

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
            new = ("/webhooks/{webhook}", "/schedules/{schedule}")
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
