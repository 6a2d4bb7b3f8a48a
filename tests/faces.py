"""What the faces of the queue, HTTP and the command line, ask of the client: one call for each thing.

A test of such a face says which call it makes, with what. What the call then does is asked in tests/sql.
"""

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from inspect import getmembers, iscoroutinefunction, isfunction, signature
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import NodeSpec

Json = dict[str, Any]
STEPS = [{"name": "a", "task": "first"}, {"name": "b", "task": "second", "after": "a"}]
WAITS = [{"name": "ok", "kind": "wait", "signal": "approved"}]


class Things(dict[str, str]):
    """What paths and bodies name, made when one does."""

    def __init__(self, sql: Client, queue: str, **others: str) -> None:
        words = {"step": "a", "signal": "approved", "task": "media/film.draw", "login": "hwqueue_tenants"}
        super().__init__(queue=queue, **words, **others)
        self.sql = sql

    def __missing__(self, name: str) -> str:
        self[name] = str(getattr(self, f"_{name}")())
        return self[name]

    def filled(self, value: Any) -> Any:
        """The value with the ids of what is named in it."""
        return json.loads(self.said(json.dumps(value)))

    def said(self, text: str) -> str:
        """The text with the ids of what it names in braces."""
        return re.sub(r"{(\w+)}", lambda found: self[found[1]], text)

    def _lease(self) -> Any:
        return self.sql.spawn_lease(self["queue"], "draw").lease_id

    def _failed(self) -> Any:
        lease = self._lease()
        self._fail()
        return lease

    def _class_id(self) -> Any:
        return self.sql.explain_lease(self["lease"]).class_id

    def _node(self) -> Any:
        node = uuid4()
        self.sql.register_node(node, NodeSpec(name=f"n-{node}", instance_id="1", labels={"gpu": True}))
        return node

    def _gang(self) -> Any:
        return self.sql.spawn_gang(self["queue"], [{"task": "t", "count": 2}])[0].gang_id

    def _everywhere(self) -> Any:
        return self.sql.spawn_everywhere(self["queue"], "agent").everywhere_id

    def _workflow(self) -> Any:
        return self.sql.define_workflow({"name": "flow", "queue": self["queue"], "steps": STEPS}).workflow

    def _run(self, steps: Any = STEPS) -> Any:
        return self.sql.submit_spec({"name": "flow", "queue": self["queue"], "steps": steps}).run_id

    def _waits(self) -> Any:
        return self._run(WAITS)

    def _stopped(self) -> Any:
        run = self._run()
        self._fail()
        return run

    def _webhook(self) -> Any:
        self.sql.set_webhook("pager", "https://hooks.example/")
        self.sql.test_webhook("pager")
        return "pager"

    def _fail(self) -> None:
        node = uuid4()
        epoch = self.sql.register_node(node, NodeSpec(name=f"n-{node}", instance_id="1"))
        [claim] = self.sql.claim_task([self["queue"]], node, epoch)
        self.sql.fail_lease(claim.lease_id, claim.claim_token, error={"type": "Odd"}, retry=False)


def note_calls(client: type, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Json, Any]]:
    """The calls of clients of this kind from now on: what each was given, and what it returned."""
    found: list[tuple[str, Json, Any]] = []

    def keep(name: str, method: Any, args: Any, options: Any, returned: Any) -> Any:
        given = signature(method).bind(*args, **options).arguments
        found.append((f"{name} {given.pop('action', '')}".strip(), given, returned))
        return returned

    def note(name: str, method: Any) -> None:
        async def in_a_loop(*args: Any, **options: Any) -> Any:
            return keep(name, method, args, options, await method(*args, **options))

        def plain(*args: Any, **options: Any) -> Any:
            return keep(name, method, args, options, method(*args, **options))

        monkeypatch.setattr(client, name, in_a_loop if iscoroutinefunction(method) else plain)

    for name, method in getmembers(client, isfunction):
        if not name.startswith("_") and name not in ("open", "close", "acting_as"):
            note(name, method)
    return found


def flat(given: Json, *without: str) -> Json:
    """Arguments as they stand in JSON, but for those that were not given."""
    found = json.loads(json.dumps({key: each for key, each in given.items() if key != "self"}, default=_text))
    for key in ("options", "filter", "wanted"):
        found |= found.pop(key, {})
    if "page_size" in found:
        found["limit"] = found.pop("page_size")
    return {key: each for key, each in found.items() if each is not None and key not in without}


def _text(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: each for key, each in dataclasses.asdict(value).items() if each is not None}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else str(value)
