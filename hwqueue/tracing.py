"""OpenTelemetry spans: where a lease is spawned or a run submitted, around handlers, and of runs.

They are linked by the W3C trace context, which travels in the lease's `headers` (`traceparent`,
`tracestate`); a run hands its own to the leases of its steps, with those of the attempts that ended
their parents (`parent_traceparents`). Without the extra `otel`, or without a tracer provider,
nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    _PROPAGATOR = None
else:
    _PROPAGATOR = TraceContextTextMapPropagator()

if TYPE_CHECKING:
    from datetime import datetime

    from hwqueue.types import Claim, EndedRun

__all__ = ["UNTRACED", "handling", "is_on", "run_ended", "spawning", "submitting"]


class _Ended(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> Mapping[str, Any] | None: ...


Note = Callable[[_Ended | None], str | None]
"""Takes how a handler ended: `complete`, `fail` or `release`, and its error; None: it stopped.

Returns the `traceparent` of its span where the steps after it are to be linked to it.
"""

UNTRACED: AbstractContextManager[Note] = nullcontext(lambda _how: None)
"""What `handling` returns while nothing is traced."""


@contextmanager
def spawning(queue: str, task: str | None) -> Iterator[dict[str, str]]:
    """A producer span around a spawn.

    Args:
        task: None: a batch.

    Yields: Headers for its leases; empty when nothing is traced.
    """
    attributes = {"messaging.destination.name": str(queue)}
    if task is not None:
        attributes["hwqueue.task"] = str(task)
    with _sending(f"spawn {task or queue}", attributes) as headers:
        yield headers


@contextmanager
def submitting(workflow: str | None) -> Iterator[dict[str, str]]:
    """A producer span around the submission of a run.

    Yields: Headers for the run, which its steps' leases inherit; empty when nothing is traced.
    """
    name = str(workflow)
    with _sending(f"submit {name}", {"hwqueue.workflow": name}) as headers:
        yield headers


@contextmanager
def _sending(name: str, attributes: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A producer span, and the headers that name it."""
    headers: dict[str, str] = {}
    if _PROPAGATOR is None:
        yield headers
        return
    about = {"messaging.system": "hwqueue", "messaging.operation.type": "send", **attributes}
    with trace.get_tracer("hwqueue").start_as_current_span(
        name, kind=trace.SpanKind.PRODUCER, attributes=about
    ):
        _PROPAGATOR.inject(headers)
        yield headers


def is_on() -> bool:
    """Whether there is a tracer provider: without one no span is recorded."""
    return _PROPAGATOR is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def run_ended(run: EndedRun) -> None:
    """Send the span of a run, from its submission to its end.

    It is a child of the span of the submission, which decides whether it is sampled.
    """
    if _PROPAGATOR is None:
        return
    span = trace.get_tracer("hwqueue").start_span(
        f"run {run.workflow}",
        _PROPAGATOR.extract({"traceparent": run.traceparent}),
        attributes={
            "messaging.system": "hwqueue",
            "hwqueue.workflow": run.workflow,
            "hwqueue.run_id": str(run.run_id),
            "hwqueue.attempt": run.attempt,
            "hwqueue.outcome": str(run.state),
        },
        start_time=_nanoseconds(run.submitted_at),
    )
    if run.state == "failed":
        span.set_attribute("error.type", run.reason or "unknown")
        span.set_status(trace.StatusCode.ERROR, run.reason)
    span.end(_nanoseconds(run.finished_at))


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000


def handling(claim: Claim) -> AbstractContextManager[Note]:
    """A consumer span around the handler of a claim, linked to the span that spawned its lease.

    That of a step is linked to the submission of its run and to the attempts that ended its
    parents, and names the run, the step and the item. It begins a trace of its own: a lease may run
    hours after its spawn, and more than once.

    Yields: To be called with how the handler ended.
    """
    return _span(claim, _PROPAGATOR) if _PROPAGATOR is not None and is_on() else UNTRACED


@contextmanager
def _span(claim: Claim, propagator: TraceContextTextMapPropagator) -> Iterator[Note]:
    headers = claim.headers or {}
    about = _step_of(headers)
    with trace.get_tracer("hwqueue").start_as_current_span(
        f"process {claim.task_name}",
        kind=trace.SpanKind.CONSUMER,
        links=list(_links(headers, propagator)),
        attributes={
            "messaging.system": "hwqueue",
            "messaging.operation.type": "process",
            "messaging.destination.name": claim.queue,
            "messaging.message.id": str(claim.lease_id),
            "hwqueue.task": claim.task_name,
            "hwqueue.attempt": claim.attempt,
            **about,
        },
    ) as span:

        def note(how: _Ended | None) -> str | None:
            span.set_attribute("hwqueue.outcome", "stopped" if how is None else how.kind)
            if how is not None and how.kind == "fail":
                described = how.error or {}
                span.set_attribute("error.type", str(described.get("type", "unknown")))
                span.set_status(trace.StatusCode.ERROR, str(described.get("message", "")))
            is_step = bool(about) and "hwqueue.item" not in about  # items are too many to link to
            is_sampled = span.get_span_context().trace_flags.sampled
            if not (is_step and is_sampled and how and how.kind in ("complete", "fail")):
                return None
            carrier: dict[str, str] = {}
            propagator.inject(carrier, trace.set_span_in_context(span))
            return carrier.get("traceparent")

        yield note


def _links(headers: Mapping[str, Any], propagator: TraceContextTextMapPropagator) -> Iterator[trace.Link]:
    """What a span is linked to: the spawn or the submission, then the parents of a step."""
    parents = headers.get("parent_traceparents")
    carriers: list[Mapping[str, Any]] = [headers]
    if isinstance(parents, list):
        carriers += ({"traceparent": parent} for parent in parents)
    for carrier in carriers:
        texts = {name: value for name, value in carrier.items() if isinstance(value, str)}
        context = trace.get_current_span(propagator.extract(texts)).get_span_context()
        if context.is_valid:
            yield trace.Link(context)


def _step_of(headers: Mapping[str, Any]) -> dict[str, str | int]:
    """What a span says of the step whose lease has these headers; nothing for other leases."""
    if "workflow_run_id" not in headers:
        return {}
    named = {"workflow": "workflow", "run_id": "workflow_run_id", "step": "step", "item": "item"}
    return {
        f"hwqueue.{key}": headers[name]
        for key, name in named.items()
        if isinstance(headers.get(name), str | int)
    }
