"""A trace goes on from Apache's Java client into ours and back, if both are instrumented.

Java's client runs unmodified below OpenTelemetry's agent. With `RECORD=yes` the messages that it sends are written to
`tests/integrations/otel/java_messages.json`, which tests without Java read.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from cluster_checks import create_topic, wait_until
from conftest import HERE, INSTALL_SECONDS, installed_jars, starting
from stock_clients import JAVA_CLIENTS, StockClient

from dledger_client import ReceivedMessage, SyncConsumer, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_otel import processing
from tests.integrations.otel.telemetry import Telemetry, linked

AGENT = "2.20.1"
RECORDED = Path(__file__).parents[1] / "integrations/otel/java_messages.json"
PATIENCE_S = 60.0
_NUMBERS = count()
_SPAN = re.compile(r"'(?P<name>[^']+)' : (?P<trace>[0-9a-f]{32}) (?P<span>[0-9a-f]{16}) (?P<kind>[A-Z]+)")


@pytest.fixture(scope="session", params=JAVA_CLIENTS)
def release(request: pytest.FixtureRequest) -> str:
    return request.param


MakeInstrumented = Callable[[str], StockClient]


@pytest.fixture
def instrumented(
    request: pytest.FixtureRequest, release: str, tmp_path: Path
) -> Iterator[Callable[[str], StockClient]]:
    """Return a function that starts Java's client below the agent, which writes its spans to standard error."""
    folder = installed_jars(request, release, release.rpartition("-")[2], HERE / "java" / "pom.xml", "Driver")
    cache = request.config.cache
    assert cache is not None
    agent_folder = cache.mkdir("opentelemetry-javaagent")
    agent = agent_folder / f"opentelemetry-javaagent-{AGENT}.jar"
    if not agent.exists():
        artifact = f"-Dartifact=io.opentelemetry.javaagent:opentelemetry-javaagent:{AGENT}"
        command = ["mvn", "-q", "-B", "-ntp", "dependency:copy", artifact, f"-DoutputDirectory={agent_folder}"]
        subprocess.run(command, cwd=agent_folder, check=True, timeout=INSTALL_SECONDS)
    otel = {"traces.exporter": "logging", "metrics.exporter": "none", "logs.exporter": "none"}
    options = [
        f"-javaagent:{agent}",
        f"-Duser.home={tmp_path}",
        *(f"-Dotel.{key}={value}" for key, value in otel.items()),
    ]
    jars = f"{folder}/lib/*{os.pathsep}{folder}/classes"
    with starting(tmp_path) as start:
        yield lambda namesrv: start(["java", "-Xmx256m", *options, "-cp", jars, "Driver", namesrv])


def java_spans(client: StockClient) -> list[dict[str, str]]:
    """Return the spans that the agent has written."""
    return [found.groupdict() for found in _SPAN.finditer(client._errors_file.read_text(errors="replace"))]


def taken(cluster: LocalCluster, topic: str, number: int) -> list[ReceivedMessage]:
    """Take messages with our client, each processed in a span."""
    messages: list[ReceivedMessage] = []
    with SyncConsumer(cluster.namesrv, f"{topic}-readers", topic) as consumer:
        for message in consumer:
            with processing(message, f"{topic}-readers"):
                message.ack()
            messages.append(message)
            if len(messages) == number:
                return messages
    raise AssertionError("the consumer was closed")


def record(release: str, calls: dict[str, ReceivedMessage]) -> None:
    """Write what Java sent beside what other releases sent."""
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    known[f"{release}, agent {AGENT}"] = {name: dict(message.properties) for name, message in calls.items()}
    RECORDED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def test_a_trace_begun_in_java_goes_on_here(one_group: LocalCluster, instrumented: MakeInstrumented, release: str):
    topic = f"FromJava{next(_NUMBERS)}"
    create_topic(one_group, topic)
    client = instrumented(one_group.namesrv)
    telemetry = Telemetry()
    client.call("send", topic=topic, body="hello", tag="a", keys="k1")
    with telemetry.recording():
        (message,) = taken(one_group, topic, 1)
    assert wait_until(lambda: any(span["kind"] == "PRODUCER" for span in java_spans(client)), PATIENCE_S)
    (sent,) = (span for span in java_spans(client) if span["kind"] == "PRODUCER")
    process = telemetry.one(f"process {topic}")
    assert (f"{process.context.trace_id:032x}", f"{process.parent.span_id:016x}") == (sent["trace"], sent["span"])
    assert linked(process) == {int(sent["span"], 16)}
    if os.environ.get("RECORD") == "yes":
        record(release, {"send": message})


def test_a_trace_begun_here_goes_on_in_java(one_group: LocalCluster, instrumented: MakeInstrumented):
    topic = f"ToJava{next(_NUMBERS)}"
    create_topic(one_group, topic)
    client = instrumented(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    telemetry = Telemetry()
    with telemetry.recording(), SyncProducer(one_group.namesrv) as producer:
        producer.send(topic, b"hello")
    client.wait_for(lambda: client.bodies("reader"), "the message", timeout=PATIENCE_S)
    assert wait_until(lambda: any(span["kind"] == "CONSUMER" for span in java_spans(client)), PATIENCE_S)
    (handled,) = (span for span in java_spans(client) if span["kind"] == "CONSUMER")
    assert handled["trace"] == f"{telemetry.one(f'send {topic}').context.trace_id:032x}"
