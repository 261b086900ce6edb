"""The native scanners of records read the same as their twins, of any bytes, and leave unsound data to them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_base import native_part
from dledger_broker.views import keyscan, scan
from dledger_remoting.errors import RecordError
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

LOG_POSITION = 10_000
HOST, HOST_V6 = HostAddress("10.0.0.9", 4000), HostAddress("fe80::1", 4000)
NAMES = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"MYTAGS", b"K", b""])
VALUES = st.one_of(
    st.sampled_from([b"", b"T", b"a b", b" a  b ", b"a", "ä".encode(), b"\xff", b"polygenelubricants", b"k" * 300]),
    st.binary(max_size=6),
)
PROPERTIES = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
        lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)
    ),
    st.binary(max_size=40),
)
OFFSETS = st.one_of(st.integers(0, 6), st.sampled_from([-5, -1, 2**63 - 2, 2**63 - 1]))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Draw a record of any kind."""
    return encode_record(
        MessageRecord(
            topic=draw(st.sampled_from(["A", "A", "A", "B", "Ä", "long" * 40])),
            queue_id=draw(st.sampled_from([0, 0, 0, 1, 2, -1, 2**31 - 1])),
            queue_offset=draw(OFFSETS),
            physical_offset=draw(st.integers(0, 2**63 - 1)),
            body=draw(st.sampled_from([b"", b"x", b"TAGS\x01body", bytes(300)])),
            properties=draw(PROPERTIES),
            sys_flag=draw(st.sampled_from([0, 0, 1, 4, 8, 12])),
            born_timestamp=1,
            born_host=draw(st.sampled_from([HOST] * 9 + [HOST_V6])),
            store_timestamp=draw(st.integers(0, 2**63 - 1)),
            store_host=HOST,
        )
    )


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Draw records of one producer or of several, sometimes with bytes changed, cut off or inserted."""
    data = b"".join(draw(st.lists(records(), max_size=8)))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(["set", "cut", "put", "end"]))
        some = draw(st.binary(min_size=1, max_size=4))
        if change == "set":
            data = data[:at] + some + data[at + len(some) :]
        elif change == "put":
            data = data[:at] + some + data[at:]
        else:
            data = data[:at] + (data[at + len(some) :] if change == "cut" else b"")
    return data


def same_runs(data: bytes, log_position: int) -> bool:
    """Check that the native part finds nothing or the same as its twin. Return whether it found anything."""
    found = native.scan_runs(data, log_position)
    assert found == native.scan_runs(memoryview(data), log_position)
    if found is None:
        return False
    assert found == scan._scan_one_by_one(data, log_position)
    return True


def same_keys(data: bytes, spans: list[tuple[int, int]]) -> bool:
    """Check the same for keys."""
    found = native.scan_keys(data, spans)
    if found is None:
        return False
    assert np.array_equal(np.frombuffer(found, keyscan.KEYS_TYPE), keyscan._scan_in_python(data, spans))
    return True


@given(entries(), st.sampled_from([0, LOG_POSITION, 2**63 - 200, 2**63 - 1]))
def test_native_units_equal_those_of_the_twin(data: bytes, log_position: int) -> None:
    same_runs(data, log_position)


@given(st.lists(entries(), max_size=3), st.binary(max_size=9))
def test_native_keys_equal_those_of_the_twin(pieces: list[bytes], between: bytes) -> None:
    data, spans = b"", []
    for piece in pieces:
        spans.append((len(data), len(data) + len(piece)))
        data += piece + between
    same_keys(data, spans)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_nothing_or_the_twins_result(data: bytes) -> None:
    same_runs(data, 0)
    same_keys(data, [(0, len(data))])


def usual(number: int, **changed: object) -> bytes:
    fields = {
        "topic": "A",
        "queue_id": number % 3,
        "queue_offset": number // 3,
        "physical_offset": number,
        "body": b"body",
        "properties": b"UNIQ_KEY\x01%032X\x02TAGS\x01T%d\x02KEYS\x01a b\x02" % (number, number % 2),
        "born_timestamp": 1,
        "born_host": HOST,
        "store_timestamp": 2,
        "store_host": HOST,
    }
    return encode_record(MessageRecord(**(fields | changed)))


def test_usual_records_are_read_by_the_native_part() -> None:
    data = b"".join(usual(number) for number in range(90))
    assert same_runs(data, LOG_POSITION)
    assert same_keys(data, [(0, len(data))])
    assert len(native.scan_keys(data, [(0, len(data))])) == 90 * 3 * keyscan.KEYS_TYPE.itemsize


@pytest.mark.parametrize("length", [0, 1, 90, 91, 100])
def test_truncated_records_are_left_to_the_twin(length: int) -> None:
    data = usual(1) + usual(2)[:length]
    assert (native.scan_runs(data, 0) is None) == (length > 0)
    assert (native.scan_keys(data, [(0, len(data))]) is None) == (length > 0)


def test_a_span_behind_the_end_is_left_to_the_twin() -> None:
    data = usual(1)
    for span in ((0, len(data) + 1), (len(data) + 5, len(data) + 6), (2, 1)):
        assert native.scan_keys(data, [span]) is None


@pytest.mark.parametrize(
    "unusual",
    [{"born_host": HOST_V6}, {"topic": "long" * 40}, {"properties": "TAGS\x01ä".encode()}, {"queue_offset": -1}],
)
def test_unusual_records_are_left_to_the_twin(unusual: dict[str, object]) -> None:
    assert native.scan_runs(usual(1) + usual(2, **unusual), 0) is None


def test_the_native_scan_comes_first_and_broken_records_still_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_part, "PART", native)
    data = usual(1) + usual(2)
    with pytest.raises(RecordError):
        scan.scan_runs(data[:-1], 0)
    with pytest.raises(RecordError):
        keyscan.scan_keys(data[:-1], [(0, len(data) - 1)])
    keys = keyscan._scan_in_python(data, [(0, len(data))])
    monkeypatch.setattr(scan, "_scan_one_by_one", lambda *_: pytest.fail("it is not asked"))
    monkeypatch.setattr(keyscan, "_scan_in_python", lambda *_: pytest.fail("it is not asked"))
    assert scan.scan_runs(data, 0) == native.scan_runs(data, 0)
    assert np.array_equal(keyscan.scan_keys(data, [(0, len(data))]), keys)


def test_an_entry_of_many_records_that_look_alike_is_read_by_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native part is several times as fast as the column scanner."""
    data = b"".join(usual(2 * number, queue_id=0, queue_offset=number) for number in range(scan.MIN_COLUMNS_RECORDS))
    columns = scan._scan_columns(data, LOG_POSITION)
    assert columns is not None
    monkeypatch.setattr(native_part, "PART", native)
    monkeypatch.setattr(scan, "_scan_columns", lambda *_: pytest.fail("it is not asked"))
    assert scan.scan_runs(data, LOG_POSITION) == columns


def test_an_entry_of_many_queues_takes_time_linear_in_its_size() -> None:
    """A list of open runs that is searched for each record would take minutes here."""
    order = random.Random(5)
    numbers = [order.randrange(20_000) for _ in range(60_000)]
    data = b"".join(usual(0, queue_id=number, queue_offset=2 * place) for place, number in enumerate(numbers))
    assert len(native.scan_runs(data, 0)) == 60_000
