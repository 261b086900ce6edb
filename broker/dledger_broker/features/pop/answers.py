"""Answers to pops: the messages, and the texts from which clients build their check points."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_broker.features.pop.choosing import QueueBatch
from dledger_broker.features.pop.copies import as_popped
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
