"""OpenTelemetry for FastStream applications: a middleware with the attributes of this broker.

broker = DledgerBroker(middlewares=[DledgerTelemetryMiddleware()])

It makes FastStream's spans and metrics for publications and handlers. The context of a trace travels in the property
`traceparent`. Without `opentelemetry-sdk`, import of this module says what to install.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.semconv.trace import SpanAttributes
    from opentelemetry.trace import TracerProvider
except ModuleNotFoundError as error:
    raise ImportError(f"{error}: install faststream with its extra otel") from None

from faststream import PublishCommand, StreamMessage
from faststream.opentelemetry import TelemetryMiddleware, TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME

from .message import Batch, Raw, topic_of
from .response import DledgerPublishCommand

SYSTEM: Final = "rocketmq"
"""Name of the messaging system in the semantic conventions: the protocol is RocketMQ's."""


class _Settings(TelemetrySettingsProvider[Any, DledgerPublishCommand]):
    """Attributes of the spans of messages and batches."""

    messaging_system = SYSTEM

    def get_publish_attrs_from_cmd(self, cmd: PublishCommand) -> dict[str, Any]:
        """Return the attributes of a publication."""
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_DESTINATION_NAME: cmd.destination,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: cmd.correlation_id,
        }
        if isinstance(cmd, DledgerPublishCommand):
            key, tags, ordering_key = cmd.sending.key, cmd.sending.tags, cmd.sending.ordering_key
            attributes |= _known(
                {
                    SpanAttributes.MESSAGING_ROCKETMQ_MESSAGE_KEYS: [key]
                    if isinstance(key, str)
                    else key and list(key),
                    SpanAttributes.MESSAGING_ROCKETMQ_MESSAGE_TAG: tags,
                    SpanAttributes.MESSAGING_ROCKETMQ_MESSAGE_GROUP: ordering_key,
                }
            )
        return attributes

    def get_publish_destination_name(self, cmd: PublishCommand) -> str:
        """Return the topic of a publication."""
        return cmd.destination

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """Return the attributes of a message or batch that is handled."""
        raw: Raw | Batch = msg.raw_message
        bodies = [message.body for message in raw] if isinstance(raw, tuple) else [raw.body]
        attributes: dict[str, Any] = {
            SpanAttributes.MESSAGING_SYSTEM: SYSTEM,
            SpanAttributes.MESSAGING_MESSAGE_ID: msg.message_id,
            SpanAttributes.MESSAGING_MESSAGE_CONVERSATION_ID: msg.correlation_id,
            SpanAttributes.MESSAGING_MESSAGE_PAYLOAD_SIZE_BYTES: sum(map(len, bodies)),
            MESSAGING_DESTINATION_PUBLISH_NAME: topic_of(raw),
        }
        if isinstance(raw, tuple):
            attributes[SpanAttributes.MESSAGING_BATCH_MESSAGE_COUNT] = len(raw)
        return attributes

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """Return the topic of a message or batch."""
        return topic_of(msg.raw_message)


class DledgerTelemetryMiddleware(TelemetryMiddleware[DledgerPublishCommand]):
    """Makes FastStream's spans and metrics. Without providers, those that the application has set are used."""

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=_settings_of,
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )


def _settings_of(_message: Raw | Batch | None) -> TelemetrySettingsProvider[Any, DledgerPublishCommand]:
    return _Settings()


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
