"""Reader of records' keys for the key index, its work for every message.

Messages of one producer have equal layout: the same topic, and properties that differ only in the value of the unique
key. Records of equal layout are read all at once, as columns of numbers. Every other record is read field by field. The
native part, if installed, reads all ordinary records, without the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dledger_base import native_part
from dledger_broker.views.columns import MIN_ROWS, Rows, bytes_at, heads_at, record_starts
from dledger_broker.views.keyfile import KEYS_TYPE, IndexedKey, Keys, as_keys, key_hash, key_hashes
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

MAX_SHAPES: Final = 8
"""Maximum number of shapes of records, one for each producer, that are distinguished in a block."""

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()
_UNIQUE_KEY_MARK: Final = _UNIQUE_KEY + b"\x01"
_KEYS: Final = KEYS.encode()
_KEYS_MARK: Final = _KEYS + b"\x01"
_UNUSUAL: Final = SYS_HOST_MASK | SYS_TRANSACTION_MASK
_LAST_MARK: Final = 2
"""Maximum value of the bytes that end a property's name or value."""
_NOT_ASCII: Final = 128


def record_keys(record: RecordRef) -> list[bytes]:
    """Return the keys of a record: its unique key and each word of KEYS. A transaction's roll-back has no keys."""
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return []
    properties = record.properties
    unique = find_property(properties, _UNIQUE_KEY)
    keys = [unique] if unique else []
    if _KEYS_MARK in properties and (words := find_property(properties, _KEYS)):
        keys += [word for word in words.split(b" ") if word and word != unique]
    return keys


def scan_keys(data: bytes, spans: Sequence[tuple[int, int]]) -> Keys:
    """Return the keys of all records in the pieces `data[start:end]`, in their order. The pieces hold only records.

    Raises `RecordError` at a record that cannot be read.
    """
    part = native_part.PART
    if part is not None and (rows := part.scan_keys(data, spans)) is not None:
        return np.frombuffer(rows, KEYS_TYPE)
    return _scan_in_python(data, spans)


def _scan_in_python(data: bytes, spans: Sequence[tuple[int, int]]) -> Keys:
    starts = [start for span in spans for start in record_starts(data, *span)]
    alike = np.zeros(len(starts), np.bool_)
    found = np.empty(len(starts), KEYS_TYPE)
    if len(starts) >= MIN_ROWS:
        _scan_alike(data, np.array(starts, np.int64), found, alike)
    others: list[IndexedKey] = []
    rows: list[int] = []
    for row in np.flatnonzero(~alike).tolist():
        record = next(scan_records(data, starts[row]))
        topic = str(record.topic, "utf-8", "replace")
        for key in record_keys(record):
            others.append((key_hash(topic, key), record.physical_offset, record.store_timestamp))
            rows.append(row)
    in_order = np.argsort(np.concatenate((np.flatnonzero(alike), np.array(rows, np.int64))), kind="stable")
    return np.concatenate((found[alike], as_keys(others)))[in_order]


def _scan_alike(data: bytes, starts: Rows, found: Keys, alike: NDArray[np.bool_]) -> None:
    """Set in `found` the keys of records whose shape is frequent, and mark these records in `alike`."""
    heads = heads_at(data, starts)
    body_bytes = heads["body_bytes"].astype(np.int64)
    tail_starts = starts + RECORD_HEAD_BYTES + body_bytes
    tail_bytes = heads["size"] - RECORD_HEAD_BYTES - body_bytes
    usual = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & _UNUSUAL == 0) & (body_bytes >= 0) & (tail_bytes > 0)
    waiting: Rows = np.flatnonzero(usual)
    for _ in range(MAX_SHAPES):
        if len(waiting) < MIN_ROWS:
            return
        model, length = waiting[0], int(tail_bytes[waiting[0]])
        record = next(scan_records(data, int(starts[model])))
        place = _only_key(record.properties)
        if place is None:
            waiting = waiting[tail_bytes[waiting] != length]
            continue
        begin, end = (length - len(record.properties) + at for at in place)
        rows = waiting[tail_bytes[waiting] == length]
        tails = bytes_at(data, tail_starts[rows], length).view(np.uint8).reshape(-1, length)
        keys = tails[:, begin:end]
        wrong = tails != tails[0]
        wrong[:, begin:end] = (keys <= _LAST_MARK) | (keys >= _NOT_ASCII)
        fits = ~wrong.any(1)
        rows = rows[fits]
        found["hash"][rows] = key_hashes(str(record.topic, "utf-8", "replace"), keys[fits])
        found["position"][rows] = heads["position"][rows]
        found["stored_ms"][rows] = heads["stored_ms"][rows]
        alike[rows] = True
        waiting = waiting[1:][~alike[waiting[1:]]]


def _only_key(properties: bytes) -> tuple[int, int] | None:
    """Return the begin and end of the unique key's value, None unless it is the record's only key."""
    at = properties.find(_UNIQUE_KEY_MARK)
    if at < 0 or (at > 0 and properties[at - 1] != 2) or properties.find(_KEYS_MARK) >= 0:
        return None
    begin = at + len(_UNIQUE_KEY_MARK)
    end = properties.find(b"\x02", begin)
    end = len(properties) if end < 0 else end
    return (begin, end) if begin < end and properties.find(_UNIQUE_KEY_MARK, begin) < 0 else None
