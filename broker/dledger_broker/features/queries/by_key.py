"""Search for messages by key: a word of their KEYS, or their unique key.  It may wait for the disk."""

from __future__ import annotations

from typing import Final, NamedTuple

from dledger_broker.kernel.lookup import Lookup
from dledger_broker.views.keysearch import KeySearch
from dledger_remoting.properties import KEYS, UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord

_KEYS: Final = KEYS.encode()
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class QueryResult(NamedTuple):
    """Records with a key, newest first, and up to where messages were looked for."""

    records: list[bytes]
    last_update_timestamp: int
    last_update_position: int


class KeyQueries:
    """Answers from what is applied on this replica, whether the key index has it yet or not."""

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
        """At most `max_count` messages of a topic with a key, newest first.

        Their records have at most `max_bytes` together, unless there is only one.  With `unique_only` the key is the
        unique key.  Whole seconds of the time range count.  Raises what `Lookup` raises.
        """
        wanted = key.encode()
        records: list[bytes] = []
        size = 0
        last_timestamp = last_position = 0
        for position in await self._keys.candidates(topic, wanted, max_count, begin_ms, end_ms):
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
