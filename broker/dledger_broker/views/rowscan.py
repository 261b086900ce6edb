"""Reader of the commands about rows in pieces of the log."""

from __future__ import annotations

from dledger.errors import CorruptionError
from dledger.format import blank_length, iter_commands, parse_entry
from dledger.types import EntryKind
from dledger_broker.views.timerows import RowChanges, RowSource


def scan_changes(data: bytes, position: int, limit: int, source: RowSource) -> tuple[list[RowChanges], int]:
    """Return the row changes of the whole entries in a piece of the log, and the position behind the last of them.

    The piece starts with an entry. Only entries that end at or below `limit` are read. Raises `CorruptionError` if the
    bytes are not entries, or the first entry is not whole.
    """
    changes: list[RowChanges] = []
    offset, end = 0, len(data)
    while offset < end:
        blank = blank_length(data, offset, end)
        if blank is not None:
            return changes, position + offset + blank
        entry = parse_entry(data, offset, end, None)
        if entry is None:
            break
        after = position + offset + entry.size
        if after > limit:
            return changes, position + offset
        if entry.kind == EntryKind.GROUP and entry.channel:
            section = memoryview(data)[offset + entry.size - entry.channel : offset + entry.size]
            for kind, payload in iter_commands(section):
                change = source.decode(kind, payload)
                if change is not None:
                    changes.append(change._replace(end=after))
        offset += entry.size
    if not offset:
        raise CorruptionError(f"no entry at position {position} of the log")
    return changes, position + offset
