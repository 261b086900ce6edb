"""Scanner of followers: it reads of an entry's records what the general decoder reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_broker.views import scan
from dledger_broker.views.scan import MIN_COLUMNS_RECORDS, scan_runs, tag_code_of
from dledger_broker.views.units import UNIT
from dledger_remoting.errors import RecordError
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import SYS_BORN_HOST_V6, MessageRecord, decode_record, encode_record

LOG_POSITION = 10_000
HOST, HOST_V6 = HostAddress("10.0.0.9", 4000), HostAddress("fe80::1", 4000)
TOPICS = st.sampled_from(["A", "A", "A", "B", "long" * 40])
PROPERTIES = st.sampled_from(
    [b"", b"K\x01v\x02", b"K\x01w\x02", b"TAGS\x01T\x02", b"TAGS\x01U\x02", b"MYTAGS\x01T\x02"]
)


@st.composite
def entries(draw: st.DrawFn) -> list[bytes]:
    """Records of a few queues, each queue's offsets mostly contiguous."""
    offsets: dict[tuple[str, int], int] = {}
    records = []
    for _ in range(draw(st.integers(0, 12))):
        topic, queue_id = draw(TOPICS), draw(st.integers(0, 2))
        offset = offsets.get((topic, queue_id), draw(st.integers(0, 3))) + draw(st.sampled_from([0] * 9 + [5]))
        offsets[topic, queue_id] = offset + 1
        records.append(
            encode_record(
                MessageRecord(
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=offset,
                    physical_offset=0,
                    body=draw(st.sampled_from([b"", b"x", b"TAGS\x01body", bytes(300)])),
                    properties=draw(PROPERTIES),
                    born_timestamp=1,
                    born_host=draw(st.sampled_from([HOST] * 5 + [HOST_V6])),
                    store_timestamp=2,
                    store_host=HOST,
                )
            )
        )
    return records


def units_by_queue(runs: list[tuple[bytes, int, int, bytes]]) -> dict[tuple[bytes, int], list[tuple[int, ...]]]:
    """(queue offset, position, size, tag code) of every unit, by topic and queue."""
    found: dict[tuple[bytes, int], list[tuple[int, ...]]] = {}
    for topic, queue_id, end, units in runs:
        for number, unit in enumerate(UNIT.iter_unpack(units), end - len(units) // UNIT.size):
            found.setdefault((topic, queue_id), []).append((number, *unit))
    return found


def expected_units(records: list[bytes]) -> dict[tuple[bytes, int], list[tuple[int, ...]]]:
    """What `units_by_queue` finds, by the general decoder."""
    expected: dict[tuple[bytes, int], list[tuple[int, ...]]] = {}
    position = LOG_POSITION
    for data in records:
        record = decode_record(data)
        unit = (record.queue_offset, position, len(data), tag_code_of(record.properties))
        expected.setdefault((record.topic.encode(), record.queue_id), []).append(unit)
        position += len(data)
    return expected


@given(entries())
def test_units_are_those_of_records_decoded_one_by_one(records: list[bytes]) -> None:
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
    """A record of the queues 0 to 3, which take turns of five; queue 3 skips an offset now and then.

    The offsets of one queue begin where those of the one before end.
    """
    turn, place = divmod(number, 5)
    properties = fields["properties"]
    return encode_record(
        MessageRecord(
            topic=fields["topic"],
            queue_id=turn % 4,
            queue_offset=turn % 4 * MANY // 4 + turn // 4 * 5 + place + (turn // 16 if turn % 4 == 3 else 0),
            physical_offset=number,
            body=b"x" * fields.get("body_bytes", number % 3),
            properties=properties % number if b"%" in properties else properties,
            born_timestamp=1,
            born_host=fields["host"],
            store_timestamp=2,
            store_host=HOST,
        )
    )


@pytest.mark.parametrize("place", [0, 1, MANY // 2, MANY - 1])
@pytest.mark.parametrize("kind", [{}, *OTHERS], ids=str)
def test_units_of_many_alike_records_and_one_other_are_those_of_records_decoded_one_by_one(
    kind: dict[str, Any], place: int
) -> None:
    for model in ALIKE, {**ALIKE, **kind}, {**ALIKE, "body_bytes": 7}:
        records = [one_of_many(number, model) for number in range(MANY)]
        records[place] = one_of_many(place, {**ALIKE, **kind})
        assert units_by_queue(scan_runs(memoryview(b"".join(records)), LOG_POSITION)) == expected_units(records)


@pytest.mark.parametrize("tag", [TAG, b"TAGS\x01T", b"TAGX\x01T\x02"])
def test_many_records_that_look_alike_are_not_read_one_by_one(tag: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {**ALIKE, "properties": UNIQUE + tag}
    records = [one_of_many(number, kind) for number in range(MANY)]
    monkeypatch.setattr(scan, "UNIT", None)
    assert units_by_queue(scan_runs(b"".join(records), LOG_POSITION)) == expected_units(records)


def test_records_of_one_queue_are_one_run() -> None:
    record = MessageRecord(
        topic="A", queue_id=1, queue_offset=0, physical_offset=0, body=b"x", born_timestamp=1, born_host=HOST,
        store_timestamp=2, store_host=HOST,
    )  # fmt: skip
    data = b"".join(encode_record(record) if number == 0 else numbered(record, number) for number in range(5))
    ((topic, queue_id, end, units),) = scan_runs(data, 0)
    assert (topic, queue_id, end, len(units)) == (b"A", 1, 5, 5 * UNIT.size)


def numbered(record: MessageRecord, queue_offset: int) -> bytes:
    data = bytearray(encode_record(record))
    data[20:28] = queue_offset.to_bytes(8, "big")
    return bytes(data)


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
