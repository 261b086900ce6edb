"""The message as a class filter is shown it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger_remoting.compression import decompress
from dledger_remoting.properties import KEYS, TAGS, parse_properties
from dledger_remoting.record import MessageRecord


class FilteredMessage(NamedTuple):
    """A stored message. `body` is decompressed, `properties` has those of the protocol, too; times in ms since 1970."""

    topic: str
    body: bytes
    properties: Mapping[str, str]
    tags: str | None
    keys: str | None
    queue_id: int
    queue_offset: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int


def shown_message(record: MessageRecord) -> FilteredMessage:
    """The message in a record. Raises `BodyError` if its body cannot be decompressed."""
    properties = parse_properties(record.properties)
    return FilteredMessage(
        record.topic,
        decompress(record.body, record.sys_flag),
        properties,
        properties.get(TAGS),
        properties.get(KEYS),
        record.queue_id,
        record.queue_offset,
        record.born_timestamp,
        record.store_timestamp,
        record.reconsume_times,
    )
