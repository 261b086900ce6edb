"""Copies of messages for redelivery, and the form in which a pop returns them."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_broker.features.retries.records import sent_back
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.pop import CheckPoint
from dledger_remoting.properties import FIRST_POP_TIME, POP_CHECK_POINT, find_property
from dledger_remoting.record import MAX_PROPERTIES_BYTES, MessageRecord, decode_record, encode_record

RETRY_QUEUE: Final = 0
"""Queue id of the copies in a retry topic, which has no other queue."""


def copy_of(record: MessageRecord, topic: str, pop_time_ms: int, *, counts: bool = True) -> NewRecord:
    """Return the copy of a message for a retry or dead-letter topic.

    If the delivery `counts`, the copy has a higher reconsume count. If its properties have no room for the first pop
    time, they stay as they are.
    """
    copy = sent_back(record, topic, RETRY_QUEUE, None)
    first = find_property(record.properties, FIRST_POP_TIME.encode())
    properties = with_property(
        copy.properties, FIRST_POP_TIME, first.decode(errors="replace") if first else str(pop_time_ms)
    )
    if len(properties) > MAX_PROPERTIES_BYTES:
        properties = bytes(record.properties)
    times = copy.reconsume_times if counts else record.reconsume_times
    return msgspec.structs.replace(copy, properties=properties, reconsume_times=times)


def as_popped(data: bytes, topic: str, point: CheckPoint) -> bytes:
    """Return a copy as its consumer gets it: in the topic that the consumer pops, with its check point.

    A copy without room for the check point is returned unchanged, and its client makes the check point.
    """
    record = decode_record(data)
    properties = with_property(record.properties, POP_CHECK_POINT, point.text)
    if len(properties) > MAX_PROPERTIES_BYTES:
        return data
    return encode_record(msgspec.structs.replace(record, topic=topic, properties=properties))


def with_property(properties: bytes, name: str, value: str) -> bytes:
    """Return the properties with another property at the end, where it overrides an earlier property of the same
    name.
    """
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + f"{name}\x01{value}\x02".encode()
