"""Messages that Java's client sent below OpenTelemetry's agent, as they were recorded, go on with their traces here.

`tests/conformance/test_apache_opentelemetry.py` records them, and tests both directions with Java itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger_client import Producer, PushConsumer
from dledger_remoting.properties import format_properties, parse_properties
from tests.client.client_fakes import FakeCluster
from tests.integrations.otel.telemetry import Telemetry, linked

RECORDED = json.loads((Path(__file__).parent / "java_messages.json").read_text())


@pytest.mark.parametrize("release", sorted(RECORDED))
async def test_a_message_of_java_is_processed_in_its_trace(fakes: FakeCluster, telemetry: Telemetry, release: str):
    properties = RECORDED[release]["send"]
    fakes.group.store("T", 0, b"hello", format_properties(properties).encode())

    async def handler(_message) -> None:
        """Handle a message."""

    async with PushConsumer(fakes.namesrv, "CG", "T", handler):
        (process,) = await telemetry.wait_for("process T")
    _, trace_id, span_id, _ = properties["traceparent"].split("-")
    assert process.context.trace_id == int(trace_id, 16)
    assert process.parent.span_id == int(span_id, 16)
    assert linked(process) == {int(span_id, 16)}
    told = {"messaging.message.id": properties["UNIQ_KEY"], "messaging.rocketmq.message.tag": "a"}
    assert told.items() <= dict(process.attributes).items()


async def test_a_message_of_ours_has_its_context_where_java_looks_for_it(fakes: FakeCluster, telemetry: Telemetry):
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"x", key="k1", tags="a")
    (record,) = fakes.group.queues["T", 0]
    ours = parse_properties(record.properties)
    for recorded in RECORDED.values():
        of_producer = recorded["send"].keys() - {"CLUSTER", "WAIT"}  # of the broker, and of Java's client
        assert ours.keys() == of_producer
        assert len(ours["traceparent"]) == len(recorded["send"]["traceparent"])
