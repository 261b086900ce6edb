"""A header that costs more than it declares is refused before it is decoded, and its request is still answered."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.command import RemotingCommand, encode_binary_header, encode_json_header
from dledger_remoting.request_limits import (
    MAX_EXT_FIELDS,
    MAX_REQUEST_HEADER_BYTES,
    SMALL_HEADER_BYTES,
    header_fault,
    undecoded,
)

ENCODERS = {0: encode_json_header, 1: encode_binary_header}


def command(ext: dict[str, str], flag: int = 0) -> RemotingCommand:
    return RemotingCommand(105, opaque=-77, flag=flag, ext=ext)


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_the_fields_and_bytes_of_a_header_are_limited(serialize_type: int) -> None:
    def encoded(ext: dict[str, str]) -> bytes:
        return ENCODERS[serialize_type](command(ext))

    room = MAX_REQUEST_HEADER_BYTES - len(encoded({"i": ""}))
    fields, many = (
        {f"field-{number}": ":" * 8 for number in range(count)} for count in (MAX_EXT_FIELDS, MAX_EXT_FIELDS + 40)
    )
    for taken in (fields, {"i": '"a":1,\\"' * 20_000}, {"i": "x" * room}):
        assert not header_fault(serialize_type, encoded(taken))
    for refused in (many, {"i": "x" * (room + 1)}):
        assert header_fault(serialize_type, encoded(refused))


@pytest.mark.parametrize(
    "header",
    [
        *(encode(command({str(number): "}" for number in range(90_000)}, flag=2)) for encode in ENCODERS.values()),
        json.dumps({"code": 105, "opaque": -77, "flag": 2, "extFields": {str(n): "" for n in range(9)}}).encode(),
        json.dumps({"extFields": {str(n): "" for n in range(9)}, "flag": 2, "opaque": -77, "code": 105}).encode(),
        json.dumps({"code": 105, "opaque": -77, "flag": 2, "remark": "x" * 300_000}).encode(),
    ],
)
def test_the_request_is_known_without_its_fields(header: bytes) -> None:
    request = undecoded(int(header[:1] != b"{"), header)
    assert request is not None
    assert (request.code, request.opaque, request.is_oneway, request.ext) == (105, -77, True, {})


@pytest.mark.parametrize("header", [b"", b"{}", b'{"extFields":{"code":1,"opaque":2}}', b'{"code":1' + b" " * 2000])
def test_a_request_without_a_number_is_not_known(header: bytes) -> None:
    assert undecoded(0, header) is None


@pytest.mark.parametrize("piece", [b'\\"', b'"', b'":', b'"\\', b'" ', b'{"', b":", b' "":'])
def test_no_header_makes_the_count_of_its_fields_slow(piece: bytes) -> None:
    """A search that starts again at each quote would take minutes, beyond the time limit of the test suite."""
    header_fault(0, b'{"' + piece * (MAX_REQUEST_HEADER_BYTES // len(piece) - 2))


@given(st.binary(max_size=64), st.sampled_from([0, 1]))
def test_garbage_is_left_to_the_decoder(garbage: bytes, serialize_type: int) -> None:
    undecoded(serialize_type, garbage)
    padded = garbage + struct.pack(">i", -1) * SMALL_HEADER_BYTES
    header_fault(serialize_type, padded)
    undecoded(serialize_type, padded)
