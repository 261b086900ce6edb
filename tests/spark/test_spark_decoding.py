"""Rows are exactly what the general record codec reads, whatever the records look like."""

import pyarrow as pa
import pytest
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
from dledger_spark.errors import CorruptDataError
from dledger_spark.partitions import Source
from dledger_spark.schema import NAMES, arrow_schema
from dledger_spark.wanted import RowFilter, TopicRange

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Nothing depends on how fast the machine is."""
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


def wanted(*topics: str) -> list[TopicRange]:
    return [TopicRange(topic, dict.fromkeys(range(6), EVERYTHING)) for topic in topics]


def decoded(
    data: bytes,
    topics: list[TopicRange],
    columns: tuple[str, ...] = NAMES,
    *,
    row_filter: RowFilter | None = None,
    spans: list[Span] | None = None,
) -> list[pa.RecordBatch]:
    source = Source(
        namesrv=("a:1",),
        group="broker-d",
        ordinal=3,
        read_from="follower",
        roles="follower",
        read_timeout_s=1.0,
        fail_on_data_loss=True,
        columns=columns,
        row_filter=row_filter or RowFilter(),
    )
    collector = BatchCollector(source, topics, has_entries=True)
    return [*collector.add(data, spans or [Span(0, len(data), 7, 9)]), *collector.rest()]


def logs() -> st.SearchStrategy[list[MessageRecord]]:
    """Records as a log holds them: no two say that they lie at the same place."""
    return st.lists(records(), min_size=1, max_size=12, unique_by=lambda record: record.physical_offset)


@settings(QUIET, max_examples=120)
@given(logs())
def test_every_column_is_what_the_record_codec_reads(given_records: list[MessageRecord]) -> None:
    data = b"".join(map(encode_record, given_records))
    (batch,) = decoded(data, wanted(*{record.topic for record in given_records}))
    batch.validate(full=True)
    assert batch.schema == arrow_schema(NAMES)
    assert rows_of(batch) == [expected_row(record) for record in iter_records(data)]


def plain_record(**fields: object) -> MessageRecord:
    given_fields = {
        "topic": "orders",
        "queue_id": 2,
        "queue_offset": 17,
        "physical_offset": 0,
        "body": b"x",
        "born_timestamp": 1,
        "born_host": HostAddress("10.0.0.1", 1),
        "store_timestamp": 1,
        "store_host": HostAddress("10.0.0.1", 1),
    }
    return MessageRecord(**given_fields | fields)


@pytest.mark.parametrize(
    ("born_timestamp", "expected"),
    [
        (2**63 - 1, (2**63 - 1) // 1000),
        (-(2**63), -(2**63 // 1000)),
        (2**53, 2**53),
        (-1, -1),
    ],
)
def test_a_birth_that_spark_cannot_hold_is_the_nearest_that_it_can(born_timestamp: int, expected: int) -> None:
    """The producer says when a message was born: one that says nonsense must not make a topic unreadable."""
    data = encode_record(plain_record(born_timestamp=born_timestamp)) + encode_record(plain_record())
    (batch,) = decoded(data, wanted("orders"), ("born_timestamp", "value"))
    assert batch["born_timestamp"].cast(pa.int64()).to_pylist() == [expected * 1000, 1000]


@pytest.mark.parametrize("sys_flag", [0x301, 0x701])
def test_a_body_that_cannot_be_decompressed_is_named(sys_flag: int) -> None:
    data = encode_record(plain_record(body=b"no stream", sys_flag=sys_flag))
    with pytest.raises(CorruptDataError, match=r"\(orders, queue 2, offset 17\) cannot be read: "):
        decoded(data, wanted("orders"))


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
    bad = plain("t", 0, 5, 1000, body=b"no stream", sys_flag=0x301, properties=b"TAGS\x01a\x02")
    good = plain("t", 1, 0, 1001, store_timestamp=2, properties=b"TAGS\x01b\x02")
    with pytest.raises(CorruptDataError, match=r"\(t, queue 0, offset 5\)"):
        decoded(bad + good, [TopicRange("t", {0: (5, 6)})])
    (batch,) = decoded(bad + good, [topic_range], ("physical_offset",), row_filter=row_filter)
    assert batch.to_pydict() == {"physical_offset": [1001]}


@settings(QUIET, max_examples=40)
@given(logs(), st.sampled_from(["orders", "audit"]))
def test_records_of_other_topics_are_skipped(given_records: list[MessageRecord], topic: str) -> None:
    data = b"".join(map(encode_record, given_records))
    rows = [row for batch in decoded(data, wanted(topic)) for row in rows_of(batch)]
    assert rows == [expected_row(record) for record in iter_records(data) if record.topic == topic]


@settings(QUIET, max_examples=200)
@given(records(), st.data())
def test_damage_is_an_error_and_nothing_else(record: MessageRecord, data: st.DataObject) -> None:
    damaged = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        decoded(cut, wanted("orders"), ("value", "topic", "properties", "headers", "message_id"))
    except CorruptDataError:
        pass


@pytest.mark.parametrize("body_bytes", [-1, 2, 2**31 - 1, 2**31 - 90, -(2**31)])
def test_a_body_that_is_longer_than_its_record_is_an_error(body_bytes: int) -> None:
    damaged = bytearray(plain("t", 0, 0, 0) * 3)
    size = len(damaged) // 3
    damaged[size + 84 : size + 88] = body_bytes.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptDataError, match=f"at byte {size} of the answer: its size contradicts"):
        decoded(bytes(damaged), wanted("t"))


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
    present = TopicRange("t", {0: (5, 7), 1: (0, 1)}, first_position=1000)
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
    (batch,) = decoded(data, [present], ("physical_offset",))
    assert batch.to_pydict() == {"physical_offset": [1001, 1002, 1004]}


def test_each_topic_has_bounds_of_its_own() -> None:
    ranges = [TopicRange("t", {0: (1, 2), 1: (0, 9)}), TopicRange("u", {1: (1, 3)}, first_position=20)]
    data = b"".join(
        plain(topic, queue_id, offset, position)
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
def test_time_and_tags_bound_what_is_taken(row_filter: RowFilter, taken: list[int]) -> None:
    data = b"".join(
        (
            plain("t", 0, 0, 0, store_timestamp=10, properties=b"TAGS\x01a\x02"),
            plain("t", 0, 1, 0, store_timestamp=20, properties=b"TAGS\x01b\x02"),
            plain("t", 0, 2, 0, store_timestamp=30),
        )
    )
    batches = decoded(data, wanted("t"), ("offset",), row_filter=row_filter)
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == taken


def test_two_entries_in_one_batch_keep_their_terms() -> None:
    data = plain("t", 0, 0, 0) + plain("u", 0, 0, 0) + plain("t", 0, 1, 0) + plain("t", 0, 2, 0)
    size = len(data) // 4
    spans = [Span(0, 3 * size, 1, 10), Span(3 * size, 3 * size, 2, 11), Span(3 * size, 4 * size, 2, 12)]
    (batch,) = decoded(data, wanted("t"), ("term", "log_index"), spans=spans)
    assert batch.to_pydict() == {"term": [1, 1, 2], "log_index": [10, 10, 12]}


def test_batches_are_bounded_in_rows_and_few_rows_wait_for_more() -> None:
    data = plain("t", 0, 0, 0) * 9000
    assert [batch.num_rows for batch in decoded(data, wanted("t"), ("value",))] == [4096, 4096, 808]
    size = len(data) // 9000
    (batch,) = decoded(plain("t", 0, 0, 0) * 9, wanted("t"), ("value",), spans=[Span(0, size), Span(size, 9 * size)])
    assert batch.num_rows == 9


def test_bodies_that_grow_when_decompressed_are_not_all_held_at_once() -> None:
    body, sys_flag = compress(bytes(3 << 20))
    data = plain("t", 0, 0, 0, body=body, sys_flag=sys_flag) * 8
    batches = decoded(data, wanted("t"), ("value", "term"))
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
    assert all(value == bytes(3 << 20) for batch in batches for value in batch["value"].to_pylist())
    assert [term for batch in batches for term in batch["term"].to_pylist()] == [7] * 8
