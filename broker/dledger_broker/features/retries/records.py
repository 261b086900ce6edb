"""Records of redelivered messages and of dead letters.

The message itself does not change. Two properties name its origin: RETRY_TOPIC is the topic to which it was sent, and
ORIGIN_MESSAGE_ID its id there, for all redeliveries. A third one is the reason of the last failure, if it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_broker.features.delay.asked import RequestedDelay
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.hosts import pack_host
from dledger_remoting.ids import offset_message_id
from dledger_remoting.integers import MAX_INT32
from dledger_remoting.properties import (
    DELAY,
    FAILURE_REASON,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    START_DELIVER_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    failure_reason,
    find_property,
    without_broker_owned,
)
from dledger_remoting.record import KEPT_SYS_FLAGS, MAX_PROPERTIES_BYTES, MessageRecord

_OF_ONE_DELIVERY: Final = frozenset(
    name.encode()
    for name in (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME, FAILURE_REASON)
)


def sent_back(
    record: MessageRecord, topic: str, queue_id: int, delay: RequestedDelay | None, reason: str | None = None
) -> NewRecord:
    """Return the message of a record for a retry or dead-letter topic. With `delay` None, the message has no delay.

    `reason` says why its delivery failed. If its properties have no room for the additions, they are left out, the
    reason first.
    """
    properties = bytes(record.properties)
    added: dict[str, str] = {}
    if not find_property(properties, RETRY_TOPIC.encode()):
        added[RETRY_TOPIC] = record.topic
    if not find_property(properties, ORIGIN_MESSAGE_ID.encode()):
        added[ORIGIN_MESSAGE_ID] = offset_message_id(record.store_host, record.physical_offset)
    if delay is not None:
        added[delay.name] = str(delay.value)
    bare = _without_earlier_delivery(properties)
    with_reason = {**added, FAILURE_REASON: failure_reason(reason)} if reason else added
    candidates = (_with_properties(bare, with_reason), _with_properties(bare, added), bare)
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=bytes(record.body),
        properties=next((one for one in candidates if len(one) <= MAX_PROPERTIES_BYTES), bare),
        flag=record.flag,
        sys_flag=record.sys_flag & KEPT_SYS_FLAGS,
        born_ms=record.born_timestamp,
        born_host=pack_host(record.born_host),
        reconsume_times=min(record.reconsume_times + 1, MAX_INT32),
    )


def topic_of(record: MessageRecord) -> str:
    """Return the topic to which the message of a record was originally sent.

    A client can set the property within a batch, so it may be invalid text.
    """
    found = find_property(bytes(record.properties), RETRY_TOPIC.encode())
    return found.decode(errors="replace") if found else record.topic


def _without_earlier_delivery(properties: bytes) -> bytes:
    """Return the properties without those of an earlier delivery: its waiting time is decided anew, its failure too."""
    pairs = without_broker_owned(properties).split(b"\x02")
    return b"\x02".join(pair for pair in pairs if pair.partition(b"\x01")[0] not in _OF_ONE_DELIVERY)


def _with_properties(properties: bytes, added: Mapping[str, str]) -> bytes:
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + "".join(f"{name}\x01{value}\x02" for name, value in added.items()).encode()
