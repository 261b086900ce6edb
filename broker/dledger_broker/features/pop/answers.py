"""Answers to pops: the messages, and the texts from which clients make their check points."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_broker.features.pop.choosing import Taken
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
    taken: Sequence[Taken], pop_time_ms: int, invisible_ms: int, rest: int, *, is_ordered: bool
) -> dict[str, str]:
    """The ext fields of an answer with messages."""
    places = [(each.source.retry, each.source.queue_id, each.row.offsets) for each in taken]
    counts = [(each.source.retry, each.source.queue_id, each.attempt - 1) for each in taken if each.attempt > 1]
    return encode_ext(
        PopResponseHeader(
            pop_time_ms,
            invisible_ms,
            revive_queue_of(is_ordered=is_ordered),
            rest,
            start_offset_info((retry, queue_id, offsets[0]) for retry, queue_id, offsets in places),
            message_offset_info(places),
            order_count_info(counts) if counts else None,
        )
    )


def nothing_ext(now_ms: int, invisible_ms: int, rest: int, *, is_ordered: bool) -> dict[str, str]:
    """The ext fields of an answer without messages."""
    return encode_ext(PopResponseHeader(now_ms, invisible_ms, revive_queue_of(is_ordered=is_ordered), rest))


def found_body(
    taken: Sequence[Taken], topic: str, broker_name: str, pop_time_ms: int, invisible_ms: int, *, is_ordered: bool
) -> bytes:
    """The messages; those of retry topics with the topic that is popped, and their check points."""
    records: list[bytes] = []
    for source, row, found, _ in taken:
        if source.retry is Retry.NONE:
            records += found
            continue
        for offset, record in zip(row.offsets, found, strict=True):
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
