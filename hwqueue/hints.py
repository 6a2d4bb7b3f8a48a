"""What to do about an error, in the words of who reads it: Python, the command line or HTTP.

The database's own hints name its functions. `in_python` is for errors that the client raises, and
`of_error` words these for the command line and for HTTP; both are made of the tables here alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from hwqueue.errors import HwqueueError

Face = Literal["python", "cli", "http"]

_API = "/api/v1"

# By SQLSTATE, where what to do depends on more than a function's name; {queue} is one that the
# error names, written as the face writes names.
_BY_CODE: Mapping[str, Mapping[Face, str]] = {
    "QHQ01": {
        "python": "make it: client.create_queue({queue}); in tests: "
        "hwqueue.testing.create_queues(client, app)",
        "cli": "make it: hwqueue queue create {queue}; or list them: hwqueue queue list",
        "http": f'make it: POST {_API}/queues {{{{"queue": "NAME"}}}}, with a token of role admin; '
        f"or list them: GET {_API}/queues",
    },
    "QHQ02": {
        "python": "leave out the policy, or change it: client.set_queue_policy({queue}, ...)",
        "cli": "leave out --policy, or change it: hwqueue queue policy {queue} CHANGES",
        "http": f"leave out the policy, or change it: PATCH {_API}/queues/{{queue}}/policy",
    },
    "QHQ03": {
        "python": "wait until it is, or lose its leases: client.drop_queue({queue}, force=True)",
        "cli": "wait until it is, or lose its leases: hwqueue queue drop {queue} --force",
        "http": f"wait until it is: lists of its leases are at GET {_API}/leases?queue={{queue}}",
    },
    "QHF01": {
        "python": "define it first: Workflow(...).define(client), or client.define_workflow(...)",
        "cli": "define it: hwqueue workflow define FILE; or list them: hwqueue workflow list",
        "http": f"define it: POST {_API}/workflows; or list them: GET {_API}/workflows",
    },
}

# Functions that hints name, as the command line and HTTP have them; {0} is the first argument.
_FUNCTIONS: Mapping[str, Mapping[Face, str]] = {
    "retry_workflow_run": {
        "cli": "hwqueue workflow retry {0}",
        "http": f"POST {_API}/runs/{{0}}/retry",
    },
    "cancel_workflow_run": {
        "cli": "hwqueue workflow cancel {0}",
        "http": f"POST {_API}/runs/{{0}}/cancel",
    },
    "update_steps": {
        "cli": "hwqueue workflow update {0}",
        "http": f"POST {_API}/runs/{{0}}/update",
    },
    "submit_workflow": {"cli": "hwqueue workflow run", "http": f"POST {_API}/workflows/NAME/runs"},
    "spawn_lease": {"cli": "hwqueue lease spawn", "http": f"POST {_API}/leases"},
    "spawn_leases": {"cli": "hwqueue lease spawn", "http": f"POST {_API}/leases/batch"},
    "lease_logs": {"cli": "hwqueue lease logs", "http": f"GET {_API}/leases/ID/logs"},
    "cancel_lease": {"cli": "hwqueue lease cancel", "http": f"POST {_API}/leases/ID/cancel"},
    "register_node": {"cli": "hwqueue worker run", "http": f"POST {_API}/nodes/ID/register"},
    "pending_reasons": {"cli": "hwqueue pending", "http": "hwqueue pending"},
}

_SQL_CALL = re.compile(r"select hwqueue\.(\w+)\(p_\w+ => '([^']*)'(, \.\.\.)?\)")
_CALL = re.compile(r'client\.(\w+)\("([^"]*)"(?:, \.\.\.)?\)')
_NAME = re.compile(rf"\b({'|'.join(_FUNCTIONS)})\b")
_ARGUMENT = re.compile(r"\bp_(?=[a-z])")
_SPAN = re.compile(r"interval '(\d+) (second|minute|hour|day)s?'")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_ARRAY = re.compile(r"array\['([^']*)'\]")


def message_of(error: HwqueueError) -> str:
    """What the function said, its argument called as others than SQL call it: role instead of p_role."""
    field = error.detail.get("field") if isinstance(error.detail, Mapping) else None
    if isinstance(field, str) and field.startswith("p_"):
        return str(error).replace(field, field.removeprefix("p_"))
    return str(error)


def in_python(sqlstate: str, hint: str | None, facts: Mapping[str, Any]) -> str | None:
    """The hint of the database's error for who calls the client."""
    if (own := _of_code(sqlstate, facts, "python")) is not None or hint is None:
        return own
    called = _SQL_CALL.sub(lambda found: f'client.{found[1]}("{found[2]}"{found[3] or ""})', hint)
    return _ARGUMENT.sub("", called)


def of_error(error: HwqueueError, face: Literal["cli", "http"]) -> str | None:
    """The hint of an error that the client has raised, for who reads it on another face."""
    if (own := _of_code(error.sqlstate, error.detail, face)) is not None or error.hint is None:
        return own

    def called(name: str, *arguments: str) -> str:
        return _FUNCTIONS[name][face].format(*arguments)

    hint = error.hint
    if face == "http":  # values as JSON has them
        hint = _SPAN.sub(lambda found: f"{int(found[1]) * _SECONDS[found[2]]}, in seconds", hint)
        hint = _ARRAY.sub(r'["\1"]', hint)
    hint = _CALL.sub(lambda found: called(found[1], found[2]) if found[1] in _FUNCTIONS else found[0], hint)
    return _NAME.sub(
        lambda found: found[0] if "{0}" in _FUNCTIONS[found[0]][face] else called(found[0]), hint
    )


def _of_code(sqlstate: str | None, facts: object, face: Face) -> str | None:
    """The hint of an error of this code; None: it has none, or the queue is not named."""
    hint = _BY_CODE.get(sqlstate or "", {}).get(face)
    queue = facts.get("queue") if isinstance(facts, Mapping) else None
    if hint is None or ("{queue}" in hint and not isinstance(queue, str)):
        return None
    return hint.format(queue=_written(queue or "", face))


def _written(name: str, face: Face) -> str:
    """A name as people write it there."""
    if face == "python":
        return repr(name)
    return shlex.quote(name) if face == "cli" else quote(name, safe="")
