"""Spans from spawn to the end of the handler, linked by the lease's headers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from hwqueue import App, tracing
from hwqueue.client import AsyncClient, Client
from hwqueue.types import LeaseSpec, LeaseState, QueuePolicy, WorkflowRun
from hwqueue.worker import outcome
from tests.e2e.worker_app import app as worker_app
from tests.e2e.worker_support import AT_ONCE, QUEUE, ended, until, worker
from tests.unit.test_worker_heartbeat import claim

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from hwqueue import tracing
from hwqueue.client._spawn import with_headers
from hwqueue.worker import outcome
with tracing.spawning("q", "t") as headers, tracing.handling(None) as note:
    note(outcome.failure("Refused", "no"))
assert headers == {}
assert with_headers({"priority": 1}, headers) == {"priority": 1}
"""


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(retry=AT_ONCE)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What has ended so far."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # a provider can be set once in a process
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def of_kind(spans: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    """The spans of a kind, in the order they ended."""
    return [span for span in spans.get_finished_spans() if span.kind is kind]


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it is linked to."""
    return [link.context.span_id for link in span.links]


def own_id(span: ReadableSpan) -> int:
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id


@pytest.mark.parametrize("task", ["add", "add-sync"])
async def test_a_run_is_linked_to_its_spawn(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter, task: str
) -> None:
    spawned = await client.spawn_lease(QUEUE, task, {"a": 1, "b": 2}, headers={"mine": 1})
    async with worker(dsn):
        lease = await ended(client, spawned.lease_id)
    [producer], [consumer] = of_kind(spans, SpanKind.PRODUCER), of_kind(spans, SpanKind.CONSUMER)
    assert lease.headers is not None
    assert lease.headers["mine"] == 1
    assert lease.headers["traceparent"].split("-")[2] == f"{own_id(producer):016x}"
    assert linked(consumer) == [own_id(producer)]
    assert consumer.parent is None
    assert (producer.name, consumer.name) == (f"spawn {task}", f"process {task}")
    assert consumer.attributes is not None
    assert consumer.attributes["messaging.message.id"] == str(spawned.lease_id)
    assert consumer.attributes["hwqueue.outcome"] == "complete"
    assert consumer.status.status_code is StatusCode.UNSET


async def test_every_attempt_is_a_span_and_failures_are_errors(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter
) -> None:
    spawned = await client.spawn_lease(QUEUE, "flaky")
    async with worker(dsn):
        assert (await ended(client, spawned.lease_id)).state is LeaseState.COMPLETED
    runs = of_kind(spans, SpanKind.CONSUMER)
    assert [run.attributes and run.attributes["hwqueue.attempt"] for run in runs] == [1, 2, 3]
    codes = [run.status.status_code for run in runs]
    assert codes == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert runs[0].attributes is not None
    assert runs[0].attributes["error.type"] == "ValueError"


def test_a_batch_is_one_span(dsn: str, spans: InMemorySpanExporter) -> None:
    with Client(dsn) as client:
        client.create_queue(QUEUE)
        first, second, third = client.spawn_leases(
            QUEUE,
            [
                LeaseSpec(task="a"),
                {"task": "b", "options": {"headers": {"x": "y"}}},
                {"task": "c", "options": {"headers": {"traceparent": OWN}}},
            ],
        )
        leases = [client.get_lease(lease.lease_id) for lease in (first, second, third)]
    [producer] = of_kind(spans, SpanKind.PRODUCER)
    headers = [lease.headers or {} for lease in leases]
    assert [sorted(given) for given in headers] == [["traceparent"], ["traceparent", "x"], ["traceparent"]]
    assert f"{own_id(producer):016x}" in headers[0]["traceparent"]
    assert headers[2]["traceparent"] == OWN


async def test_steps_are_linked_to_the_submission_of_their_run(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter
) -> None:
    """Each step's lease has the run's traceparent; its span names the run and the step."""
    params = {"a": 1, "b": 2}
    steps = [
        {"name": "one", "task": "add", "params": params},
        {"name": "two", "task": "add", "params": params, "after": ["one"]},
    ]
    spec = {"name": "sums", "queue": QUEUE, "steps": steps}
    await client.define_workflow(spec)
    run = await client.submit_workflow("sums", headers={"mine": 1})
    adhoc = await client.submit_spec(spec, headers={"traceparent": OWN})
    async with worker(dsn):
        found = await client.wait_for_run(run.run_id, timeout=timedelta(seconds=60))
        await client.wait_for_run(adhoc.run_id, timeout=timedelta(seconds=60))
    first, second = of_kind(spans, SpanKind.PRODUCER)
    assert (first.name, second.name) == ("submit sums", "submit sums")
    assert found.headers["mine"] == 1
    assert found.headers["traceparent"].split("-")[2] == f"{own_id(first):016x}"
    assert (await client.get_workflow_run(adhoc.run_id)).headers == {"traceparent": OWN}
    consumers = [
        (span.attributes or {}, linked(span))
        for span in of_kind(spans, SpanKind.CONSUMER)
        if (span.attributes or {})["hwqueue.run_id"] == str(run.run_id)
    ]
    assert [about["hwqueue.step"] for about, _ in consumers] == ["one", "two"]
    assert {about["hwqueue.workflow"] for about, _ in consumers} == {"sums"}
    assert [links[0] for _, links in consumers] == [own_id(first)] * 2


def of_step(spans: InMemorySpanExporter, step: str) -> list[ReadableSpan]:
    """The spans of the attempts of a step, in the order they ended."""
    consumers = of_kind(spans, SpanKind.CONSUMER)
    return [span for span in consumers if (span.attributes or {})["hwqueue.step"] == step]


async def run_through(
    client: AsyncClient, dsn: str, steps: list[dict[str, Any]], of: App = worker_app
) -> WorkflowRun:
    """Submit a run of these steps, and work until it has ended."""
    spec = {"name": "linked", "queue": QUEUE, "steps": steps}
    run = await client.submit_spec(spec)
    async with worker(dsn, of):
        return await client.wait_for_run(run.run_id, timeout=timedelta(seconds=60))


async def test_steps_are_linked_to_the_attempts_that_ended_their_parents(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter
) -> None:
    """Not to those that failed before, nor to steps further up."""
    sums = {"task": "add", "params": {"a": 1, "b": 2}}
    await run_through(
        client,
        dsn,
        [
            {"name": "first", **sums},
            {"name": "left", "task": "flaky", "after": ["first"]},
            {"name": "right", "task": "add-sync", "params": sums["params"], "after": ["first"]},
            {"name": "join", **sums, "after": ["left", "right"]},
            {"name": "last", **sums, "after": ["join"]},
        ],
    )
    [submission] = of_kind(spans, SpanKind.PRODUCER)
    [first], [right] = of_step(spans, "first"), of_step(spans, "right")
    *failed, left = of_step(spans, "left")
    [join], [last] = of_step(spans, "join"), of_step(spans, "last")
    assert len(failed) == 2
    expected = {first: [], left: [first], right: [first], join: [left, right], last: [join]}
    for span, parents in expected.items():
        links = set(linked(span)) - {own_id(submission)}
        assert links == {own_id(parent) for parent in parents}, span.name
    contexts = [link.context.trace_id for link in join.links[1:]]
    assert left.context is not None
    assert left.context.trace_id in contexts


async def test_a_handler_that_returns_nothing_is_linked_to_as_well(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter
) -> None:
    """Completions without a result are settled in another way."""
    app = App()

    @app.task("quiet", queue=QUEUE)
    async def quiet() -> None:
        """Do nothing."""

    quietly = {"task": "quiet"}
    await run_through(
        client, dsn, [{"name": "one"} | quietly, {"name": "two", "after": ["one"]} | quietly], app
    )
    [submission] = of_kind(spans, SpanKind.PRODUCER)
    [one], [two] = of_step(spans, "one"), of_step(spans, "two")
    assert linked(two) == [own_id(submission), own_id(one)]


async def test_a_run_is_a_span_of_its_submission_from_there_to_its_end(
    client: AsyncClient, dsn: str, spans: InMemorySpanExporter
) -> None:
    """One of the workers sends it, once; a run that failed is an error."""
    spec = {"name": "whole", "queue": QUEUE, "steps": [{"name": "a", "task": "flaky"}]}
    good = await client.submit_spec(spec)
    spec["steps"] = [{"name": "a", "task": "flaky", "options": {"max_attempts": 1}}]
    bad = await client.submit_spec(spec)
    quick = timedelta(seconds=0.1)
    async with worker(dsn, reap_interval=quick), worker(dsn, name="two", reap_interval=quick):
        for run in (good, bad):
            await client.wait_for_run(run.run_id, timeout=timedelta(seconds=60))
        await until(lambda: len(of_kind(spans, SpanKind.INTERNAL)) == 2)
    submissions = {span.context.span_id: span for span in of_kind(spans, SpanKind.PRODUCER)}
    for run, code in ((good, StatusCode.UNSET), (bad, StatusCode.ERROR)):
        found = await client.get_workflow_run(run.run_id)
        [span] = [
            span
            for span in of_kind(spans, SpanKind.INTERNAL)
            if (span.attributes or {})["hwqueue.run_id"] == str(run.run_id)
        ]
        assert span.name == "run whole"
        assert span.attributes is not None
        assert span.attributes["hwqueue.outcome"] == found.state
        assert span.status.status_code is code
        assert span.parent is not None
        assert span.parent.span_id in submissions
        assert span.context.trace_id == span.parent.trace_id
        assert found.finished_at is not None
        assert span.start_time == micros(found.submitted_at)
        assert span.end_time == micros(found.finished_at)
    assert await client.take_ended_runs() == []


def micros(at: datetime) -> int:
    """Nanoseconds since 1970, as spans have them."""
    return round(at.timestamp() * 1_000_000) * 1000


def test_without_a_provider_or_the_extra_nothing_is_sent(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(dsn) as client:
        client.create_queue(QUEUE)
        lease = client.spawn_lease(QUEUE, "a")
        assert client.get_lease(lease.lease_id).headers is None
    monkeypatch.setattr(trace, "get_tracer", None)  # to call it would be an error
    with tracing.handling(claim("add", 1)) as note:
        note(outcome.failure("Refused", "no"))
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
