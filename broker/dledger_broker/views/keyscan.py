"""Reads the keys of records for the key index: its work for every message.

Messages of one producer look alike: the same topic, and properties that differ in the unique key alone, of which only
the last characters change.  A record that looks like the one before it costs one unpack, two comparisons and a hash of
eight characters; every other record is read field by field.
"""

from __future__ import annotations

from operator import mul
from struct import Struct, error
from typing import Final

from dledger_broker.views.keyfile import IndexedKey, hash_start, key_hash, powers, sign_free
from dledger_remoting.errors import RecordError
from dledger_remoting.properties import KEYS, UNIQUE_KEY, find_property
from dledger_remoting.record import (
    MAGIC_V1,
    RECORD_HEAD_BYTES,
    SYS_HOST_MASK,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    RecordRef,
    scan_records,
)

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()
_UNIQUE_KEY_MARK: Final = _UNIQUE_KEY + b"\x01"
_KEYS: Final = KEYS.encode()
_KEYS_MARK: Final = _KEYS + b"\x01"
_UNUSUAL: Final = SYS_HOST_MASK | SYS_TRANSACTION_MASK
_HEAD: Final = Struct(">iI20xqi16xq20xi")
"""Size, magic, physical offset, sys flag, store timestamp and body length of a record head with IPv4 hosts."""
_ENDING: Final = 8
"""As many characters at a unique key's end are hashed anew for every record."""
_POWERS: Final = powers(_ENDING)
_SHIFT: Final = pow(31, _ENDING)
_NEVER: Final = -1
"""As many bytes beside its body has no record."""


def record_keys(record: RecordRef) -> list[bytes]:
    """The keys of a record: its unique key and each word of KEYS; none of a transaction's roll-back."""
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return []
    properties = record.properties
    unique = find_property(properties, _UNIQUE_KEY)
    keys = [unique] if unique else []
    if _KEYS_MARK in properties and (words := find_property(properties, _KEYS)):
        keys += [word for word in words.split(b" ") if word and word != unique]
    return keys


def scan_keys(data: bytes, start: int, end: int) -> list[IndexedKey]:
    """The keys of all records in `data[start:end]`, which holds nothing else, in their order.

    Raises `RecordError` at the first record that cannot be read.
    """
    keys: list[IndexedKey] = []
    add = keys.append
    unpack, starts, ends = _HEAD.unpack_from, data.startswith, data.endswith
    beside, lead, lead_bytes, behind, behind_bytes = _NEVER, b"", 0, b"", 0
    topic, known, known_hash = "", b"", 0
    position = start
    try:
        while position < end:
            size, magic, log_position, sys_flag, stored_ms, body_bytes = unpack(data, position)
            record_end = position + size
            body_end = position + RECORD_HEAD_BYTES + body_bytes
            if (
                size - body_bytes == beside
                and magic == MAGIC_V1
                and body_bytes >= 0
                and record_end <= end
                and not sys_flag & _UNUSUAL
                and starts(lead, body_end)
                and ends(behind, body_end, record_end)
            ):
                key = data[body_end + lead_bytes : record_end - behind_bytes]
                if key.isalnum():  # it ends there, and holds no mark of another property
                    beginning = key[:-_ENDING]
                    if beginning != known:
                        known, known_hash = beginning, hash_start(topic, beginning) * _SHIFT & 0xFFFFFFFF
                    code = sign_free(known_hash + sum(map(mul, key[-_ENDING:], _POWERS)))
                    add((code, log_position, stored_ms))
                    position = record_end
                    continue
            record = next(scan_records(data, position, end))
            topic = str(record.topic, "utf-8", "replace")
            for key in record_keys(record):
                add((key_hash(topic, key), record.physical_offset, record.store_timestamp))
            beside, known = _NEVER, b""
            if magic == MAGIC_V1 and not sys_flag & _UNUSUAL:
                place = _only_key(record.properties)
                if place is not None:
                    properties_at = record_end - len(record.properties)
                    lead, behind = data[body_end : properties_at + place[0]], record.properties[place[1] :]
                    beside, lead_bytes, behind_bytes = size - body_bytes, len(lead), len(behind)
            position += record.size
    except error as cause:
        raise RecordError(f"no record at byte {position}: only {end - position} bytes are left") from cause
    return keys


def _only_key(properties: bytes) -> tuple[int, int] | None:
    """Where the unique key's value begins and ends, if it is the one key and as long as `scan_keys` needs it."""
    at = properties.find(_UNIQUE_KEY_MARK)
    if at < 0 or (at > 0 and properties[at - 1] != 2) or properties.find(_KEYS_MARK) >= 0:
        return None
    begin = at + len(_UNIQUE_KEY_MARK)
    key_end = properties.find(b"\x02", begin)
    key_end = len(properties) if key_end < 0 else key_end
    if properties.find(_UNIQUE_KEY_MARK, begin) >= 0 or key_end - begin <= _ENDING:
        return None
    return begin, key_end
