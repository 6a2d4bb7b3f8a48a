"""The OpenAPI document: what FastAPI makes of the routes, and what they have in common."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from hwqueue.server.problems import MEDIA_TYPE, Problem

DESCRIPTION = """\
Spawn leases, look at them, and steer queues and nodes. Everything is what the SQL functions do.

Integers of 64 bits are strings, times RFC 3339 with an offset, spans seconds. Errors are problem
details (RFC 9457) with the SQLSTATE of the queue as `code`, the path of what was refused as `field`
and what to do as `hint`. A lease of another tenant than the token's is 404.\
"""
TAGS: list[dict[str, Any]] = [
    {"name": "auth", "description": "Who one is."},
    {"name": "leases", "description": "Spawn work, look at it, cancel it, run it again."},
    {"name": "queues", "description": "Look at queues, make, set and stop them."},
    {"name": "tasks", "description": "Options that the leases of a task have by default."},
    {"name": "workflows", "description": "Steps that come after each other: define, submit."},
    {"name": "runs", "description": "Runs of workflows: look at them, cancel, retry."},
    {"name": "gangs", "description": "Leases that start together or not at all."},
    {"name": "everywhere", "description": "Tasks that run on every node that suits them."},
    {"name": "nodes", "description": "Who may run work, and taking machines out of service."},
    {"name": "placement", "description": "Which nodes could run what, and why not."},
    {"name": "planner", "description": "What room on GPUs is worth, and how much of it is lost."},
    {"name": "views", "description": "Counts by class, queue and node."},
    {"name": "events", "description": "What happened, and who did it."},
    {"name": "webhooks", "description": "Which events are sent to which receivers."},
    {"name": "schedules", "description": "What is spawned at which times."},
    {"name": "limits", "description": "How many leases run at once or start in a time."},
    {"name": "tenants", "description": "Whose leases run first, and which logins call for them."},
    {"name": "workers", "description": "What workers without a login of the database do for their nodes."},
    {"name": "health", "description": "For probes."},
]

_COMMON = {
    "401": "No token, or one that lets nobody in.",
    "403": "The role lacks the scope, or it is about other tenants.",
    "422": "Something in the request was refused: `field` says what.",
    "429": "Too many requests; the header Retry-After says when to come back.",
    "500": "The server failed.",
    "503": "The database is not there just now, or busy.",
    "504": "The database took too long.",
}
_WITH_BODY = {
    "400": "The body cannot be read.",
    "408": "The body does not arrive in time.",
    "413": "The body is too large.",
}
_OPEN = ("/healthz", "/readyz")
_TAG = {
    "description": "Of the content; with it as `If-None-Match` the answer is 304 while it fits.",
    "schema": {"type": "string"},
}


def install(app: FastAPI) -> None:
    """Let the app describe itself in full; the document is made once."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]


def document(app: FastAPI) -> dict[str, Any]:
    """The document as JSON."""
    made = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        license_info=app.license_info,
        tags=app.openapi_tags,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}), Problem=problem)
    for path, item in made["paths"].items():
        for method, operation in item.items():
            _add_problems(operation, path)
            if method == "get" and path not in _OPEN:
                _add_tag(operation)
    return made


def _add_tag(operation: dict[str, Any]) -> None:
    """Describe the conditional GET: ETag, If-None-Match and 304."""
    responses = operation["responses"]
    if "application/json" in responses["200"]["content"]:
        headers = {"ETag": _TAG}
        responses["200"]["headers"] = headers
        responses["304"] = {"description": "`If-None-Match` has its tag.", "headers": headers}
        operation["responses"] = dict(sorted(responses.items()))


def _add_problems(operation: dict[str, Any], path: str) -> None:
    """Give an operation the errors that all have, and each error its body."""
    responses = operation["responses"]
    responses.pop("422", None)
    added = {} if path in _OPEN else dict(_COMMON)
    if "requestBody" in operation:
        added |= _WITH_BODY
    for status, description in added.items():
        responses.setdefault(status, {"description": description})
    for status, response in responses.items():
        if status >= "4":
            content = {"schema": {"$ref": "#/components/schemas/Problem"}}
            response["content"] = {MEDIA_TYPE: content}
    operation["responses"] = dict(sorted(responses.items()))
