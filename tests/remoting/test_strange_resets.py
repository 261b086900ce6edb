"""Malformed bodies of resets (220, 221, 223) are read, or refused with the documented error."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.codes import LanguageCode
from dledger_remoting.errors import BodyError
from dledger_remoting.fastjson import encode_fastjson
from dledger_remoting.integers import MAX_INT32, MAX_INT64
from dledger_remoting.resets import (
    decode_reset,
    decode_status,
    decode_statuses,
    encode_reset,
    encode_status,
    encode_statuses,
)
from dledger_remoting.topics import MessageQueue

Offsets = Mapping[MessageQueue, int]

TABLES: Final[dict[str, Callable[[bytes], object]]] = {
    "offsetTable": decode_reset,
    "messageQueueTable": decode_status,
    "consumerTable": decode_statuses,
}
"""Decoders by the names of their tables."""
decoders = pytest.mark.parametrize("decode", TABLES.values())
tables = pytest.mark.parametrize("name", TABLES)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
queues = st.builds(MessageQueue, texts, st.integers(-(2**31), MAX_INT32), texts)
offset_tables = st.dictionaries(queues, st.integers(0, MAX_INT64), max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
queue_fields = st.fixed_dictionaries(
    {}, optional={"brokerName": texts | json_values, "queueId": st.integers(0, 9) | json_values, "topic": json_values}
)
keys = queue_fields.map(json.dumps) | st.text(max_size=8)


def is_table(found: object) -> bool:
    """Return whether this is a table of queues with offsets, as its type declares."""
    return isinstance(found, dict) and all(
        (type(queue), type(queue.topic), type(queue.broker_name), type(queue.queue_id), type(offset))
        == (MessageQueue, str, str, int, int)
        for queue, offset in found.items()
    )


def decoded(decode: Callable[[bytes], object], body: bytes) -> None:
    """Check that a body is read, or refused as documented."""
    try:
        found = decode(body)
    except BodyError:
        return
    assert isinstance(found, dict)
    assert all(map(is_table, found.values())) if decode is decode_statuses else is_table(found)


@given(offset_tables, st.text(max_size=4).filter(lambda name: not any("\ud800" <= c <= "\udfff" for c in name)))
def test_encoded_offset_tables_are_read_back_equal(offsets: Offsets, client: str) -> None:
    assert decode_reset(encode_reset(offsets)) == offsets
    assert decode_status(encode_status(offsets)) == offsets
    table = {queue: offset for queue, offset in offsets.items()}  # noqa: C416 -- keys widen
    assert encode_reset(offsets) == encode_fastjson({"offsetTable": table}), "by the long way"
    assert decode_statuses(encode_statuses({client: offsets})) == {client: offsets}


@decoders
@given(st.binary(max_size=60) | st.text('{}[]":,0-9a\\ \n', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    decoded(decode, body)


@tables
@given(json_values)
def test_any_value_in_place_of_a_table_is_read_or_refused(name: str, value: object) -> None:
    decoded(TABLES[name], json.dumps({name: value}).encode())
    decoded(TABLES[name], json.dumps({name: {"c1": value}}).encode())


@tables
@given(st.dictionaries(keys, st.integers(0, 99) | json_values, max_size=3))
def test_tables_with_any_keys_and_offsets_are_read_or_refused(name: str, table: dict[str, object]) -> None:
    body = {name: {"c1": table}} if name == "consumerTable" else {name: table}
    decoded(TABLES[name], json.dumps(body).encode())


@given(offset_tables, st.data())
def test_corrupted_offset_tables_are_read_or_refused(offsets: Offsets, data: st.DataObject) -> None:
    """The bodies are in fastjson's dialect, whose keys are objects that no parser of JSON accepts."""
    for encoded, decode in (
        (encode_reset(offsets), decode_reset),
        (encode_reset(offsets, LanguageCode.CPP), decode_reset),
        (encode_status(offsets), decode_status),
        (encode_statuses({"c1": offsets}), decode_statuses),
    ):
        body = bytearray(encoded)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(body)))
            body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        decoded(decode, bytes(body))


@pytest.mark.parametrize("opening", [b"{", b'{"offsetTable":', b'{"offsetTable":{', b"[", b'{"offsetTable":{{"topic":'])
@decoders
def test_a_body_that_is_nested_without_end_is_refused(decode: Callable[[bytes], object], opening: bytes) -> None:
    with pytest.raises(BodyError):
        decode(opening * 20_000)


@tables
def test_an_offset_that_no_queue_has_is_refused(name: str) -> None:
    key = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T"})
    in_front = [-1, -(2**63), "-1"] if name == "offsetTable" else []
    for offset in (2**63, 2**64, "9223372036854775808", *in_front):
        table = {key: offset}
        with pytest.raises(BodyError):
            TABLES[name](json.dumps({name: {"c1": table} if name == "consumerTable" else table}).encode())
