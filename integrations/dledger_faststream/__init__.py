"""FastStream broker: subscribers and publishers over the client.

`DledgerBroker` is to FastStream what its brokers for Kafka and NATS are. Start with `broker` and `subscriber`. Below
them, `sources` has the consumers; `testing` is a broker without a cluster. Only `internals` imports FastStream's
internals.
Nothing here is loaded by `import dledger_client`.
"""

from __future__ import annotations

from . import internals  # noqa: F401 -- first: refuses another version of FastStream
from .annotations import DledgerBatchMessage, DledgerMessage
from .broker import DledgerBroker
from .message import DledgerReply
from .response import DledgerPublishCommand, DledgerResponse
from .router import DledgerPublisher, DledgerRoute, DledgerRouter
from .subscriptions import Mode
from .testing import TestDledgerBroker

__all__ = [
    "DledgerBatchMessage",
    "DledgerBroker",
    "DledgerMessage",
    "DledgerPublishCommand",
    "DledgerPublisher",
    "DledgerReply",
    "DledgerResponse",
    "DledgerRoute",
    "DledgerRouter",
    "Mode",
    "TestDledgerBroker",
]
