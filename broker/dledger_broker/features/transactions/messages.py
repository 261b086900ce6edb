"""Messages of a transaction: the half that a producer sends, and the message that its commit stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.hosts import pack_host
from dledger_remoting.properties import (
    CLUSTER,
    DELAY,
    NAME_END,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    START_DELIVER_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
    VALUE_END,
    find_property,
    without_broker_owned,
)
from dledger_remoting.record import (
    KEPT_SYS_FLAGS,
    MAX_PROPERTIES_BYTES,
    SYS_HOST_MASK,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    MessageRecord,
)
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC

SPARE_BYTES: Final = 1 << 10
"""Number of bytes of a half's properties kept free for what the broker adds when it stores the message again."""

_DELAYS: Final = frozenset(
    name.encode() for name in (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
)
"""Properties that ask for a delay. A transaction is never delayed, as with Apache's client."""


def half_properties(sent: bytes, group: str, unique_key: str, cluster: str, topic: str, queue_id: int) -> bytes:
    """Return the properties of a half: the client's properties without delays, then the broker's.

    Raises `MessageIllegal` if they leave less than `SPARE_BYTES` free.
    """
    pairs = without_broker_owned(sent).split(b"\x02")
    kept = [pair for pair in pairs if pair and pair.partition(b"\x01")[0] not in _DELAYS]
    added = {CLUSTER: cluster, REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
    if not find_property(sent, PRODUCER_GROUP.encode()):
        added[PRODUCER_GROUP] = group
    if not find_property(sent, UNIQUE_KEY.encode()):
        added[UNIQUE_KEY] = unique_key
    properties = b"".join(pair + b"\x02" for pair in kept) + _encoded(added)
    if len(properties) > MAX_PROPERTIES_BYTES - SPARE_BYTES:
        raise MessageIllegal(
            f"the properties of a transaction's message have {len(properties)} bytes with what the broker adds, the "
            f"limit is {MAX_PROPERTIES_BYTES - SPARE_BYTES}"
        )
    return properties


def real_target(record: MessageRecord) -> tuple[str, int]:
    """Return the topic and queue for which a half is meant."""
    topic = find_property(record.properties, REAL_TOPIC.encode()) or b""
    queue_id = find_property(record.properties, REAL_QUEUE_ID.encode()) or b"0"
    return topic.decode(errors="replace"), int(queue_id)


def committed(record: MessageRecord, topic: TopicState) -> NewRecord:
    """Return the message that a commit stores. If its queue is gone, another queue that consumers read is chosen."""
    name, queue_id = real_target(record)
    if queue_id >= topic.queue_count:
        queue_id %= max(1, topic.config.read_queue_nums)
    return _copy(record, name, queue_id, SYS_TRANSACTION_COMMIT, record.physical_offset)


def undecided(record: MessageRecord) -> NewRecord:
    """Return the copy of a half that is kept aside because no producer has decided its outcome."""
    return _copy(record, CHECK_MAX_TIME_TOPIC, 0, 0, record.physical_offset)


def opened_again(record: MessageRecord) -> NewRecord:
    """Return a half made of a copy that was kept aside."""
    return _copy(record, HALF_TOPIC, 0, 0, 0)


def _copy(record: MessageRecord, topic: str, queue_id: int, transaction_flag: int, half_position: int) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag & ~(SYS_TRANSACTION_MASK | SYS_HOST_MASK) & KEPT_SYS_FLAGS | transaction_flag,
        born_ms=record.born_timestamp,
        born_host=pack_host(record.born_host),
        reconsume_times=record.reconsume_times,
        prepared_position=half_position,
    )


def _encoded(properties: Mapping[str, str]) -> bytes:
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items()).encode()
