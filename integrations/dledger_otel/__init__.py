"""OpenTelemetry instrumentation of the client: spans, links and metrics of messaging."""
