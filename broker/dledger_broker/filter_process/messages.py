"""The message in the form in which a class filter sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger_remoting.compression import decompress
from dledger_remoting.errors import BodyError
from dledger_remoting.properties import KEYS, TAGS, parse_properties
from dledger_remoting.record import MessageRecord


class FilteredMessage(NamedTuple):
    """A stored message. Times are in ms since 1970.

    `body` is decompressed, or the stored bytes if they cannot be decompressed. `properties` includes the properties of
    the protocol.
    """

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
    """Return the message in a record.

    Everybody who may send to a topic can store a body that does not decompress. The filter then sees the stored bytes
    and decides.
    """
    properties = parse_properties(record.properties)
    try:
        body = decompress(record.body, record.sys_flag)
    except BodyError:
        body = record.body
    return FilteredMessage(
        record.topic,
        body,
        properties,
        properties.get(TAGS),
        properties.get(KEYS),
        record.queue_id,
        record.queue_offset,
        record.born_timestamp,
        record.store_timestamp,
        record.reconsume_times,
    )
