"""Search for messages by key: a word of their KEYS, or their unique key. It may wait for the disk."""

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_broker.kernel.lookup import Lookup
from dledger_broker.views.keysearch import KeySearch
from dledger_remoting.errors import ServerError
from dledger_remoting.properties import KEYS, UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord

MAX_LOOKED_AT: Final = 16_384
"""Maximum number of records that a search reads.

Somebody may send many messages whose keys share the hash of another key, to hide the messages with that key.
"""

_KEYS: Final = KEYS.encode()
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class QueryResult(NamedTuple):
    """Records with a key, newest first, with the highest store time and position among them."""

    records: list[bytes]
    last_update_timestamp: int
    last_update_position: int


class KeyQueries:
    """Search in all messages applied on this replica, including messages that the key index does not have yet."""

    def __init__(self, keys: KeySearch, lookup: Lookup) -> None:
        self._keys = keys
        self._lookup = lookup

    async def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        max_bytes: int,
        unique_only: bool = False,
    ) -> QueryResult:
        """Return at most `max_count` messages of a topic with a key, newest first.

        Their records have at most `max_bytes` together, unless the result has a single record. With `unique_only` the
        key is the unique key. The time range counts in whole seconds. Raises `ServerError` if more than `MAX_LOOKED_AT`
        records would have to be read, and the errors of `Lookup`.
        """
        wanted = key.encode()
        records: list[bytes] = []
        size = 0
        last_timestamp = last_position = 0
        positions = await self._keys.candidates(topic, wanted, MAX_LOOKED_AT + 1, begin_ms, end_ms)
        for number, position in enumerate(positions, 1):
            if number > MAX_LOOKED_AT:
                raise ServerError(
                    f"{MAX_LOOKED_AT} messages have the hash of the key {key!r} of {topic}, and there are more: ask "
                    "for a shorter time (beginTimestamp, endTimestamp)"
                )
            await self._keys.leave_turn(number)
            found = await self._lookup.record_at(position)
            if found is None or found[1].topic != topic or not _has_key(found[1], wanted, unique_only=unique_only):
                continue
            if not await self._lookup.is_listed(found[1]):
                continue
            size += len(found[0])
            if records and size > max_bytes:
                break
            records.append(found[0])
            last_timestamp = max(last_timestamp, found[1].store_timestamp)
            last_position = max(last_position, position)
            if len(records) >= max_count:
                break
        return QueryResult(records, last_timestamp, last_position)


def _has_key(record: MessageRecord, key: bytes, *, unique_only: bool) -> bool:
    if find_property(record.properties, _UNIQUE_KEY) == key:
        return True
    words = find_property(record.properties, _KEYS) if not unique_only else None
    return words is not None and key in words.split(b" ")
