"""Measure of OpenTelemetry's instrumentation: the processor time of the client for each message, off and on, in turns.

    .venv/bin/python -m bench.telemetry [--messages N] [--rounds N] [--only off]

A cluster of one node stores and delivers. Each round sends messages of 1 KB, 64 at a time, and then in batches of 32,
and has a handler consume the single ones. Only the processor time of the client's process counts: the node is another
process. The modes:

- off: the client is not instrumented
- not sampled: instrumented, with metrics, and a sampler that records no span
- recorded: the same, and every span goes through a batch processor to an exporter that drops it

`--only off` needs no OpenTelemetry, so that another version of the client can be measured beside this one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from dledger_client import Message, Producer, PushConsumer, ReceivedMessage
from dledger_client.testing import LocalCluster

TOPIC: Final = "telemetry"
BODY: Final = b"x" * 1024
AT_A_TIME: Final = 64
BATCH: Final = 32
MODES: Final = ("off", "not sampled", "recorded")


@contextmanager
def instrumented(mode: str) -> Iterator[None]:
    """Instrument the client for a mode."""
    if mode == "off":
        yield
        return
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    from dledger_otel import DledgerInstrumentor

    class Dropped(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

    tracer_provider = TracerProvider(sampler=ALWAYS_ON if mode == "recorded" else ALWAYS_OFF)
    tracer_provider.add_span_processor(BatchSpanProcessor(Dropped()))
    meter_provider = MeterProvider(metric_readers=[InMemoryMetricReader()])
    instrumentor = DledgerInstrumentor()
    instrumentor.instrument(tracer_provider=tracer_provider, meter_provider=meter_provider)
    try:
        yield
    finally:
        instrumentor.uninstrument()
        tracer_provider.shutdown()
        meter_provider.shutdown()


async def send(namesrv: str, count: int) -> float:
    """Send messages one by one, many at a time. Returns the processor time of a message in us."""
    async with Producer(namesrv) as producer:
        await producer.send(TOPIC, BODY)
        left = iter(range(count - 1))

        async def work() -> None:
            for _ in left:
                await producer.send(TOPIC, BODY)

        began = time.process_time()
        await asyncio.gather(*(work() for _ in range(AT_A_TIME)))
        return (time.process_time() - began) / count * 1e6


async def send_batches(namesrv: str, count: int) -> float:
    """Send messages in batches, one after another. Returns the processor time of a message in us."""
    async with Producer(namesrv) as producer:
        await producer.send_batch(f"{TOPIC}-batches", [BODY])
        began = time.process_time()
        for _ in range(count // BATCH):
            await producer.send_batch(f"{TOPIC}-batches", [Message(BODY)] * BATCH)
        return (time.process_time() - began) / count * 1e6


async def consume(namesrv: str, group: str, count: int) -> float:
    """Have a handler consume messages. Returns the processor time of a message in us."""
    handled = 0
    done = asyncio.Event()

    async def handler(_message: ReceivedMessage) -> None:
        nonlocal handled
        handled += 1
        if handled >= count:
            done.set()

    async with PushConsumer(namesrv, group, TOPIC, handler):
        began = time.process_time()
        await done.wait()
        return (time.process_time() - began) / count * 1e6


@click.command()
@click.option("--messages", default=4_000, show_default=True, help="messages of a round")
@click.option("--rounds", default=7, show_default=True, help="rounds of each mode")
@click.option("--only", type=click.Choice(MODES), help="measure this mode alone")
def main(messages: int, rounds: int, only: str | None) -> None:
    """Print the median of all rounds, and their range, in us of processor time for each message."""
    modes = MODES if only is None else (only,)
    found: dict[tuple[str, str], list[float]] = {}
    with LocalCluster(nodes=1) as cluster:
        for number in range(rounds + 1):  # the first one is not counted: it meets a cold interpreter
            for mode in modes:
                group = f"group-{number}-{mode.replace(' ', '-')}"
                with instrumented(mode):
                    times = {
                        "send": asyncio.run(send(cluster.namesrv, messages)),
                        "send in batches": asyncio.run(send_batches(cluster.namesrv, messages)),
                        "handle": asyncio.run(consume(cluster.namesrv, group, messages)),
                    }
                for work, cost in times.items() if number else ():
                    found.setdefault((work, mode), []).append(cost)
    for (work, mode), costs in found.items():
        print(f"{work:16} {mode:12} {statistics.median(costs):6.1f} us  ({min(costs):.1f} to {max(costs):.1f})")


if __name__ == "__main__":
    main()
