"""Headers of queries: codes 12, 29, 30, 31, 32, 33."""

from __future__ import annotations

from typing import Final

import msgspec

from .integers import Int32, Int64

UNIQUE_KEY_QUERY_FIELD: Final = "_UNIQUE_KEY_QUERY"
"""Ext field beside `QueryMessageHeader`. The value `true` asks for a search by unique key."""


class QueueHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names one queue: asks for its lowest offset (31) or the store time of its first message (32)."""

    topic: str
    queue_id: Int32


class MaxOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the offset that a queue's next message will get (30)."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class SearchOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the first offset stored at or after `timestamp` in ms (29).

    `boundary_type` is LOWER (default) or UPPER.
    """

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class TimestampResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 32: a store time in ms, -1 if there is none."""

    timestamp: Int64


class QueryConsumeQueueHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for units of a consume queue (321), and for a group's subscription to its topic."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ViewMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for one record by its physical offset (33)."""

    offset: Int64
    topic: str | None = None


class QueryMessageHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for records with a key, stored between two times in ms (12)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Answer to 12: the last store time and position that the index holds."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64
