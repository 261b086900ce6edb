"""Copies of messages that are delivered again, and the form in which a pop gets them."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger_broker.features.retries.records import sent_back
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.pop import CheckPoint
from dledger_remoting.properties import FIRST_POP_TIME, POP_CHECK_POINT, find_property
from dledger_remoting.record import MAX_PROPERTIES_BYTES, MessageRecord, decode_record, encode_record

RETRY_QUEUE: Final = 0
"""Where copies stand in a retry topic, which has no other queue."""


def copy_of(record: MessageRecord, topic: str, pop_time_ms: int) -> NewRecord:
    """The message as it goes to a retry topic, or to the dead letters: delivered once more than before.

    One whose properties have no room for what is added goes with its topic changed.
    """
    copy = sent_back(record, topic, RETRY_QUEUE, None)
    first = find_property(record.properties, FIRST_POP_TIME.encode())
    properties = with_property(
        copy.properties, FIRST_POP_TIME, first.decode(errors="replace") if first else str(pop_time_ms)
    )
    if len(properties) > MAX_PROPERTIES_BYTES:
        properties = bytes(record.properties)
    return msgspec.structs.replace(copy, properties=properties)


def as_popped(data: bytes, topic: str, point: CheckPoint) -> bytes:
    """A copy as its consumer gets it: in the topic that it pops, with its check point. One that has no room for that
    stays as it is, and its client makes the check point.
    """
    record = decode_record(data)
    properties = with_property(record.properties, POP_CHECK_POINT, point.text)
    if len(properties) > MAX_PROPERTIES_BYTES:
        return data
    return encode_record(msgspec.structs.replace(record, topic=topic, properties=properties))


def with_property(properties: bytes, name: str, value: str) -> bytes:
    """A property more, which is the last one and so the one that counts."""
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + f"{name}\x01{value}\x02".encode()
