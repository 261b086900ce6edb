"""A class filter's process answers within its limits of time and memory, or is replaced."""

import threading
from collections.abc import Callable, Iterator

import pytest

from dledger_broker.features.class_filters import worker as worker_module
from dledger_broker.features.class_filters.worker import FilterFailedError, FilterWorker
from dledger_remoting.compression import compress
from dledger_remoting.hosts import HostAddress
from dledger_remoting.properties import format_properties
from dledger_remoting.record import MessageRecord, encode_record

HOST = HostAddress("10.0.0.1", 1)
MEMORY_BYTES = 128 << 20
PATIENT_MS = 20_000
MakeWorker = Callable[..., FilterWorker]


def record(body: bytes, offset: int = 0, sys_flag: int = 0, **properties: str) -> bytes:
    return encode_record(
        MessageRecord(
            topic="T1",
            queue_id=0,
            queue_offset=offset,
            physical_offset=0,
            body=body,
            properties=format_properties(properties).encode(),
            sys_flag=sys_flag,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=2,
            store_host=HOST,
        )
    )


@pytest.fixture
def make_worker() -> Iterator[MakeWorker]:
    made: list[FilterWorker] = []

    def make(function: str, timeout_ms: int = PATIENT_MS, module: str = "filters_of_tests") -> FilterWorker:
        made.append(FilterWorker(f"{module}:{function}", timeout_ms, MEMORY_BYTES))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a filter that has failed start again without a pause."""
    monkeypatch.setattr(worker_module, "_FIRST_PAUSE_SECONDS", 0.0)


def test_a_filter_sees_bodies_tags_and_properties(make_worker: MakeWorker) -> None:
    large = make_worker("large")
    packed, flag = compress(b"0000000000000000000500")
    assert large.judge(3, [record(b"5"), record(b"500") + record(packed, sys_flag=flag)]) == b"\0\1\1"
    assert large.judge(1, [record(b"101")]) == b"\1"
    red = make_worker("of_red_customers")
    some = [record(b"", TAGS="red", customer="a"), record(b"", TAGS="red"), record(b"", TAGS="blue", customer="a")]
    assert red.judge(3, some) == b"\1\0\0"


def test_output_of_a_filter_is_no_answer_its_input_is_empty_and_messages_may_be_large(make_worker: MakeWorker) -> None:
    assert make_worker("says_much").judge(2, [record(b"a"), record(b"x" * (4 << 20))]) == b"\1\1"


@pytest.mark.parametrize(
    ("function", "body", "timeout_ms", "why"),
    [
        ("loops", b"loop", 500, "longer than class_filter_timeout_ms = 500"),
        ("sleeps_without_alarm", b"loop", 500, "longer than class_filter_timeout_ms = 500"),
        ("eats", b"eat", PATIENT_MS, f"more than class_filter_memory_bytes = {MEMORY_BYTES}"),
        ("dies", b"die", PATIENT_MS, "ended with status 3"),
    ],
)
@pytest.mark.usefixtures("at_once")
def test_a_filter_process_that_hangs_grows_or_dies_is_replaced(
    make_worker: MakeWorker, function: str, body: bytes, timeout_ms: int, why: str
) -> None:
    worker = make_worker(function, timeout_ms)
    with pytest.raises(FilterFailedError, match=why):
        worker.judge(2, [record(b"good"), record(body)])
    assert worker.ended == 1
    worker._timeout_ms = PATIENT_MS  # the next start may be slow, which this test does not judge
    assert worker.judge(1, [record(b"good")]) == b"\1"
    assert worker.ended == 1


def test_a_process_without_its_node_ends_itself(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog runs without the node here: nobody waits for the answer, and nobody ends the process."""
    monkeypatch.setattr(worker_module, "_GRACE_SECONDS", 0.0)
    worker = make_worker("loops", 200)
    worker.load()
    process = worker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.write(worker_module.question(1, [record(b"loop")]))
    assert process.wait() == -worker_module.signal.SIGALRM


@pytest.mark.parametrize(
    ("module", "function", "why"),
    [
        ("no_such_module", "f", r"no_such_module:f cannot be loaded: ModuleNotFoundError"),
        ("filters_of_tests", "missing", "AttributeError"),
        ("filters_of_tests", "os", r"TypeError: filters_of_tests:os is no function"),
    ],
)
def test_a_class_filter_that_cannot_be_loaded_is_reported(
    make_worker: MakeWorker, module: str, function: str, why: str
) -> None:
    with pytest.raises(FilterFailedError, match=why):
        make_worker(function, module=module).load()


def test_a_failed_filter_process_pauses_before_its_restart_and_reports_why(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(worker_module, "_MAX_PAUSE_SECONDS", 1000.0)
    worker = make_worker("dies")
    with pytest.raises(FilterFailedError, match=r"ended with status 3$"):
        worker.judge(1, [record(b"die")])
    with pytest.raises(FilterFailedError, match=r"ended with status 3; its process starts again in \d+"):
        worker.judge(1, [record(b"good")])
    assert worker.ended == 1


def test_closing_a_filter_worker_releases_its_waiting_callers(make_worker: MakeWorker) -> None:
    worker = make_worker("loops")
    worker.load()
    told: list[str] = []

    def wait() -> None:
        with pytest.raises(FilterFailedError) as failure:
            worker.judge(1, [record(b"loop")])
        told.append(str(failure.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    worker.close()
    waiting.join()
    assert told
    with pytest.raises(FilterFailedError, match="this node stops"):
        worker.judge(1, [record(b"")])
