"""Records of delayed messages: how they wait, and how they are delivered.

A message waits as an ordinary record in one of RocketMQ's topics for delayed messages. Properties after its own name
the real topic, the real queue and the due time. When the message is due, its record is written again with all
properties in the real queue.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from dledger_broker.features.delay.asked import Due
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.hosts import pack_host
from dledger_remoting.properties import REAL_QUEUE_ID, REAL_TOPIC, TIMER_OUT_MS, find_property
from dledger_remoting.record import KEPT_SYS_FLAGS, MAX_PROPERTIES_BYTES, MessageRecord
from dledger_remoting.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig

DUE_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics in which messages wait."""
FREE_BYTES: Final = 1024
"""Size in bytes of properties that a message must leave free, because the broker writes its record again later."""
_NUMBER_DIGITS: Final = 20


class Real(NamedTuple):
    """Destination of a waiting message, and its due time, as its record says."""

    topic: str
    queue_id: int
    due_ms: int


def due_topic(level: int, levels: int) -> TopicConfig:
    """Return the topic of messages of a level, or of messages that name a time (level 0)."""
    if level:
        return TopicConfig(SCHEDULE_TOPIC, read_queue_nums=levels, write_queue_nums=levels)
    return TopicConfig(TIMER_TOPIC, read_queue_nums=1, write_queue_nums=1)


def waiting(message: NewRecord, due: Due) -> NewRecord:
    """Return a message in its waiting form. Raises `MessageIllegal` if its properties leave too little room."""
    properties = with_facts(message.properties, Real(message.topic, message.queue_id, due.ms))
    limit = MAX_PROPERTIES_BYTES - FREE_BYTES
    if len(properties) > limit:
        raise MessageIllegal(
            f"the properties have {len(properties)} bytes with what the broker adds, the limit of a delayed message "
            f"is {limit}"
        )
    topic, queue_id = (SCHEDULE_TOPIC, due.level - 1) if due.level else (TIMER_TOPIC, 0)
    return msgspec.structs.replace(message, topic=topic, queue_id=queue_id, properties=properties)


def with_facts(properties: bytes, real: Real) -> bytes:
    """Return a message's own properties, followed by its destination and due time."""
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    facts = f"{REAL_TOPIC}\x01{real.topic}\x02{REAL_QUEUE_ID}\x01{real.queue_id}\x02{TIMER_OUT_MS}\x01{real.due_ms}\x02"
    return properties + facts.encode()


def real_of(record: MessageRecord) -> Real | None:
    """Return the destination of the message in a record; None if the record is not that of a waiting message."""
    properties = record.properties
    topic = find_property(properties, REAL_TOPIC.encode())
    numbers = [find_property(properties, name.encode()) for name in (REAL_QUEUE_ID, TIMER_OUT_MS)]
    if record.topic not in DUE_TOPICS or not topic:
        return None
    if any(not text or not text.isdigit() or len(text) > _NUMBER_DIGITS for text in numbers):
        return None
    queue_id, due_ms = (int(text or b"0") for text in numbers)
    return Real(topic.decode(errors="replace"), queue_id, due_ms)


def written_again(record: MessageRecord, topic: str, queue_id: int) -> NewRecord:
    """Return the message of a record as a new record for a queue."""
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=bytes(record.body),
        properties=bytes(record.properties),
        flag=record.flag,
        sys_flag=record.sys_flag & KEPT_SYS_FLAGS,
        born_ms=record.born_timestamp,
        born_host=pack_host(record.born_host),
        reconsume_times=record.reconsume_times,
    )
