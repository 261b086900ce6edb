"""The fast paths of sends and pulls return the same as the general path, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.command import RemotingCommand, decode_command, encode_json_header
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.headers import (
    PullMessageHeader,
    PullResponseHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.hotpath import decode_pull_json, decode_send_v2_json, pull_response_head, send_response_frame

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)

JAVA_SEND = (
    b'{"code":310,"extFields":{"a":"PG","b":"T1","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0",'
    b'"i":"UNIQ_KEY\\u00010A\\u0002KEYS\\u0001k1","j":"0","k":"false","l":"0","m":"false","n":"broker-a"},"flag":0,'
    b'"language":"JAVA","opaque":12,"serializeTypeCurrentRPC":"JSON","version":435}'
)


def read(data: bytes) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.receive_data(data)
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.next_frame() is None
    return decode_command(frame)


def test_a_java_send_is_read_from_its_bytes():
    send = decode_send_v2_json(JAVA_SEND)
    assert send is not None
    assert (send.code, send.opaque, send.flag, send.version, send.language) == (310, 12, 0, 435, "JAVA")
    general = SendMessageHeader.decode(decode_command(Frame(0, JAVA_SEND, b"")).ext)
    fast = send.ext
    assert (fast.topic, fast.queue_id, fast.born_timestamp) == (general.topic, general.queue_id, general.born_timestamp)
    assert (fast.properties, fast.batch, fast.user_flag) == (general.properties, general.batch, general.flag)


def test_raw_numbers_and_booleans_are_read_too():
    raw = JAVA_SEND
    for text, value in ((b'"d":"4"', b'"d":4'), (b'"k":"false"', b'"k":false'), (b'"m":"false"', b'"m":"1"')):
        raw = raw.replace(text, value)
    send = decode_send_v2_json(raw)
    assert send is not None
    assert (send.ext.default_topic_queue_nums, send.ext.unit_mode, send.ext.batch) == (4, False, True)


UNUSUAL = [
    *(b"", b"{}", b"\xff", b"[" * 100_000),
    *(JAVA_SEND.replace(b'"e":"1"', b'"e":"%b"' % queue_id) for queue_id in (b"x", b"2147483648")),
    *(JAVA_SEND.replace(b'"b":"T1",', b""), JAVA_SEND.replace(b'"i":"UNIQ', b'"i":"\xff')),
]


@given(st.binary(max_size=60))
def test_unusual_headers_and_garbage_are_left_to_the_general_path(garbage):
    for header in (*UNUSUAL, garbage):
        assert decode_send_v2_json(header) is None
        assert decode_pull_json(header) is None


@given(st.builds(PullMessageHeader, text, text, int32, int64, int32, int32, int64, int64, int64, subscription=text))
def test_a_pull_is_the_same_on_both_paths(header):
    command = RemotingCommand(11, opaque=3, ext=encode_ext(header))
    pull = decode_pull_json(encode_json_header(command))
    assert pull is not None
    for name in ("consumer_group", "topic", "queue_id", "queue_offset", "sys_flag", "sub_version", "subscription"):
        assert getattr(pull.ext, name) == getattr(header, name)


@pytest.mark.parametrize("serialize_type", [0, 1])
@given(transaction_id=text, remark=st.none() | text, opaque=int32, offset=st.integers(0, 2**63 - 1))
def test_a_send_response_reads_back(serialize_type, transaction_id, remark, opaque, offset):
    """The unique key is a text of the client's choice. No content of it may break the frame."""
    message_id = "0A00000100002A9F0000000000000400"
    sent = (opaque, message_id.encode(), 3, offset, transaction_id.encode(), 0, remark, serialize_type)
    answer = read(send_response_frame(*sent))
    assert (answer.code, answer.opaque, answer.serialize_type) == (0, opaque, serialize_type)
    assert answer.is_response
    assert answer.remark == (remark or None)
    header = decode_ext(SendMessageResponseHeader, answer.ext)
    assert (header.msg_id, header.queue_id, header.queue_offset) == (message_id, 3, offset)
    assert header.transaction_id == (transaction_id or None)


def test_a_unique_key_that_is_not_utf8_cannot_break_the_frame():
    assert read(send_response_frame(1, b"0A", 0, 0, b'"\xff')).ext["transactionId"] == '"�'


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_a_pull_response_reads_back_with_the_body_behind_it(serialize_type):
    body = b"records"
    head = pull_response_head(9, 0, 10, 2, 20, 1, len(body), 'FO"UND', serialize_type)
    answer = read(head + body)
    assert (answer.code, answer.opaque, answer.remark, answer.body) == (0, 9, 'FO"UND', body)
    assert decode_ext(PullResponseHeader, answer.ext) == PullResponseHeader(1, 10, 2, 20)
    assert all(isinstance(value, str) for value in answer.ext.values())
