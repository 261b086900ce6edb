"""Records of an instrumented client, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dledger_otel import DledgerInstrumentor
from tests.waiting import until


class Telemetry:
    """Spans and metrics of an instrumented client, in memory."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meter_provider = MeterProvider(metric_readers=[self._reader])
        self.tracer = self.tracer_provider.get_tracer("application")

    @contextmanager
    def recording(self, **options) -> Iterator[None]:
        """Instrument the client for as long as the block runs."""
        instrumentor = DledgerInstrumentor()
        instrumentor.instrument(tracer_provider=self.tracer_provider, meter_provider=self.meter_provider, **options)
        try:
            yield
        finally:
            instrumentor.uninstrument()

    @property
    def spans(self) -> list[ReadableSpan]:
        """All ended spans, in the order of their starts."""
        return sorted(self._spans.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    async def wait_for(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait for a number of ended spans of this name."""
        await until(lambda: len(self.named(name)) >= count)
        return self.named(name)

    def clear(self) -> None:
        self._spans.clear()

    def points(self, name: str) -> list:
        """Return the data points of a metric."""
        data = self._reader.get_metrics_data()
        scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]


def linked(span: ReadableSpan) -> set[int]:
    """Return the ids of the spans to which a span links."""
    return {link.context.span_id for link in span.links}


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is a child of another one, in the same trace."""
    ids = (parent.context.trace_id, parent.context.span_id)
    return span.parent is not None and (span.context.trace_id, span.parent.span_id) == ids


PRODUCER, CONSUMER, CLIENT = SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT
