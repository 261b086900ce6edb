"""Rows are exactly what the general record codec reads, for any records."""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fake_log import record, source
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dledger_remoting import properties as names
from dledger_remoting.compression import compress, decompress
from dledger_remoting.hosts import HostAddress
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import RESERVED_NAMES, parse_properties
from dledger_remoting.record import MessageRecord, encode_record, iter_records
from dledger_spark.batches import BatchCollector
from dledger_spark.entries import Span
from dledger_spark.errors import BadRecordError, CorruptDataError
from dledger_spark.options import BadRecords
from dledger_spark.properties import BatchProperties
from dledger_spark.schema import NAMES, arrow_schema
from dledger_spark.wanted import RowFilter, TopicRange

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Settings that do not depend on the speed of the machine."""
EVERYTHING = (0, 2**63 - 1)
INT31 = st.integers(0, 2**31 - 1)
INT63 = st.integers(0, 2**62)
HOSTS = st.builds(HostAddress, st.one_of(st.ip_addresses(v=4).map(str), st.just("2001:db8::1")), st.integers(0, 65_535))
TOPICS = st.sampled_from(["orders", "audit", "t" * 127, "ü" * 100, "%RETRY%group"])
REGULAR = st.lists(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "mine", "other"]), unique=True).flatmap(
    lambda keys: st.tuples(*[st.text("abcé 0", max_size=5) for _ in keys]).map(
        lambda values: "".join(f"{key}\x01{value}\x02" for key, value in zip(keys, values, strict=True)).encode()
    )
)
PROPERTIES = st.one_of(
    REGULAR, REGULAR.map(lambda text: text[:-1]), st.binary(max_size=40), st.just(b"a\x01b\x01c\x02")
)


@st.composite
def records(draw: st.DrawFn) -> MessageRecord:
    body, sys_flag = draw(st.binary(max_size=200)), 0
    if draw(st.booleans()):
        body, sys_flag = compress(body)
    return MessageRecord(
        topic=draw(TOPICS),
        queue_id=draw(st.integers(0, 5)),
        queue_offset=draw(INT63),
        physical_offset=draw(INT63),
        body=body,
        properties=draw(PROPERTIES),
        flag=draw(INT31),
        sys_flag=sys_flag,
        born_timestamp=draw(st.integers(0, 2**41)),
        born_host=draw(HOSTS),
        store_timestamp=draw(st.integers(0, 2**41)),
        store_host=draw(HOSTS),
        reconsume_times=draw(INT31),
    )


def expected_row(record: MessageRecord) -> dict[str, object]:
    found = parse_properties(record.properties)
    keys = found.get(names.KEYS)
    return {
        "key": None if keys is None else keys.encode(),
        "value": decompress(record.body, record.sys_flag),
        "topic": record.topic,
        "partition": 3 * 65_536 + record.queue_id,
        "offset": record.queue_offset,
        "timestamp": record.store_timestamp,
        "timestampType": 1,
        "headers": [
            {"key": name, "value": value.encode()} for name, value in found.items() if name not in RESERVED_NAMES
        ],
        "broker_group": "broker-d",
        "queue_id": record.queue_id,
        "tags": found.get(names.TAGS),
        "keys": keys,
        "born_timestamp": record.born_timestamp,
        "born_host": str(record.born_host),
        "store_host": str(record.store_host),
        "message_id": found.get(names.UNIQUE_KEY)
        if names.UNIQUE_KEY in found
        else offset_message_id(record.store_host, record.physical_offset),
        "reconsume_times": record.reconsume_times,
        "properties": list(found.items()),
        "physical_offset": record.physical_offset,
        "term": 7,
        "log_index": 9,
        "_corrupt_record": None,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    rows = batch.to_pylist()
    for row in rows:
        for name in ("timestamp", "born_timestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return rows


def wanted(*topics: str) -> list[TopicRange]:
    return [TopicRange(topic, dict.fromkeys(range(6), EVERYTHING)) for topic in topics]


def decoded(
    data: bytes,
    topics: list[TopicRange],
    columns: tuple[str, ...] = NAMES,
    *,
    row_filter: RowFilter | None = None,
    spans: list[Span] | None = None,
    bad_records: BadRecords = "FAILFAST",
) -> list[pa.RecordBatch]:
    given = {"columns": columns, "row_filter": row_filter or RowFilter(), "bad_records": bad_records}
    collector = BatchCollector(source("a:1", group="broker-d", ordinal=3, **given), topics, has_entries=True)
    return [*collector.add(data, spans or [Span(0, len(data), 7, 9)]), *collector.rest()]


def logs() -> st.SearchStrategy[list[MessageRecord]]:
    """Draw records as a log holds them, each with a position of its own."""
    return st.lists(records(), min_size=1, max_size=12, unique_by=lambda record: record.physical_offset)


@settings(QUIET, max_examples=120)
@given(logs())
def test_every_column_equals_the_record_codecs_result(given_records: list[MessageRecord]) -> None:
    data = b"".join(map(encode_record, given_records))
    (batch,) = decoded(data, wanted(*{record.topic for record in given_records}))
    batch.validate(full=True)
    assert batch.schema == arrow_schema(NAMES)
    assert rows_of(batch) == [expected_row(record) for record in iter_records(data)]


def order(**fields: object) -> bytes:
    where = {"topic": "orders", "queue_id": 2, "queue_offset": 17, "physical_offset": 0}
    return record(**where | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("born_timestamp", "expected"),
    [
        (-62_135_596_800_001, None),
        (-62_135_596_800_000, -62_135_596_800_000),
        (-1, -1),
        (253_402_300_799_999, 253_402_300_799_999),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_birth_outside_the_years_1_to_9999_is_null(born_timestamp: int, expected: int | None) -> None:
    """The producer sets the time of birth. A wrong time must not make a topic unreadable."""
    data = order(born_timestamp=born_timestamp) + order()
    (batch,) = decoded(data, wanted("orders"), ("born_timestamp", "value"))
    born = batch["born_timestamp"].cast(pa.int64()).to_pylist()
    assert born == [None if expected is None else expected * 1000, 1000]
    assert batch["born_timestamp"].to_pylist()[0] is None or expected is not None


@pytest.mark.parametrize("sys_flag", [0x301, 0x1, 0x701])
@pytest.mark.parametrize("raw", [b"no stream", b"", compress(b"x" * 99)[0][:-4]], ids=["none", "empty", "cut off"])
def test_an_undecodable_body_is_treated_as_badrecords_demands(sys_flag: int, raw: bytes) -> None:
    good = [order(queue_offset=offset, physical_offset=offset) for offset in (16, 18)]
    data = good[0] + order(body=raw, sys_flag=sys_flag) + good[1]
    with pytest.raises(BadRecordError, match=r"offset 17 of orders/broker-d/2 .*badRecords=PERMISSIVE"):
        decoded(data, wanted("orders"), ("value",))
    columns = ("offset", "value", "_corrupt_record")
    (kept,) = decoded(data, wanted("orders"), columns, bad_records="PERMISSIVE")
    assert [tuple(row.values()) for row in kept.to_pylist()] == [(16, b"x", None), (17, None, raw), (18, b"x", None)]
    (left,) = decoded(data, wanted("orders"), ("offset", "value"), bad_records="DROPMALFORMED")
    assert left.to_pydict() == {"offset": [16, 18], "value": [b"x", b"x"]}
    alone = order(body=raw, sys_flag=sys_flag)
    assert decoded(alone, wanted("orders"), bad_records="DROPMALFORMED") == []
    (unread,) = decoded(data, wanted("orders"), ("offset",), bad_records="DROPMALFORMED")
    assert unread.to_pydict() == {"offset": [16, 17, 18]}, "bodies are not decoded where they are not read"


@pytest.mark.parametrize("bad_records", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
def test_rot_and_a_missing_package_are_never_bad_records(
    bad_records: BadRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null or a missing row would mean that the producer sent something unreadable."""
    rotten = bytearray(order(body=compress(b"x" * 99)[0], sys_flag=0x301))
    rotten[90] ^= 1
    with pytest.raises(CorruptDataError, match=r"offset 17 of orders/broker-d/2 cannot be read: .*crc"):
        decoded(bytes(rotten), wanted("orders"), bad_records=bad_records)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CorruptDataError, match="pip install zstandard"):
        decoded(order(body=b"x", sys_flag=0x201), wanted("orders"), bad_records=bad_records)


