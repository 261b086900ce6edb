"""Instrumentor of the client: what `opentelemetry-instrument` loads, and programs call to turn recording on and off."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # has no types
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import TracerProvider, get_tracer

from dledger_base.extras import package_version
from dledger_client import InvalidArgumentError, ReceivedMessage, interception

from .conventions import SCHEMA_URL
from .interceptor import TelemetryInterceptor
from .recording import Recorder

CREATE_SPANS_VARIABLE: Final = "OTEL_PYTHON_DLEDGER_CREATE_SPANS"
"""Name of the environment variable that says whether each message of a batch gets a span: `true` or `false`."""

_NAME: Final = "dledger_otel"


class DledgerInstrumentor(BaseInstrumentor):  # type: ignore[misc] # the same
    """Records the calls of all clients of this process as spans and metrics, from `instrument` to `uninstrument`.

        DledgerInstrumentor().instrument()

    Keyword arguments of `instrument`, all optional: `tracer_provider` and `meter_provider` are used instead of the
    global ones. `create_spans=False` leaves out the spans of single messages of a batch, which then carry the context
    of the batch. Without this argument the environment variable `OTEL_PYTHON_DLEDGER_CREATE_SPANS` says so.

    Clients that were made before are recorded, too. Raises `InvalidArgumentError` if another interceptor of the client
    is installed, or if an argument or the variable has another value.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no requirement: this package comes with the client that it records."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:  # noqa: ANN401 - as the base class has it
        tracer_provider: TracerProvider | None = kwargs.get("tracer_provider")
        meter_provider: MeterProvider | None = kwargs.get("meter_provider")
        creates = kwargs.get("create_spans")
        if creates is None:
            creates = _creates_by_environment()
        elif not isinstance(creates, bool):
            raise InvalidArgumentError(f"create_spans={creates!r}: a bool is expected")
        version = package_version()
        tracer = get_tracer(_NAME, version, tracer_provider, SCHEMA_URL)
        meter = get_meter(_NAME, version, meter_provider, SCHEMA_URL)
        interception.install(TelemetryInterceptor(Recorder(tracer, meter), creates=creates))

    def _uninstrument(self, **_kwargs: Any) -> None:  # noqa: ANN401 - as the base class has it
        interception.uninstall()


def processing(message: ReceivedMessage[object], group: str) -> AbstractContextManager[None]:
    """Return a context for work on a message that a consumer of `group` has received, polled or iterated over.

        async for message in consumer:
            with processing(message, "workers"):
                await work(message.body)

    The work is a span of its kind, with a link to the message. An error of the work is the span's error. A consumer
    with a handler needs none of this. Nothing is recorded while the client is not instrumented.
    """
    around = interception.interceptor
    return around.processing(message, group) if isinstance(around, TelemetryInterceptor) else nullcontext()


def _creates_by_environment() -> bool:
    value = os.environ.get(CREATE_SPANS_VARIABLE, "true").strip().lower()
    if value not in {"true", "false"}:
        raise InvalidArgumentError(f"{CREATE_SPANS_VARIABLE}={value!r}: true or false is expected")
    return value == "true"
