"""The broker works with FastStream's middlewares for OpenTelemetry and Prometheus."""

from __future__ import annotations

import importlib
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from dledger_faststream.opentelemetry import DledgerTelemetryMiddleware
from dledger_faststream.prometheus import DledgerPrometheusMiddleware


async def test_a_trace_goes_on_in_the_handlers(broker, run, topic, group, seen):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    broker.add_middleware(DledgerTelemetryMiddleware(tracer_provider=provider))

    @broker.subscriber(topic, group=group)
    async def ask(number: int) -> int:
        return number + 1

    @broker.subscriber(f"{topic}-out", group=group + "-out", batch=True)
    async def note(numbers: list[int]):
        seen.append(numbers)

    async with run(broker):
        await broker.publish(1, topic, reply_to=f"{topic}-out", key="k", tags="t", ordering_key="o")
        await seen.come(1)
        reply = await broker.request(2, topic, timeout=20.0)
    assert await reply.decode() == 3
    spans = exporter.get_finished_spans()
    published = next(span for span in spans if span.name == f"{topic} publish")
    assert published.attributes["messaging.system"] == "rocketmq"
    assert published.attributes["messaging.rocketmq.message.tag"] == "t"
    assert published.attributes["messaging.rocketmq.message.keys"] == ("k",)
    assert published.attributes["messaging.rocketmq.message.group"] == "o"
    first = [span for span in spans if span.context.trace_id == published.context.trace_id]
    assert {f"{topic} process", f"{topic}-out publish"} <= {span.name for span in first}
    batch = next(span for span in spans if span.name == f"{topic}-out process")
    assert batch.attributes["messaging.batch.message_count"] == 1
    assert batch.attributes["messaging.destination_publish.name"] == f"{topic}-out"


async def test_metrics_count_messages_by_topic(broker, run, topic, group, seen):
    registry = CollectorRegistry()
    broker.add_middleware(DledgerPrometheusMiddleware(registry=registry))

    @broker.subscriber(topic, group=group, batch=True)
    async def handle(numbers: list[int]):
        seen.extend(numbers)

    async with run(broker):
        await broker.publish_batch(1, 22, topic=topic)
        await seen.come(2)
    labels = {"app_name": "faststream", "broker": "rocketmq"}
    received = {**labels, "handler": topic}
    assert registry.get_sample_value("faststream_received_messages_total", received) == 2
    assert registry.get_sample_value("faststream_received_messages_size_bytes_sum", received) == 3
    published = {**labels, "destination": topic, "status": "success"}
    assert registry.get_sample_value("faststream_published_messages_total", published) == 2


@pytest.mark.parametrize(("name", "extra"), [("opentelemetry", "otel"), ("prometheus", "prometheus")])
def test_a_missing_extra_is_named(name, extra, monkeypatch):
    hidden = {"opentelemetry": "opentelemetry.metrics", "prometheus": "prometheus_client"}[name]
    monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.delitem(sys.modules, f"dledger_faststream.{name}")
    with pytest.raises(ImportError, match=rf"install faststream with its extra {extra}$"):
        importlib.import_module(f"dledger_faststream.{name}")