@pytest.mark.parametrize(
    ("topic_range", "row_filter"),
    [
        (TopicRange("t", {0: (0, 5), 1: (0, 9)}), RowFilter()),
        (TopicRange("t", {0: (6, 9), 1: (0, 9)}), RowFilter()),
        (TopicRange("t", {1: (0, 9)}), RowFilter()),
        (TopicRange("t", {0: (0, 9), 1: (0, 9)}, first_position=1001), RowFilter()),
        (TopicRange("t", {0: (0, 9), 1: (0, 9)}), RowFilter(from_ms=2)),
        (TopicRange("t", {0: (0, 9), 1: (0, 9)}), RowFilter(tags=frozenset({"b"}))),
    ],
    ids=["before it", "behind it", "another queue", "a later topic of its name", "another time", "another tag"],
)
def test_a_body_that_cannot_be_decompressed_can_be_read_around(topic_range: TopicRange, row_filter: RowFilter) -> None:
    bad = record("t", 0, 5, 1000, body=b"no stream", sys_flag=0x301, properties=b"TAGS\x01a\x02")
    good = record("t", 1, 0, 1001, store_timestamp=2, properties=b"TAGS\x01b\x02")
    with pytest.raises(BadRecordError, match="offset 5 of t/broker-d/0 "):
        decoded(bad + good, [TopicRange("t", {0: (5, 6)})])
    (batch,) = decoded(bad + good, [topic_range], ("physical_offset",), row_filter=row_filter)
    assert batch.to_pydict() == {"physical_offset": [1001]}


