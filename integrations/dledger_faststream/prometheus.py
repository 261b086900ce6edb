"""Prometheus metrics for FastStream applications: a middleware that knows the messages of this broker.

registry = CollectorRegistry()
broker = DledgerBroker(middlewares=[DledgerPrometheusMiddleware(registry=registry)])

The metrics are FastStream's, with the label `broker="rocketmq"` and the topic as destination. Without
`prometheus-client`, import of this module says what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

try:
    from prometheus_client import CollectorRegistry
except ModuleNotFoundError as error:
    raise ImportError(f"{error}: install faststream with its extra prometheus") from None

from faststream import PublishCommand, StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware

from .internals import EMPTY
from .message import Batch, Raw, topic_of
from .response import DledgerPublishCommand

SYSTEM: Final = "rocketmq"
"""Value of the label `broker`: the protocol is RocketMQ's."""


class _Settings(MetricsSettingsProvider[Any, DledgerPublishCommand]):
    """Labels and sizes of messages and batches."""

    messaging_system = SYSTEM

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """Return the topic, the size in bytes and the number of the messages that are handled."""
        raw: Raw | Batch = msg.raw_message
        bodies = [message.body for message in raw] if isinstance(raw, tuple) else [raw.body]
        return {
            "destination_name": topic_of(raw),
            "message_size": sum(map(len, bodies)),
            "messages_count": len(bodies),
        }

    def get_publish_destination_name_from_cmd(self, cmd: PublishCommand) -> str:
        """Return the topic of a publication."""
        return cmd.destination


class DledgerPrometheusMiddleware(PrometheusMiddleware[Any, DledgerPublishCommand]):
    """Counts and times messages in `registry`, with the arguments that this middleware has in all brokers."""

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=_settings_of,
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )


def _settings_of(_message: Raw | Batch | None) -> MetricsSettingsProvider[Any, DledgerPublishCommand]:
    return _Settings()
