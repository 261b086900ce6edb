"""The message record, byte for byte, and its inner formats."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting import batch
from dledger_remoting.batch import BatchMessage, decode_batch, encode_batch
from dledger_remoting.errors import InvalidParameter, MessageIllegal, RecordError
from dledger_remoting.hosts import HostAddress, pack_host, split_host_port, unpack_host
from dledger_remoting.ids import (
    UniqueKeyGenerator,
    offset_message_id,
    offset_message_id_prefix,
    parse_offset_message_id,
)
from dledger_remoting.properties import (
    BROKER_OWNED_NAMES,
    find_property,
    format_properties,
    parse_properties,
    without_broker_owned,
)
from dledger_remoting.record import (
    MAGIC_V1,
    RECORD_HEAD,
    RECORD_HEAD_BYTES,
    MessageRecord,
    body_crc,
    decode_record,
    encode_record,
    iter_records,
    record_size,
    scan_records,
    topic_field,
)

BORN = HostAddress("10.0.0.9", 40000)
STORE = HostAddress("10.0.0.1", 10911)
GOLDEN = MessageRecord(
    topic="T1",
    queue_id=3,
    queue_offset=7,
    physical_offset=1024,
    body=b"hello",
    properties=b"TAGS\x01TagA\x02KEYS\x01k0\x02",
    born_timestamp=1700000000000,
    born_host=BORN,
    store_timestamp=1700000000123,
    store_host=STORE,
)
GOLDEN_BYTES = bytes.fromhex(
    "00000074daa320a73610a686000000030000000000000000000000070000000000000400000000000000018bcfe568000a00000900009c40"
    "0000018bcfe5687b0a00000100002a9f0000000000000000000000000000000568656c6c6f0254310012544147530154616741024b455953"
    "016b3002"
)

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
hosts = st.builds(HostAddress, st.ip_addresses().map(str), st.integers(0, 65535))
records = st.builds(
    MessageRecord,
    topic=text | st.text("abc", min_size=128, max_size=255),
    queue_id=int32,
    queue_offset=int64,
    physical_offset=int64,
    body=st.binary(max_size=50),
    properties=st.binary(max_size=50),
    flag=int32,
    sys_flag=st.integers(0, 0xF),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_transaction_offset=int64,
)


def test_the_record_is_byte_for_byte_that_of_the_format():
    assert encode_record(GOLDEN) == GOLDEN_BYTES
    assert decode_record(GOLDEN_BYTES, verify_crc=True) == GOLDEN
    assert offset_message_id(STORE, 1024) == "0A00000100002A9F0000000000000400"


def test_the_hot_path_pieces_make_the_same_bytes():
    body, properties = GOLDEN.body, GOLDEN.properties
    size = record_size(len(body), 2, len(properties))
    head = RECORD_HEAD.pack(
        size, MAGIC_V1, body_crc(body), 3, 0, 7, 1024, 0, 1700000000000, pack_host(BORN), 1700000000123,
        pack_host(STORE), 0, 0, len(body),
    )  # fmt: skip
    assert len(head) == RECORD_HEAD_BYTES
    assert head + body + topic_field(b"T1") + len(properties).to_bytes(2, "big") + properties == GOLDEN_BYTES


@given(st.lists(records, max_size=4))
def test_records_are_read_back_equal_by_full_reads_and_by_scans(sent):
    data = b"".join(encode_record(record) for record in sent)
    found = list(iter_records(data, verify_crc=True))
    for record, original in zip(found, sent, strict=True):
        v6 = 0x10 * (":" in original.born_host.ip) + 0x20 * (":" in original.store_host.ip)
        assert record.sys_flag == original.sys_flag | v6
        for name in set(record.__struct_fields__) - {"sys_flag"}:
            assert getattr(record, name) == getattr(original, name)
    refs = list(scan_records(b"pad" + data, 3))
    for ref, record in zip(refs, found, strict=True):
        assert decode_record(data, ref.position - 3) == record
        assert (ref.topic, ref.properties) == (record.topic.encode(), record.properties)
        assert (ref.queue_id, ref.queue_offset) == (record.queue_id, record.queue_offset)
        assert (ref.physical_offset, ref.store_timestamp) == (record.physical_offset, record.store_timestamp)
        assert ref.sys_flag == record.sys_flag
    assert sum(ref.size for ref in refs) == len(data)


@given(st.integers(0, len(GOLDEN_BYTES) - 1), st.integers(1, 255))
def test_a_damaged_record_is_a_record_error_or_a_record(position, change):
    damaged = bytearray(GOLDEN_BYTES)
    damaged[position] ^= change
    for read in (lambda: list(iter_records(bytes(damaged))), lambda: list(scan_records(bytes(damaged)))):
        try:
            read()
        except RecordError:
            continue


@given(st.binary(max_size=200))
def test_garbage_is_a_record_error(data):
    if data:
        with pytest.raises(RecordError):
            list(iter_records(data))
        with pytest.raises(RecordError):
            list(scan_records(data))


def test_a_cut_record_is_a_record_error():
    for cut in range(1, len(GOLDEN_BYTES)):
        with pytest.raises(RecordError):
            decode_record(GOLDEN_BYTES[:cut])
        with pytest.raises(RecordError):
            list(scan_records(GOLDEN_BYTES + GOLDEN_BYTES[:cut]))


def test_a_damaged_body_is_found_when_asked_for_and_fields_that_do_not_fit_are_refused():
    damaged = GOLDEN_BYTES.replace(b"hello", b"jello")
    assert decode_record(damaged).body == b"jello"
    with pytest.raises(RecordError, match="crc"):
        decode_record(damaged, verify_crc=True)
    with pytest.raises(RecordError, match="T1"):
        encode_record(msgspec.structs.replace(GOLDEN, queue_id=2**31))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("localhost:1", ("localhost", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65_535)), ("[::1]:9876", ("::1", 9876))),
        ("broker_a.example.:10911", ("broker_a.example.", 10_911)),
        ("bücher.example:80", ("bücher.example", 80)),
    ],
)
def test_addresses_are_split_as_people_write_them(text, expected):
    assert split_host_port(text) == expected


@given(st.text(max_size=80) | st.text("a.:[]0", max_size=12))
def test_an_address_is_split_or_a_value_error(text):
    try:
        host, port = split_host_port(text)
    except ValueError:
        return
    host.encode("idna")
    assert 0 < port < 65_536


# Ids


@given(hosts, st.integers(0, 2**63 - 1))
def test_hosts_and_offset_message_ids_survive(host, offset):
    assert unpack_host(pack_host(host)) == HostAddress(str(host.ip), host.port)
    message_id = offset_message_id(host, offset)
    assert len(message_id) == (56 if ":" in host.ip else 32)
    assert parse_offset_message_id(message_id) == (host, offset)
    assert (b"%b%016X" % (offset_message_id_prefix(host), offset)).decode() == message_id


def test_an_invalid_offset_message_id_is_refused():
    for message_id in ("", "xyz", "0A00000100002A9F", "0A" * 20, "0A" * 400):
        with pytest.raises(InvalidParameter, match="offset message id"):
            parse_offset_message_id(message_id)


def test_unique_keys_are_unique_over_counter_wrap_and_month_end():
    keys = UniqueKeyGenerator("10.0.0.1", 70000, -1)
    end_of_month_ms = 1_701_388_800_000  # 2023-12-01T00:00:00Z
    assert keys.next(end_of_month_ms - 1) == "0A0000011170FFFFFFFF9A7EC7FF0001"
    assert keys.next(end_of_month_ms) == "0A0000011170FFFFFFFF000000000002"
    assert len({keys.next(end_of_month_ms + 1) for _ in range(65536)}) == 65536
    assert len(UniqueKeyGenerator("::1", 1, 1).next(0)) == 56


# Properties

property_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=8)
properties = st.dictionaries(property_text.filter(bool), property_text, max_size=5)


@given(properties, st.booleans())
def test_properties_survive_with_and_without_the_last_separator(pairs, drop_last):
    data = format_properties(pairs)
    if drop_last and data:
        data = data[:-1]
    assert parse_properties(data) == pairs
    assert parse_properties(data.encode()) == pairs
    for name, value in pairs.items():
        assert find_property(data.encode(), name.encode()) == value.encode()


def test_the_last_value_of_a_property_counts_and_no_name_is_found_inside_another():
    data = b"KEYS\x01a\x02TAGS\x01t\x02KEYS\x01b"
    assert parse_properties(data) == {"KEYS": "b", "TAGS": "t"}
    assert find_property(data, b"KEYS") == b"b"
    inside = b"XKEYS\x01a\x02TAGS\x01KEYS\x02"
    assert find_property(inside, b"KEYS") is None
    assert find_property(inside, b"TAGS") == b"KEYS"


def test_properties_that_would_break_the_text_are_refused():
    for pair in (("", "v"), ("a\x01", "v"), ("a", "v\x02")):
        with pytest.raises(ValueError, match="property"):
            format_properties(dict([pair]))


pieces = st.sampled_from([b"\x01", b"\x02", b"v", b"KEYS", b"X", *sorted(BROKER_OWNED_NAMES)])


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_removing_broker_owned_properties_keeps_all_others(data):
    left = without_broker_owned(data)
    assert without_broker_owned(left) == left
    assert all(find_property(left, name) is None for name in BROKER_OWNED_NAMES)
    owned = {name.decode() for name in BROKER_OWNED_NAMES}
    before = parse_properties(data)
    assert list(parse_properties(left).items()) == [pair for pair in before.items() if pair[0] not in owned]
    if not owned & before.keys():
        assert left == data


@given(st.binary(max_size=60), st.binary(min_size=1, max_size=4))
def test_any_property_bytes_can_be_read(data, name):
    parse_properties(data)
    find_property(data, name)


# Batches

batch_messages = st.builds(BatchMessage, int32, st.binary(max_size=20), st.binary(max_size=20))


@given(st.lists(batch_messages, min_size=1, max_size=5))
def test_a_batch_survives_with_the_layout_of_the_protocol(messages):
    assert decode_batch(encode_batch(messages)) == messages
    data = encode_batch([BatchMessage(5, b"xy", b"p")])
    assert data.hex() == "00000019000000000000000000000005000000027879000170"


@given(st.lists(batch_messages, min_size=1, max_size=3), st.data())
def test_a_truncated_batch_is_illegal(messages, data):
    encoded = encode_batch(messages)
    boundaries = {len(encode_batch(messages[:count])) for count in range(1, len(messages) + 1)}
    cut = data.draw(st.integers(0, len(encoded) - 1).filter(lambda size: size not in boundaries))
    with pytest.raises(MessageIllegal):
        decode_batch(encoded[:cut])


@given(
    st.lists(
        st.builds(BatchMessage, int32, st.binary(min_size=3, max_size=3), st.just(b"K\x01v")), min_size=2, max_size=5
    ),
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 3, 15, 16, 19, 24]), st.sampled_from([-3, -1, 1, 128])),
        max_size=2,
    ),
)
def test_batches_of_similar_messages_are_split_as_the_general_path_does(messages, changes):
    """The batch consists of equal sizes, but some length field differs from the size that its place suggests."""
    data = bytearray(encode_batch(messages))
    size = len(data) // len(messages)
    for number, place, change in changes:
        at = number % len(messages) * size + place
        data[at] = (data[at] + change) % 256
    outcomes = []
    for split in (batch.split_batch, batch._split):
        try:
            outcomes.append(split(bytes(data)))
        except MessageIllegal as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@given(st.binary(max_size=60))
def test_garbage_is_an_illegal_batch_or_a_batch(data):
    try:
        decode_batch(data)
    except MessageIllegal:
        return