@settings(QUIET, max_examples=200)
@given(records(), st.data())
def test_damage_is_an_error_and_nothing_else(record: MessageRecord, data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        decoded(cut, wanted("orders"), ("value", "topic", "properties", "headers", "message_id"))
    except (CorruptDataError, BadRecordError):
        pass


@pytest.mark.parametrize("body_bytes", [-1, 2, 2**31 - 1, 2**31 - 90, -(2**31)])
def test_a_body_that_is_longer_than_its_record_is_an_error(body_bytes: int) -> None:
    damaged = bytearray(record("t", 0, 0, 0) * 3)
    size = len(damaged) // 3
    damaged[size + 84 : size + 88] = body_bytes.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptDataError, match=f"at byte {size} of the answer: its size contradicts"):
        decoded(bytes(damaged), wanted("t"))


def test_each_topic_has_bounds_of_its_own() -> None:
    ranges = [TopicRange("t", {0: (1, 2), 1: (0, 9)}), TopicRange("u", {1: (1, 3)}, first_position=20)]
    data = b"".join(
        record(topic, queue_id, offset, position)
        for topic in ("u", "v", "t")
        for queue_id in (0, 1, 2)
        for offset in (0, 1, 2)
        for position in (10, 20)
    )
    (batch,) = decoded(data, ranges, ("topic", "queue_id", "offset", "physical_offset"))
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        *(("u", 1, offset, 20) for offset in (1, 2)),
        *(("t", 0, 1, position) for position in (10, 20)),
        *(("t", 1, offset, position) for offset in (0, 1, 2) for position in (10, 20)),
    ]


