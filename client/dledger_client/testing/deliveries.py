"""Deliveries without a cluster: a message as its consumer would receive it, for tests of handlers.

Encoder, decoder and filters are those of real sends and consumers. So an argument that a send refuses is refused here,
and a filter selects what it selects at a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord

from ..arguments import check
from ..cluster.surroundings import wall_ms
from ..errors import InvalidArgumentError
from ..messages import Message, MessageQueue, ReceivedMessage, Settlement, received_message
from ..sending.outgoing import OutgoingEncoder, validate_destination
from ..subscriptions import ClassFilter, Filter, Sql, subscription

BROKER_GROUP: Final = "no-cluster"
"""Name of the broker group in the queues of deliveries."""

_HOST: Final = HostAddress("127.0.0.1", 10911)
_ENCODER: Final = OutgoingEncoder()


def delivered(
    topic: str,
    message: Message | bytes,
    *,
    queue_offset: int = 0,
    reconsume_times: int = 0,
    settle: Callable[[ReceivedMessage[object], Settlement], None] | None = None,
) -> ReceivedMessage:
    """Return the message that a consumer of `topic` receives after a send of `message`.

    `settle` is called when the message is acknowledged, given back or rejected. A delay is in the properties, and
    nothing waits for it. Raises `InvalidArgumentError` where a send does.
    """
    check("message", message, bytes | Message)
    validate_destination(topic)
    sent = _ENCODER.encode(topic, message if isinstance(message, Message) else Message(message))
    record = MessageRecord(
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        physical_offset=queue_offset,
        body=sent.body,
        properties=sent.properties.encode(),
        sys_flag=sent.sys_flag,
        born_timestamp=sent.born_timestamp_ms,
        born_host=_HOST,
        store_timestamp=wall_ms(),
        store_host=_HOST,
        reconsume_times=reconsume_times,
    )
    return received_message(record, MessageQueue(topic, BROKER_GROUP, 0), settle)


def is_wanted(message: ReceivedMessage[object], wanted: Filter) -> bool:
    """Return whether a consumer with the filter `wanted` gets the message.

    Raises `InvalidArgumentError` for an invalid filter and for a `ClassFilter`, whose code only brokers have.
    """
    subscription(message.topic, wanted, 0)
    if isinstance(wanted, ClassFilter):
        raise InvalidArgumentError(f"{wanted!r}: only a broker has the code of the class")
    if isinstance(wanted, Sql):
        return SqlFilter.parse(wanted.expression).matches(message.properties)
    return TagFilter.parse(wanted).matches_tag(message.tags)
