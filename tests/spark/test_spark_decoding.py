"""Rows are exactly what the general record codec reads, whatever the records look like."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_remoting import properties as names
from dledger_remoting.compression import compress, decompress
from dledger_remoting.hosts import HostAddress
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import RESERVED_NAMES, parse_properties
from dledger_remoting.record import MessageRecord, encode_record, iter_records
from dledger_spark.columns import BatchBuilder
from dledger_spark.errors import CorruptDataError
from dledger_spark.records import RecordScanner, RowFilter, TopicRange
from dledger_spark.schema import NAMES, arrow_schema

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
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    rows = batch.to_pylist()
    for row in rows:
        for name in ("timestamp", "born_timestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return rows


def scanner(*topics: str, row_filter: RowFilter | None = None) -> RecordScanner:
    return RecordScanner([TopicRange(topic, dict.fromkeys(range(6), EVERYTHING)) for topic in topics], row_filter)


@settings(deadline=None, max_examples=120)
@given(st.lists(records(), min_size=1, max_size=12))
def test_every_column_is_what_the_record_codec_reads(given_records: list[MessageRecord]) -> None:
    data = b"".join(map(encode_record, given_records))
    scan = scanner(*{record.topic for record in given_records})
    scan.scan(data, 0, len(data))
    rows = scan.take()
    rows.entries.append((7, 9, len(rows)))
    batch = BatchBuilder(NAMES, "broker-d", 3).build(rows)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(NAMES)
    assert rows_of(batch) == [expected_row(record) for record in iter_records(data)]


@settings(deadline=None, max_examples=40)
@given(st.lists(records(), min_size=1, max_size=12), st.sampled_from(["orders", "audit"]))
def test_records_of_other_topics_are_skipped(given_records: list[MessageRecord], topic: str) -> None:
    data = b"".join(map(encode_record, given_records))
    scan = scanner(topic)
    scan.scan(data, 0, len(data))
    assert scan.take().topics == [topic] * sum(record.topic == topic for record in given_records)


@settings(deadline=None, max_examples=120)
@given(records(), st.data())
def test_damage_is_an_error_and_nothing_else(record: MessageRecord, data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    scan = scanner("orders")
    try:
        scan.scan(cut, 0, len(cut))
    except CorruptDataError:
        pass


def plain(topic: str, queue_id: int, offset: int, position: int, **more: object) -> bytes:
    host = HostAddress("127.0.0.1", 1)
    fields = {"body": b"x", "born_timestamp": 1, "store_timestamp": 1, "properties": b""} | more
    return encode_record(
        MessageRecord(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=position,
            born_host=host,
            store_host=host,
            **fields,  # type: ignore[arg-type]
        )
    )


def test_offsets_queues_and_incarnations_bound_what_is_taken() -> None:
    wanted = TopicRange("t", {0: (5, 7), 1: (0, 1)}, first_position=1000)
    data = b"".join(
        (
            plain("t", 0, 6, 999),  # of a topic of this name that was deleted
            plain("t", 0, 4, 1000),
            plain("t", 0, 5, 1001),
            plain("t", 0, 6, 1002),
            plain("t", 0, 7, 1003),
            plain("t", 1, 0, 1004),
            plain("t", 2, 0, 1005),
        )
    )
    scan = RecordScanner([wanted])
    scan.scan(data, 0, len(data))
    assert [int.from_bytes(head[28:36], "big") for head in scan.take().heads] == [1001, 1002, 1004]


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
def test_time_and_tags_bound_what_is_taken(row_filter: RowFilter, taken: list[int]) -> None:
    data = b"".join(
        (
            plain("t", 0, 0, 0, store_timestamp=10, properties=b"TAGS\x01a\x02"),
            plain("t", 0, 1, 0, store_timestamp=20, properties=b"TAGS\x01b\x02"),
            plain("t", 0, 2, 0, store_timestamp=30),
        )
    )
    scan = scanner("t", row_filter=row_filter)
    scan.scan(data, 0, len(data))
    assert [int.from_bytes(head[20:28], "big") for head in scan.take().heads] == taken


def test_two_entries_in_one_batch_keep_their_terms() -> None:
    scan = scanner("t")
    data = plain("t", 0, 0, 0) + plain("t", 0, 1, 0) + plain("t", 0, 2, 0)
    size = len(data) // 3
    scan.scan(data, 0, 2 * size)
    scan.rows.entries.append((1, 10, len(scan.rows)))
    scan.scan(data, 2 * size, 3 * size)
    scan.rows.entries.append((2, 11, len(scan.rows)))
    batch = BatchBuilder(("term", "log_index"), "g", 0).build(scan.take())
    assert batch.to_pydict() == {"term": [1, 1, 2], "log_index": [10, 10, 11]}
