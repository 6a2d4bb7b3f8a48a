"""OpenTelemetry spans: one where a lease is spawned or a run submitted, one around each handler.

They are linked by the W3C trace context, which travels in the lease's `headers` (`traceparent`,
`tracestate`); a run hands its own to the leases of its steps. Without the extra `otel`, or without
a tracer provider, nothing happens.
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
    from hwqueue.types import Claim

__all__ = ["handling", "spawning", "submitting"]


class _Ended(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def error(self) -> Mapping[str, Any] | None: ...


Note = Callable[[_Ended | None], None]
"""Takes how a handler ended: `complete`, `fail` or `release`, and its error; None: it stopped."""

_UNTRACED: AbstractContextManager[Note] = nullcontext(lambda _how: None)


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


def handling(claim: Claim) -> AbstractContextManager[Note]:
    """A consumer span around the handler of a claim, linked to the span that spawned its lease.

    That of a step is linked to the submission of its run, and names the run and the step. It begins
    a trace of its own: a lease may run hours after its spawn, and more than once.

    Yields: To be called with how the handler ended.
    """
    # without a provider no span is recorded; to make it takes a tenth of a worker of quick handlers
    if _PROPAGATOR is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return _UNTRACED
    return _span(claim, _PROPAGATOR)


@contextmanager
def _span(claim: Claim, propagator: TraceContextTextMapPropagator) -> Iterator[Note]:
    headers = {k: v for k, v in (claim.headers or {}).items() if isinstance(v, str)}
    spawned = trace.get_current_span(propagator.extract(headers)).get_span_context()
    with trace.get_tracer("hwqueue").start_as_current_span(
        f"process {claim.task_name}",
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(spawned)] if spawned.is_valid else [],
        attributes={
            "messaging.system": "hwqueue",
            "messaging.operation.type": "process",
            "messaging.destination.name": claim.queue,
            "messaging.message.id": str(claim.lease_id),
            "hwqueue.task": claim.task_name,
            "hwqueue.attempt": claim.attempt,
            **_step_of(headers),
        },
    ) as span:

        def note(how: _Ended | None) -> None:
            span.set_attribute("hwqueue.outcome", "stopped" if how is None else how.kind)
            if how is not None and how.kind == "fail":
                described = how.error or {}
                span.set_attribute("error.type", str(described.get("type", "unknown")))
                span.set_status(trace.StatusCode.ERROR, str(described.get("message", "")))

        yield note


def _step_of(headers: Mapping[str, str]) -> dict[str, str]:
    """What a span says of the step whose lease has these headers; nothing for other leases."""
    if "workflow_run_id" not in headers:
        return {}
    named = {"workflow": "workflow", "run_id": "workflow_run_id", "step": "step"}
    return {f"hwqueue.{key}": headers[name] for key, name in named.items() if name in headers}
