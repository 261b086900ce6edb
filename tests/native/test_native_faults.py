"""A fault of the native part ends only its call. The twin does the work, and the log reports the fault once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dledger_base import native_part
from dledger_broker.views import keyscan, reading, scan, stamps
from dledger_broker.views.units import UNIT
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

native = pytest.importorskip("dledger_native", reason="the native part is not built (make native)")

HOST = HostAddress("10.0.0.9", 4000)
RECORD = encode_record(
    MessageRecord(
        topic="A",
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        body=b"body",
        properties=b"UNIQ_KEY\x01k\x02",
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=4,
        store_host=HOST,
    )
)
UNITS = UNIT.pack(1000, 100, 0) + UNIT.pack(1100, 100, 0)
SELECT = UNITS, 7, 0, 90, 32, 2_500, None, 1000


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Use the native part, and yield the list of reported faults."""
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(native_part, "PART", native)
    native.on_panic(lambda function, said: told.append((function, said)))
    yield told
    native.panic_at_next("")
    native.on_panic(native_part._log_panic)


CALLS = {
    "scan_runs": lambda: native.scan_runs(RECORD, 0),
    "scan_keys": lambda: native.scan_keys(RECORD, [(0, len(RECORD))]),
    "select_units": lambda: native.select_units(UNITS, 32, 2_500, None, 0, True),
    "stamp_units": lambda: native.stamp_units([(UNITS, 7)]),
}
RAISING = {
    "take": lambda: native.SendRun().take([], 0, 0, 0.0, print, 1000, 1000),
    "targets": lambda: native.SendRun().targets(),
    "requests": lambda: native.SendRun().requests(),
    "encode": lambda: native.SendRun().encode(0, 0, bytes(8), b""),
    "answers": lambda: native.SendRun().answers(),
}


@pytest.mark.parametrize("function", CALLS)
def test_a_native_function_that_panics_leaves_the_call_to_its_python_twin(
    function: str, told: list[tuple[str, str]]
) -> None:
    assert CALLS[function]() is not None
    for _ in range(2):
        native.panic_at_next(function)
        assert CALLS[function]() is None
        assert CALLS[function]() is not None
    ((name, said),) = told
    assert name == function
    assert said.startswith("panicked at src/guard.rs:")
    assert said.endswith("asked for by a test")


@pytest.mark.parametrize("function", RAISING)
def test_a_panic_without_a_python_twin_raises_an_exception(function: str, told: list[tuple[str, str]]) -> None:
    RAISING[function]()
    native.panic_at_next(function)
    with pytest.raises(native.Panicked, match=f"the native part panicked in {function}"):
        RAISING[function]()
    assert issubclass(native.Panicked, Exception)
    assert [name for name, _ in told] == [function]


def test_pulls_of_a_turn_are_all_left_to_the_twin(told: list[tuple[str, str]]) -> None:
    asks = [(UNITS, -1, 0, 0, 0, 0, 32, 2_500, None)] * 2
    assert native.read_pulls(asks, (-1, 0, -1), 0) == [(2, 2, 200, 1000, None)] * 2
    native.panic_at_next("read_pulls")
    assert native.read_pulls(asks, (-1, 0, -1), 0) == [None, None]
    assert [name for name, _ in told] == ["read_pulls"]


def test_callers_get_the_result_of_the_python_twin_after_a_panic() -> None:
    for function, call in {
        "scan_runs": lambda: scan.scan_runs(RECORD, 7),
        "scan_keys": lambda: keyscan.scan_keys(RECORD, [(0, len(RECORD))]).tolist(),
        "select_units": lambda: reading.select(*SELECT),
        "stamp_units": lambda: stamps.stamped([(UNITS, 7)]),
    }.items():
        expected = call()
        native.panic_at_next(function)
        assert call() == expected


def test_a_panic_callback_that_raises_does_not_stop_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda hooked: unraisable.append(hooked.exc_type))
    native.on_panic(lambda *_: 1 / 0)
    native.panic_at_next("scan_runs")
    assert native.scan_runs(RECORD, 0) is None
    assert unraisable == [ZeroDivisionError]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    native.panic_at_next("scan_runs")
    assert native.scan_runs(RECORD, 0) is None
    assert capfd.readouterr() == ("", "")
