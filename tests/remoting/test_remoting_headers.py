"""Typed headers: both name forms of a send, tolerant booleans, errors that name field, value and expectation."""

import inspect

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting import headers
from dledger_remoting.errors import HeaderFieldError
from dledger_remoting.headers import (
    PullMessageHeader,
    QueryConsumerOffsetHeader,
    RegisterBrokerHeader,
    SendMessageHeader,
    UnregisterClientHeader,
    decode_ext,
    encode_ext,
)

HEADER_TYPES = [
    getattr(headers, name)
    for name in headers.__all__
    if inspect.isclass(getattr(headers, name)) and issubclass(getattr(headers, name), msgspec.Struct)
]

SEND = SendMessageHeader("PG", "T1", "TBW102", 4, -1, 0, 1700000000000, 0, "KEYS\x01k\x02", batch=True)


def wire_value(draw: st.DrawFn, annotation: object) -> str | int | bool:
    names = repr(annotation)
    if "bool" in names:
        return draw(st.booleans())
    if "int" in names:
        return draw(st.integers(-(2**31), 2**31 - 1))
    return draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))


@st.composite
def any_header(draw: st.DrawFn) -> msgspec.Struct:
    header_type = draw(st.sampled_from(HEADER_TYPES))
    values = {
        field.name: wire_value(draw, field.type)
        for field in msgspec.structs.fields(header_type)
        if field.required or draw(st.booleans())
    }
    return header_type(**values)


@given(any_header())
def test_every_header_survives_the_wire(header):
    assert decode_ext(type(header), encode_ext(header)) == header


def test_a_send_has_long_names_or_letters():
    letters = SEND.encode_letters()
    assert letters == {
        "a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1700000000000", "h": "0",
        "i": "KEYS\x01k\x02", "m": "true",
    }  # fmt: skip
    assert SendMessageHeader.decode(letters) == SEND
    assert SendMessageHeader.decode(encode_ext(SEND)) == SEND


def test_booleans_are_true_for_true_and_one_only_and_unknown_fields_are_ignored():
    """Empty optional numbers are ignored too."""
    for value in ("true", "TRUE", "1", "false", "0", "yes", ""):
        expected = value in {"true", "TRUE", "1"}
        assert SendMessageHeader.decode({**encode_ext(SEND), "batch": value}).batch is expected
    ext = {**encode_ext(SEND), "AccessKey": "k", "bname": "b", "reconsumeTimes": ""}
    assert SendMessageHeader.decode(ext) == SEND


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queueId": None}, ["'queueId'", "is missing", "32 bits"]),
        ({"queueId": "x"}, ["'queueId'", "'x'", "decimal number"]),
        ({"queueId": ""}, ["'queueId'", "''"]),
        ({"queueId": "2147483648"}, ["'queueId'", "2147483648", "32 bits"]),
        ({"bornTimestamp": "9223372036854775808"}, ["'bornTimestamp'", "64 bits"]),
        ({"topic": None}, ["'topic'", "is missing", "a text"]),
        ({"reconsumeTimes": "many"}, ["'reconsumeTimes'", "'many'"]),
    ],
)
def test_an_error_names_field_value_and_expectation(change, words):
    ext = {key: value for key, value in {**encode_ext(SEND), **change}.items() if value is not None}
    with pytest.raises(HeaderFieldError) as caught:
        decode_ext(SendMessageHeader, ext)
    for word in words:
        assert word in caught.value.remark


def test_an_absent_boolean_stays_distinct_from_false():
    header = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
    for more, expected in (({}, None), ({"setZeroIfNotFound": "false"}, False)):
        assert decode_ext(QueryConsumerOffsetHeader, header | more).set_zero_if_not_found is expected


def test_field_names_are_those_of_the_protocol():
    assert list(encode_ext(UnregisterClientHeader("c", "p", ""))) == ["clientID", "producerGroup", "consumerGroup"]
    assert "bodyCrc32" in encode_ext(RegisterBrokerHeader("b", "a", "c", "h", 0))
    pull = encode_ext(PullMessageHeader("g", "t", 0, 0, 32, 2, 0, 15000, 0, proxy_froward_client_id="x"))
    assert "proxyFrowardClientId" in pull


@given(
    st.dictionaries(st.sampled_from(["consumerGroup", "topic", "queueId", "setZeroIfNotFound"]), st.text(max_size=6))
)
def test_garbage_raises_nothing_but_a_header_error(ext):
    try:
        decode_ext(QueryConsumerOffsetHeader, ext)
    except HeaderFieldError:
        return
