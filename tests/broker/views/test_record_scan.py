"""Scanner of followers: it reads the same units from an entry's records as the general decoder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scanned_records import HOST, HOST_V6, encoded

from dledger_broker.views import scan
from dledger_broker.views.scan import MIN_COLUMNS_RECORDS, scan_runs, tag_code_of
from dledger_broker.views.units import UNIT
from dledger_remoting.errors import RecordError
from dledger_remoting.record import SYS_BORN_HOST_V6, decode_record

LOG_POSITION = 10_000

TOPICS = st.sampled_from(["A", "A", "A", "B", "long" * 40])
PROPERTIES = st.sampled_from(
    [b"", b"K\x01v\x02", b"K\x01w\x02", b"TAGS\x01T\x02", b"TAGS\x01U\x02", b"MYTAGS\x01T\x02"]
)


@st.composite
def entries(draw: st.DrawFn) -> list[bytes]:
    """Draw records of a few queues, with mostly contiguous offsets in each queue."""
    offsets: dict[tuple[str, int], int] = {}
    records = []
    for _ in range(draw(st.integers(0, 12))):
        topic, queue_id = draw(TOPICS), draw(st.integers(0, 2))
        offset = offsets.get((topic, queue_id), draw(st.integers(0, 3))) + draw(st.sampled_from([0] * 9 + [5]))
        offsets[topic, queue_id] = offset + 1
        body = draw(st.sampled_from([b"", b"x", b"TAGS\x01body", bytes(300)]))
        how = {"properties": draw(PROPERTIES), "born_host": draw(st.sampled_from([HOST] * 5 + [HOST_V6]))}
        records.append(encoded(topic=topic, queue=(queue_id, offset), body=body, **how))
    return records


def units_by_queue(runs: list[tuple[bytes, int, int, bytes]]) -> dict[tuple[bytes, int], list[tuple[int, ...]]]:
    """Return (queue offset, position, size, tag code) of every unit, by topic and queue."""
    found: dict[tuple[bytes, int], list[tuple[int, ...]]] = {}
    for topic, queue_id, end, units in runs:
        for number, unit in enumerate(UNIT.iter_unpack(units), end - len(units) // UNIT.size):
            found.setdefault((topic, queue_id), []).append((number, *unit))
    return found


def expected_units(records: list[bytes]) -> dict[tuple[bytes, int], list[tuple[int, ...]]]:
    """Return the units that the general decoder finds, in the form of `units_by_queue`."""
    expected: dict[tuple[bytes, int], list[tuple[int, ...]]] = {}
    position = LOG_POSITION
    for data in records:
        record = decode_record(data)
        unit = (record.queue_offset, position, len(data), tag_code_of(record.properties))
        expected.setdefault((record.topic.encode(), record.queue_id), []).append(unit)
        position += len(data)
    return expected


@given(entries())
def test_scanned_units_equal_units_of_records_decoded_one_by_one(records: list[bytes]) -> None:
    assert units_by_queue(scan_runs(memoryview(b"".join(records)), LOG_POSITION)) == expected_units(records)


MANY = 2 * MIN_COLUMNS_RECORDS
UNIQUE, TAG, END = b"UNIQ_KEY\x01%04d\x02", b"TAGS\x01T\x02", b"WAIT\x01true\x02"
ALIKE: dict[str, Any] = {"topic": "A", "properties": UNIQUE + TAG + END, "host": HOST}
OTHERS: list[dict[str, Any]] = [
    {"topic": "B"},
    {"topic": "A" * 200},
    {"host": HOST_V6},
    *[
        {"properties": properties}
        for properties in (
            b"",
            TAG,
            UNIQUE + b"TAGS\x01U\x02" + END,
            UNIQUE + b"TAGS\x01TRUE\x01true\x02",
            UNIQUE + b"TAGX\x01T\x02" + END,
            UNIQUE + TAG + b"TAGS\x01true\x02",
            UNIQUE + TAG + b"WAIT\x01TAGS\x01",
            UNIQUE + END + b"TAGS\x01T",
            b"UNIQ_KEY\x01%04dX" + TAG + END,
            b"UNIQ_KEY\x01\x02" + TAG + b"%04d" + END,
            b"KK\x02TAGS\x01U%04d\x02" + TAG + END,
        )
    ],
]


def one_of_many(number: int, fields: dict[str, Any]) -> bytes:
    """Return a record of the queues 0 to 3, which take turns of five. Queue 3 skips an offset now and then.

    The offsets of each queue begin where the offsets of the previous queue end.
    """
    turn, place = divmod(number, 5)
    offset = turn % 4 * MANY // 4 + turn // 4 * 5 + place + (turn // 16 if turn % 4 == 3 else 0)
    properties, body = fields["properties"], b"x" * fields.get("body_bytes", number % 3)
    if b"%" in properties:
        properties %= number
    how = {"topic": fields["topic"], "born_host": fields["host"], "properties": properties}
    return encoded(number, queue=(turn % 4, offset), body=body, **how)


@pytest.mark.parametrize("place", [0, 1, MANY // 2, MANY - 1])
@pytest.mark.parametrize("kind", [{}, *OTHERS], ids=str)
def test_units_of_alike_records_with_one_exception_equal_decoded_units(kind: dict[str, Any], place: int) -> None:
    for model in ALIKE, {**ALIKE, **kind}, {**ALIKE, "body_bytes": 7}:
        records = [one_of_many(number, model) for number in range(MANY)]
        records[place] = one_of_many(place, {**ALIKE, **kind})
        assert units_by_queue(scan_runs(memoryview(b"".join(records)), LOG_POSITION)) == expected_units(records)


@pytest.mark.parametrize("tag", [TAG, b"TAGS\x01T", b"TAGX\x01T\x02"])
def test_many_alike_records_are_scanned_without_decoding_each(tag: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {**ALIKE, "properties": UNIQUE + tag}
    records = [one_of_many(number, kind) for number in range(MANY)]
    monkeypatch.setattr(scan, "UNIT", None)
    assert units_by_queue(scan_runs(b"".join(records), LOG_POSITION)) == expected_units(records)


def test_records_of_one_queue_are_one_run() -> None:
    data = b"".join(encoded(queue=(1, offset)) for offset in range(5))
    ((topic, queue_id, end, units),) = scan_runs(data, 0)
    assert (topic, queue_id, end, len(units)) == (b"A", 1, 5, 5 * UNIT.size)


@settings(max_examples=200)
@given(entries().filter(len) | st.just([one_of_many(number, ALIKE) for number in range(MANY)]), st.data())
def test_damaged_records_raise_nothing_but_record_errors(records: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(records))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        scan_runs(bytes(damaged), 0)
    except RecordError:
        pass
    with pytest.raises(RecordError):
        scan_runs(b"".join(records)[:-1], 0)


@pytest.mark.parametrize(("place", "value"), [(4, 0xDAA320A8), (36, SYS_BORN_HOST_V6), (84, 0xFFFFFFFF)], ids=str)
def test_a_record_whose_head_is_damaged_is_found_among_many(place: int, value: int) -> None:
    records = [one_of_many(number, {**ALIKE, "body_bytes": 300}) for number in range(MANY)]
    damaged = bytearray(records[MANY // 2])
    damaged[place : place + 4] = value.to_bytes(4, "big")
    records[MANY // 2] = bytes(damaged)
    with pytest.raises(RecordError):
        scan_runs(b"".join(records), LOG_POSITION)
