"""OpenTelemetry instrumentation of the client: spans, links and metrics of messaging.

`DledgerInstrumentor().instrument()`, or the command `opentelemetry-instrument`, turns it on. It stands on the client's
interception (`dledger_client.interception`), and changes nothing of the client itself. `interceptor` says which call
becomes which span, `conventions` has the names, `propagation` the context in messages' properties.
"""

from __future__ import annotations

try:
    import opentelemetry.instrumentation  # noqa: F401 - whether it is there
except ModuleNotFoundError as error:
    from dledger_base.extras import install_command

    raise ModuleNotFoundError(
        f"dledger_otel needs OpenTelemetry ({error.name} is not installed): {install_command('otel')}", name=error.name
    ) from error

from .instrumentor import DledgerInstrumentor, processing

__all__ = ["DledgerInstrumentor", "processing"]
