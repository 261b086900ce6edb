"""Answers to pops: messages, their copies for redelivery, and the texts from which clients build check points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dledger_broker.features.pop.choosing import QueueBatch
from dledger_broker.features.retries.records import sent_back
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.headers import encode_ext
from dledger_remoting.headers_pop import PopResponseHeader
from dledger_remoting.pop import (
    CheckPoint,
    Retry,
    message_offset_info,
    order_count_info,
    revive_queue_of,
    start_offset_info,
)
from dledger_remoting.properties import FIRST_POP_TIME, POP_CHECK_POINT, find_property
from dledger_remoting.record import MAX_PROPERTIES_BYTES, MessageRecord, decode_record, encode_record

RETRY_QUEUE: Final = 0
"""Queue id of the copies in a retry topic, which has no other queue."""


def copy_of(
    record: MessageRecord, topic: str, pop_time_ms: int, *, counts: bool = True, reason: str | None = None
) -> NewRecord:
    """Return the copy of a message for a retry or dead-letter topic.

    If the delivery `counts`, the copy has a higher reconsume count. `reason` says why the delivery failed. If its
    properties have no room for the first pop time, they stay as they are.
    """
    copy = sent_back(record, topic, RETRY_QUEUE, None, reason)
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


FOUND = "FOUND"


def found_ext(
    batches: Sequence[QueueBatch], pop_time_ms: int, invisible_ms: int, remaining: int, *, is_ordered: bool
) -> dict[str, str]:
    """Return the ext fields of an answer with messages."""
    places = [(batch.source.retry, batch.source.queue_id, batch.row.offsets) for batch in batches]
    redelivered = [batch for batch in batches if any(batch.counts)]
    lowest = [(batch.source.retry, batch.source.queue_id, min(batch.counts)) for batch in redelivered]
    others = [
        (batch.source.retry, batch.source.queue_id, offset, count)
        for batch in redelivered
        for offset, count in zip(batch.row.offsets, batch.counts, strict=True)
        if count > min(batch.counts)
    ]
    return encode_ext(
        PopResponseHeader(
            pop_time_ms,
            invisible_ms,
            revive_queue_of(is_ordered=is_ordered),
            remaining,
            start_offset_info((retry, queue_id, offsets[0]) for retry, queue_id, offsets in places),
            message_offset_info(places),
            order_count_info(lowest, others) if redelivered else None,
        )
    )


def nothing_ext(now_ms: int, invisible_ms: int, remaining: int, *, is_ordered: bool) -> dict[str, str]:
    """Return the ext fields of an answer without messages."""
    return encode_ext(PopResponseHeader(now_ms, invisible_ms, revive_queue_of(is_ordered=is_ordered), remaining))


def found_body(
    batches: Sequence[QueueBatch],
    topic: str,
    broker_name: str,
    pop_time_ms: int,
    invisible_ms: int,
    *,
    is_ordered: bool,
) -> bytes:
    """Return the messages. Those of retry topics carry the topic that is popped, and their check points."""
    records: list[bytes] = []
    for source, row, batch_records, *_ in batches:
        if source.retry is Retry.NONE:
            records += batch_records
            continue
        for offset, record in zip(row.offsets, batch_records, strict=True):
            point = CheckPoint(
                start_offset=row.offsets[0],
                pop_time_ms=pop_time_ms,
                invisible_ms=invisible_ms,
                is_ordered=is_ordered,
                retry=source.retry,
                broker_name=broker_name,
                queue_id=source.queue_id,
                queue_offset=offset,
            )
            records.append(as_popped(record, topic, point))
    return b"".join(records)