@pytest.mark.parametrize(
    ("row_filter", "taken"),
    [
        (RowFilter(from_ms=20), [1, 2]),
        (RowFilter(to_ms=20), [0]),
        (RowFilter(from_ms=10, to_ms=30), [0, 1]),
        (RowFilter(tags=frozenset({"a"})), [0]),
        (RowFilter(tags=frozenset({"a", "b"}), from_ms=20), [1]),
        (RowFilter(tags=frozenset()), []),
    ],
)
def test_time_and_tag_filters_limit_the_rows(row_filter: RowFilter, taken: list[int]) -> None:
    messages = ((10, b"TAGS\x01a\x02"), (20, b"TAGS\x01b\x02"), (30, b""))
    data = b"".join(
        record("t", 0, offset, 0, store_timestamp=at, properties=tag) for offset, (at, tag) in enumerate(messages)
    )
    batches = decoded(data, wanted("t"), ("offset",), row_filter=row_filter)
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == taken


def test_entries_in_a_batch_keep_their_terms_and_indexes() -> None:
    data = record("t", 0, 0, 0) + record("u", 0, 0, 0) + record("t", 0, 1, 0) + record("t", 0, 2, 0)
    size = len(data) // 4
    spans = [Span(0, 3 * size, 1, 10), Span(3 * size, 3 * size, 2, 11), Span(3 * size, 4 * size, 2, 12)]
    (batch,) = decoded(data, wanted("t"), ("term", "log_index"), spans=spans)
    assert batch.to_pydict() == {"term": [1, 1, 2], "log_index": [10, 10, 12]}


def test_batches_are_bounded_in_rows_and_few_rows_wait_for_more() -> None:
    data = record("t", 0, 0, 0) * 9000
    assert [batch.num_rows for batch in decoded(data, wanted("t"), ("value",))] == [4096, 4096, 808]
    size = len(data) // 9000
    (batch,) = decoded(record("t", 0, 0, 0) * 9, wanted("t"), ("value",), spans=[Span(0, size), Span(size, 9 * size)])
    assert batch.num_rows == 9


def test_bodies_that_grow_when_decompressed_are_not_all_held_at_once() -> None:
    body, sys_flag = compress(bytes(3 << 20))
    data = record("t", 0, 0, 0, body=body, sys_flag=sys_flag) * 8
    batches = decoded(data, wanted("t"), ("value", "term"))
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
    assert all(value == bytes(3 << 20) for batch in batches for value in batch["value"].to_pylist())
    assert [term for batch in batches for term in batch["term"].to_pylist()] == [7] * 8


ROWS = {
    "the same names": [b"a\x011\x02b\x012\x02", b"a\x013\x02b\x01\x02", b"a\x01\x02b\x014"],
    "1 and 3": [b"a\x011\x02", b"a\x012\x02a\x013\x02a\x014\x02"],
    "1, 2 and 3": [b"a\x011\x02", b"a\x012\x02b\x013\x02", b"a\x014\x02b\x015\x02c\x016\x02"],
    "over the end of a row": [b"a\x011\x02", b"b\x012\x02a\x013\x02b\x014\x02"],
    "another order": [b"a\x011\x02b\x012\x02", b"b\x013\x02a\x014\x02"],
    "one text of names": [b"ab\x011\x02c\x012\x02", b"a\x013\x02bc\x014\x02"],
    "a name twice": [b"a\x011\x02a\x012\x02", b"a\x013\x02a\x014\x02"],
    "none in one": [b"a\x011\x02", b"", b"a\x012\x02b\x013\x02"],
    "no name": [b"\x011\x02", b"\x012\x02"],
    "not ASCII": [b"\xc3\xa4\x011\x02", b"\xc3\xa4\x012\x02"],
    "one row": [b"a\x011\x02"],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_properties_with_repeated_names_are_split_like_others(rows: list[bytes]) -> None:
    """The fast path takes only batches whose rows have the same names in the same order."""
    found = BatchProperties(pc.take(pa.array(rows, pa.binary()), pa.array(range(len(rows)))))
    expected = [parse_properties(row) for row in rows]
    assert [dict(row) for row in found.as_maps().to_pylist()] == expected
    for name in ("a", "b", "c", "\u00e4", "none"):
        assert found.get(name).to_pylist() == [row.get(name) for row in expected]
