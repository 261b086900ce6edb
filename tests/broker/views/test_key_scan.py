"""Scanner of the key index: it reads the same keys from a block's records as the general decoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scanned_records import HOST, HOST_V6, encoded

from dledger_broker.views import keyscan
from dledger_broker.views.columns import MIN_ROWS
from dledger_broker.views.keyfile import IndexedKey, key_hash
from dledger_broker.views.keyscan import record_keys, scan_keys
from dledger_remoting.errors import RecordError
from dledger_remoting.record import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK, scan_records

BEGINNING = "7F00000100002A9F000001A4C0FF"
USUAL: dict[str, Any] = {
    "topic": "A",
    "body": b"body",
    "lead": b"UNIQ_KEY\x01",
    "beginning": BEGINNING,
    "end": b"\x02WAIT\x01true\x02",
    "sys_flag": 0,
    "born_host": HOST,
}
UNUSUAL: list[tuple[str, Any]] = [
    *[("topic", topic) for topic in ("A", "B", "AA", "long" * 40)],
    *[("body", body) for body in (b"", b"UNIQ_KEY\x01body\x02", bytes(300))],
    *[("lead", lead + b"UNIQ_KEY\x01") for lead in (b"MY", b"K\x01v\x02", b"KEYS\x01w\x02")],
    ("lead", b"UNIQ_KE2\x01"),
    *[("beginning", beginning) for beginning in (BEGINNING[:-1] + "E", "short", "", BEGINNING[:-5] + "\x02K\x01va")],
    *[("end", end) for end in (b"", b"\x02", b"\x02WAIT\x01none\x02", b"\x02KEYS\x01abcd\x02")],
    *[("end", end) for end in (b"\x02KEYS\x01a b\x02", b"\x02UNIQ_KEY\x01LAST\x02")],
    *[("sys_flag", flag) for flag in (1, SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK)],
    ("born_host", HOST_V6),
]  # fmt: skip


def messages(first: int, count: int, fields: dict[str, Any]) -> bytes:
    """Return messages of one producer, which differ in the last characters of the unique key."""
    same = {name: fields[name] for name in ("topic", "body", "sys_flag", "born_host")}
    return b"".join(
        encoded(place, properties=fields["lead"] + f"{fields['beginning']}{place:04X}".encode() + fields["end"], **same)
        for place in range(first, first + count)
    )


def read_one_by_one(data: bytes) -> list[IndexedKey]:
    return [
        (key_hash(record.topic.decode(), key), record.physical_offset, record.store_timestamp)
        for record in scan_records(data)
        for key in record_keys(record)
    ]


@pytest.mark.parametrize("first", UNUSUAL, ids=str)
def test_scanning_keys_of_a_block_equals_reading_records_one_by_one(first: tuple[str, Any]) -> None:
    """The scanner and the general decoder find the same keys in a block whose kind of record changes three times."""
    changed = {**USUAL, first[0]: first[1]}
    for name, value in UNUSUAL:
        for each in (2, MIN_ROWS):
            kinds = (USUAL, changed, {**changed, name: value}, USUAL)
            pieces = [messages(each * number, each, fields) for number, fields in enumerate(kinds)]
            block, spans = b"before", []
            for piece in pieces:
                spans.append((len(block), len(block) + len(piece)))
                block += piece + b"between"
            assert scan_keys(block, spans).tolist() == read_one_by_one(b"".join(pieces))


def test_keys_of_alike_records_are_scanned_without_reading_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    data = messages(0, 100, USUAL) + messages(100, 100, {**USUAL, "topic": "B"})
    expected = read_one_by_one(data)
    monkeypatch.setattr(keyscan, "record_keys", None)
    assert scan_keys(data, [(0, len(data))]).tolist() == expected


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(UNUSUAL), st.integers(0, 3)), min_size=MIN_ROWS, max_size=10 * MIN_ROWS))
def test_scanning_keys_of_mixed_producers_equals_reading_one_by_one(sent: list[tuple[tuple[str, Any], int]]) -> None:
    kinds: list[dict[str, Any]] = [USUAL, {**USUAL, "topic": "B"}, {**USUAL, "body": bytes(40)}]
    data = b"".join(
        messages(place, 1, kinds[which] if which < 3 else {**USUAL, unusual[0]: unusual[1]})
        for place, (unusual, which) in enumerate(sent)
    )
    assert scan_keys(data, [(0, len(data))]).tolist() == read_one_by_one(data)


@settings(max_examples=300)
@given(st.sampled_from(UNUSUAL), st.sampled_from([2, MIN_ROWS]), st.data())
def test_damaged_records_raise_nothing_but_record_errors(
    unusual: tuple[str, Any], each: int, data: st.DataObject
) -> None:
    whole = messages(0, each, USUAL) + messages(each, each, {**USUAL, unusual[0]: unusual[1]})
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        scan_keys(bytes(damaged), [(0, len(damaged))])
    except RecordError:
        pass
    with pytest.raises(RecordError):
        scan_keys(whole[:-1], [(0, len(whole) - 1)])
