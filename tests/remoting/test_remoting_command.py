"""Commands: both header serializers, requests of real clients, and answers that they can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.codes import LanguageCode, RequestCode
from dledger_remoting.command import MAX_MENDED_BYTES, RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import Frame, FrameDecoder

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
int32 = st.integers(-(2**31), 2**31 - 1)


def reread(command: RemotingCommand) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.receive_data(encode_command(command))
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


commands = st.builds(
    RemotingCommand,
    code=st.integers(-32767, 32767),
    opaque=int32,
    flag=st.integers(0, 3),
    language=st.sampled_from(LanguageCode),
    version=st.integers(0, 32767),
    remark=st.none() | text.filter(bool),
    ext=st.dictionaries(text, text, max_size=5),
    body=st.binary(max_size=20),
    serialize_type=st.sampled_from([0, 1]),
)


@given(commands)
def test_a_command_survives_both_serializers(command):
    assert reread(command) == command


def test_the_json_frame_is_compact_with_fields_in_javas_order():
    command = RemotingCommand(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=7, ext={"topic": "T1"}, remark="r", body=b"abc"
    )
    assert encode_command(command) == (
        b"\x00\x00\x00\x90\x00\x00\x00\x89"
        b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,"remark":"r",'
        b'"serializeTypeCurrentRPC":"JSON","version":479}abc'
    )


def test_the_binary_frame_has_the_layout_of_the_protocol():
    command = RemotingCommand(
        34, opaque=5, flag=1, language=LanguageCode.GO, version=317, ext={"a": "bc"}, remark="ok", serialize_type=1
    )
    parts = (
        *("00000024", "01000020"),  # total length; type 1 and header length
        *("0022", "09", "013d", "00000005", "00000001"),  # code, language, version, opaque, flag
        *("00000002", "6f6b"),  # remark
        *("00000009", "0001", "61", "00000002", "6263"),  # ext fields
    )
    assert encode_command(command).hex() == "".join(parts)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        *((b'"7"', "7"), (b"7", "7"), (b"-1", "-1"), (b"1.0", "1"), (b"1700000000000", "1700000000000"), (b'"1"', "1")),
        *((b"true", "true"), (b"false", "false"), (b"null", None)),
        *((b'"\\u0001\\u00e9"', "\x01é"), (b'"\x01\x02"', "\x01\x02")),
        (b'"\\ud83d \\ude00 \\ud83d\\ude00 \\\\ud83d"', "? ? 😀 \\ud83d"),
    ],
)
def test_ext_values_of_every_kind_become_text(raw, expected):
    command = decode_command(Frame(0, b'{"code":10,"opaque":0,"extFields":{"k":%b}}' % raw, b""))
    assert command.ext.get("k") == expected


def test_a_request_as_ali_ons_sends_it_is_read():
    header = (
        b'{"code":310,"language":"JAVA","version":121,"opaque":1,"flag":0,"remark":null,'
        b'"extFields":{"b":"T1","d":4,"k":false,"i":null}}'
    )
    command = decode_command(Frame(0, header, b""))
    assert command.ext == {"b": "T1", "d": "4", "k": "false"}
    assert (command.version, command.remark) == (121, None)


def test_missing_header_parts_have_defaults_and_a_code_beyond_16_bits_travels_as_json():
    for tail in (b"", b',"extFields":null', b',"unknown":[{"x":1}]'):
        command = decode_command(Frame(0, b'{"code":15%b}' % tail, b""))
        assert (command.opaque, command.flag, command.version, command.ext) == (0, 0, 0, {})
    popping = reread(RemotingCommand(RequestCode.POP_MESSAGE, serialize_type=1))
    assert (popping.code, popping.serialize_type) == (200050, 0)


def test_flag_bits_tell_responses_and_oneway_requests():
    flags = [RemotingCommand(34, flag=flag) for flag in range(4)]
    assert [command.is_response for command in flags] == [False, True, False, True]
    assert [command.is_oneway for command in flags] == [False, False, True, False]


@pytest.mark.parametrize(
    ("said", "language"), [(b'"GO"', "GO"), (b"1", "CPP"), (b'"KLINGON"', "OTHER"), (b"99", "OTHER")]
)
def test_languages_come_as_names_or_numbers(said, language):
    assert decode_command(Frame(0, b'{"code":34,"language":%b}' % said, b"")).language is LanguageCode[language]


@pytest.mark.parametrize(
    "header",
    [
        *(b"", b"null", b"[]", b"{}", b'{"code":"x"}', b'{"code":99999999999}', b'{"code":10}\xff'),
        b'{"code":10,"extFields":{"a":[1]}}',
        b'{"code":10,"extFields":{"a":"%b\\ud800"}}' % (b"x" * MAX_MENDED_BYTES),
        b'{"code":10,"extFields":{"a":"\\ud800"},}',
        b'{"code":10,"extFields":{"a":' + b"9" * 5000 + b"}}",
        b'{"code":10,"x":' + b"[" * 100_000,
        b'{"code":10,"remark":"\xff"}',
    ],
)
def test_a_json_header_that_cannot_be_read_is_a_frame_error(header):
    with pytest.raises(FrameError):
        decode_command(Frame(0, header, b""))


BINARY_HEAD = "00220000000000000000000000"


@pytest.mark.parametrize(
    "rest",
    [
        *("", "0000", "ffffffff", "000000056161", "00000000000000030001ff"),
        *("000000000000000500016100000009", "0000000000000002ffff"),
    ],
)
def test_a_binary_header_that_cannot_be_read_is_a_frame_error(rest):
    with pytest.raises(FrameError):
        decode_command(Frame(1, bytes.fromhex(BINARY_HEAD + rest), b""))


def test_invalid_utf8_in_a_binary_header_is_replaced():
    header = bytes.fromhex(BINARY_HEAD + "00000001ff" + "00000009" + "000161" + "0000000278ff")
    command = decode_command(Frame(1, header, b""))
    assert (command.remark, command.ext) == ("\ufffd", {"a": "x\ufffd"})


@given(st.sampled_from([0, 1]), st.binary(max_size=80))
def test_garbage_in_a_header_raises_nothing_but_a_frame_error(serialize_type, header):
    try:
        decode_command(Frame(serialize_type, header, b""))
    except FrameError:
        return


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_an_answer_keeps_opaque_and_serializer_of_its_request(serialize_type):
    request = RemotingCommand(11, opaque=-5, flag=0, serialize_type=serialize_type)
    answer = reread(make_response(request, 19, "nothing", {"minOffset": "0"}, b"b"))
    assert (answer.code, answer.opaque, answer.remark, answer.body) == (19, -5, "nothing", b"b")
    assert answer.ext == {"minOffset": "0"}
    assert answer.is_response
    assert answer.serialize_type == serialize_type
