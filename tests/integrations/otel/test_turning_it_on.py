"""Instrumentation is found by OpenTelemetry's command, ends when it is told to, and says what it lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_client import Interceptor, InvalidArgumentError, Producer, interception
from dledger_otel import DledgerInstrumentor, processing
from dledger_remoting.properties import parse_properties
from tests.client.client_fakes import FakeCluster
from tests.integrations.otel.telemetry import Telemetry

COMMAND = Path(sys.executable).with_name("opentelemetry-instrument")

PROGRAM = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from dledger_client import ClientError, Producer, interception

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.name + "\\n")))
trace.set_tracer_provider(provider)

async def main():
    async with Producer("127.0.0.1:1", timeout=0.05) as producer:
        try:
            await producer.send("orders", b"x")
        except ClientError:
            print("failed")

asyncio.run(main())
print(interception.interceptor)
"""


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=True
    )


def test_the_command_of_opentelemetry_finds_the_instrumentation():
    lines = run(COMMAND, sys.executable, "-c", PROGRAM).stdout.splitlines()
    assert lines[:2] == ["send orders", "failed"]
    assert "TelemetryInterceptor" in lines[2]


def test_it_can_be_left_out_as_other_instrumentations_can():
    done = run(COMMAND, sys.executable, "-c", PROGRAM, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="dledger")
    assert done.stdout.splitlines() == ["failed", "None"]


async def test_a_client_is_recorded_from_instrument_to_uninstrument(fakes: FakeCluster):
    telemetry = Telemetry()
    async with Producer(fakes.namesrv) as producer:
        await producer.send("T", b"before")
        with telemetry.recording():
            await producer.send("T", b"meanwhile")
        await producer.send("T", b"after")
        with telemetry.recording():
            await producer.send("T", b"again")
    carrying = ["traceparent" in parse_properties(record.properties) for record in fakes.group.queues["T", 0]]
    assert carrying == [False, True, False, True]
    assert len(telemetry.named("send T")) == 2
    assert interception.interceptor is None


async def test_processing_does_nothing_while_nothing_is_recorded(fakes: FakeCluster):
    with processing(object(), "CG"), pytest.raises(LookupError):
        raise LookupError


def test_another_interceptor_is_not_replaced():
    other = Interceptor()
    interception.install(other)
    try:
        with pytest.raises(InvalidArgumentError, match="uninstall it first"):
            DledgerInstrumentor().instrument()
        assert interception.interceptor is other
    finally:
        interception.uninstall()
    assert not DledgerInstrumentor().is_instrumented_by_opentelemetry


@pytest.mark.parametrize("value", [" FALSE ", "true"])
async def test_the_environment_may_switch_create_spans_off(
    fakes: FakeCluster, monkeypatch: pytest.MonkeyPatch, value: str
):
    monkeypatch.setenv("OTEL_PYTHON_DLEDGER_CREATE_SPANS", value)
    telemetry = Telemetry()
    with telemetry.recording():
        async with Producer(fakes.namesrv) as producer:
            await producer.send_batch("T", [b"x", b"y"])
    assert len(telemetry.named("create T")) == (2 if value == "true" else 0)


@pytest.mark.parametrize(("options", "variable"), [({"create_spans": 1}, "true"), ({}, "perhaps")])
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, options: dict[str, object], variable: str):
    monkeypatch.setenv("OTEL_PYTHON_DLEDGER_CREATE_SPANS", variable)
    with pytest.raises(InvalidArgumentError, match=r"create_spans=1|CREATE_SPANS='perhaps': true or false"):
        DledgerInstrumentor().instrument(**options)
    assert interception.interceptor is None


def test_a_missing_extra_is_named_with_the_command_that_installs_it():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try: import dledger_otel\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    (line,) = run(sys.executable, "-c", code).stdout.splitlines()
    assert line.startswith("dledger_otel needs OpenTelemetry (")
    assert "-m pip install" in line
    assert "opentelemetry-instrumentation" in line


def test_the_client_loads_nothing_of_opentelemetry():
    code = "import dledger_client, sys; print([name for name in sys.modules if 'otel' in name or 'opentel' in name])"
    assert run(sys.executable, "-c", code).stdout == "[]\n"
