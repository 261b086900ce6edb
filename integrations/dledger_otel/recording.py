"""Recorder of operations: each gets a span, and a duration in the metrics, with the same attributes and time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import Meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from .conventions import (
    CONSUMED_MESSAGES,
    DURATION_BOUNDARIES_S,
    ERROR_TYPE,
    OPERATION_DURATION,
    OPERATION_TYPE,
    PROCESS_DURATION,
    SENT_MESSAGES,
    Attributes,
    error_type,
    metric_attributes,
    span_name,
)

_SECOND_NS: Final = 1_000_000_000


class Operation:
    """Operation under way. Its `attributes` are those of its metrics, once it has ended."""

    __slots__ = ("attributes", "error", "span", "started_ns", "ticks_ns")

    def __init__(self, span: Span, attributes: Attributes, started_ns: int, ticks_ns: int) -> None:
        self.span = span
        self.attributes = attributes
        self.started_ns = started_ns
        self.ticks_ns = ticks_ns
        self.error: str | None = None

    def fail_with(self, error: BaseException) -> None:
        """Have the operation end with an error."""
        self.span.record_exception(error)
        self.fail(error_type(error), f"{type(error).__name__}: {error}")

    def fail(self, kind: str, description: str) -> None:
        """Have the operation end as failed, with a type of error of few values."""
        self.error = kind
        self.span.set_attribute(ERROR_TYPE, kind)
        self.span.set_status(Status(StatusCode.ERROR, description))


class Recorder:
    """Records operations by a tracer and a meter."""

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._operations = meter.create_histogram(
            OPERATION_DURATION,
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES_S,
        )
        self._processing = meter.create_histogram(
            PROCESS_DURATION,
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES_S,
        )
        self._sent = meter.create_counter(
            SENT_MESSAGES,
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            CONSUMED_MESSAGES,
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )

    def start_span(
        self,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] = (),
        around: Context | None = None,
        *,
        started_ns: int,
    ) -> Span:
        """Start a span in the context `around`, or in the current one. `started_ns` is in ns since 1970."""
        return self._tracer.start_span(span_name(attributes), around, kind, attributes, links, started_ns)

    @contextmanager
    def operation(
        self, kind: SpanKind, attributes: Attributes, links: Sequence[Link] = (), around: Context | None = None
    ) -> Iterator[Operation]:
        """Record the work in the `with` block, in which the operation's span is the current one.

        The rest of the context is that of `around`, None for the current one. An error of the work is the operation's.
        """
        started_ns, ticks_ns = time.time_ns(), time.perf_counter_ns()
        span = self.start_span(kind, attributes, links, around, started_ns=started_ns)
        operation = Operation(span, attributes, started_ns, ticks_ns)
        token = attach(set_span_in_context(span, around))
        try:
            yield operation
        except BaseException as error:
            operation.fail_with(error)
            raise
        finally:
            detach(token)
            self.end(operation)

    def end(self, operation: Operation) -> None:
        """End the span of an operation, and record its duration."""
        elapsed_ns = time.perf_counter_ns() - operation.ticks_ns
        operation.span.end(operation.started_ns + elapsed_ns)
        self.record_duration(operation.attributes, elapsed_ns, operation.error)

    def record_duration(self, attributes: Attributes, elapsed_ns: int, error: str | None) -> None:
        """Record the duration of an operation with these attributes, in the metric of its type."""
        recorded = metric_attributes(attributes)
        if error is not None:
            recorded[ERROR_TYPE] = error
        if attributes[OPERATION_TYPE] == "process":
            self._processing.record(elapsed_ns / _SECOND_NS, recorded)
        else:
            recorded[OPERATION_TYPE] = attributes[OPERATION_TYPE]
            self._operations.record(elapsed_ns / _SECOND_NS, recorded)

    def count_sent(self, attributes: Attributes, count: int, error: str | None = None) -> None:
        """Count messages that were sent, or whose send failed."""
        if count:
            recorded = metric_attributes(attributes)
            self._sent.add(count, recorded if error is None else {**recorded, ERROR_TYPE: error})

    def count_consumed(self, attributes: Attributes, count: int) -> None:
        """Count messages that were handed to the application."""
        if count:
            self._consumed.add(count, metric_attributes(attributes))
