"""A history says what was asked and answered, and other tools can read it."""

from itertools import count

import pytest

from dledger.invariants import InvariantError
from dledger_chaos.history import HistoryError, Recorder, edn_lines, read_events, read_operations
from dledger_chaos.workloads.sending import RecordedSends
from dledger_client import SendResult


@pytest.fixture
def recorder(tmp_path):
    ticks = count(1)
    with Recorder(tmp_path, clock=lambda: next(ticks)) as made:
        yield made


def test_what_was_recorded_is_read_back_in_the_order_of_the_calls(recorder):
    slow = recorder.invoke("append", "p0", "send", "T/g/0", "a")
    quick = recorder.invoke("append", "p1", "send", "T/g/1", "b")
    quick.fail("not available", 14)
    slow.ok(offset=7)
    recorder.close()
    first, second = read_operations(recorder.directory)
    assert (first.value, first.outcome, first.extras, first.invoke_ns, first.complete_ns) == (
        "a",
        "ok",
        {"offset": 7},
        1,
        4,
    )
    assert (second.outcome, second.error, second.code) == ("fail", "not available", 14)
    assert recorder.counts == {"ok": 1, "fail": 1, "info": 0}


class OneCopy:
    """A producer at a RocketMQ broker that has stored what it was sent, but not replicated it in time."""

    async def send(self, topic, body, **_options):
        return SendResult("m", "", topic, "g", 0, 7, replicated=False)

    async def send_batch(self, topic, messages):
        return [await self.send(topic, message) for message in messages]


async def test_what_is_not_replicated_is_not_acknowledged(recorder):
    sends = RecordedSends(recorder, "append", "p0", OneCopy(), "T")
    assert await sends.send(10) is None
    assert await sends.send_ordered("key", 10) is None
    await sends.send_batch([10, 10])
    recorder.close()
    assert [operation.outcome for operation in read_operations(recorder.directory)] == ["info", "info", "info"]


def test_an_operation_without_an_end_is_of_unknown_outcome(recorder):
    recorder.invoke("append", "p0", "send", "T/g/0", "a")
    recorder.close()
    (operation,) = read_operations(recorder.directory)
    assert (operation.outcome, operation.complete_ns) == ("info", None)


def test_what_was_asked_is_told_whatever_the_end_is(recorder):
    asked = [recorder.invoke("pops", "p0", "hide", "T", invisible_ms=3) for _ in range(4)]
    asked[0].ok(node="n1")
    asked[1].fail()
    asked[2].info()
    recorder.close()
    told = [operation.extras for operation in read_operations(recorder.directory)]
    assert told == [{"invisible_ms": 3, "node": "n1"}, *[{"invisible_ms": 3}] * 3]


def test_an_operation_ends_once(recorder):
    invocation = recorder.invoke("append", "p0", "send")
    invocation.ok()
    with pytest.raises(InvariantError, match="ends once"):
        invocation.info()


def test_events_are_there_at_once_and_sorted_by_time(recorder):
    recorder.event("phase", "heal")
    recorder.event("fault-begin", "kill", node="n1", time_ns=0, id=3)
    earlier, later = read_events(recorder.directory)
    assert (earlier.name, earlier.node, earlier.fields, later.name) == ("kill", "n1", {"id": 3}, "heal")


def test_a_line_that_cannot_be_read_is_named(recorder):
    recorder.close()
    (recorder.directory / "history.jsonl").write_text("{}\n")
    with pytest.raises(HistoryError, match=r"history\.jsonl, line 1"):
        read_operations(recorder.directory)


def test_edn_has_a_map_for_each_call_and_each_end_and_never_reuses_a_process_of_unknown_fate(recorder):
    unknown = recorder.invoke("register", "c0", "write", "x", 1)
    unknown.info("no answer")
    read = recorder.invoke("register", "c0", "read", "x")
    overlapping = recorder.invoke("register", "c0", "cas", "x", [1, 2])
    read.ok(1)
    overlapping.fail("not equal")
    recorder.invoke("register", "c0", "write", 'a "b"\\', None)
    recorder.close()
    assert list(edn_lines(read_operations(recorder.directory))) == [
        '{:index 0, :type :invoke, :process 0, :f :write, :value ["x" 1], :time 1}',
        '{:index 1, :type :info, :process 0, :f :write, :value ["x" 1], :time 2}',
        '{:index 2, :type :invoke, :process 1, :f :read, :value ["x" nil], :time 3}',
        '{:index 3, :type :invoke, :process 2, :f :cas, :value ["x" [1 2]], :time 4}',
        '{:index 4, :type :ok, :process 1, :f :read, :value ["x" 1], :time 5}',
        '{:index 5, :type :fail, :process 2, :f :cas, :value ["x" [1 2]], :time 6}',
        '{:index 6, :type :invoke, :process 1, :f :write, :value ["a \\"b\\"\\\\" nil], :time 7}',
    ]
