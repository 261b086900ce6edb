"""A history records requests and answers, and other tools can read it."""

from itertools import count

import pytest

from dledger_base.invariants import InvariantError
from dledger_chaos.history import HistoryError, Recorder, read_events, read_operations
from dledger_chaos.workloads.sending import RecordedSends
from dledger_client import SendResult


@pytest.fixture
def recorder(tmp_path):
    ticks = count(1)
    with Recorder(tmp_path, clock=lambda: next(ticks)) as made:
        yield made


def test_recorded_operations_are_read_back_in_the_order_of_their_calls(recorder):
    slow = recorder.invoke("append", "p0", "send", "T/g/0", "a")
    quick = recorder.invoke("append", "p1", "send", "T/g/1", "b")
    quick.fail("not available", 14)
    slow.ok(offset=7)
    recorder.close()
    first, second = read_operations(recorder.directory)
    told = (first.value, first.outcome, first.extras, first.invoke_ns, first.complete_ns)
    assert told == ("a", "ok", {"offset": 7}, 1, 4)
    assert (second.outcome, second.error, second.code) == ("fail", "not available", 14)
    assert recorder.counts == {"ok": 1, "fail": 1, "info": 0}


class OneCopy:
    """Producer at a RocketMQ broker that has stored its messages, but not replicated them in time."""

    async def send(self, topic, body, **_options):
        return SendResult("m", "", topic, "g", 0, 7, replicated=False)

    async def send_batch(self, topic, messages):
        return [await self.send(topic, message) for message in messages]


async def test_a_send_that_is_not_replicated_is_recorded_as_unknown(recorder):
    sends = RecordedSends(recorder, "append", "p0", OneCopy(), "T")
    assert await sends.send(10) is None
    assert await sends.send_ordered("key", 10) is None
    await sends.send_batch([10, 10])
    recorder.close()
    assert [operation.outcome for operation in read_operations(recorder.directory)] == ["info", "info", "info"]


def test_an_operation_without_an_end_is_of_unknown_outcome_and_keeps_its_request_fields_for_every_outcome(recorder):
    asked = [recorder.invoke("pops", "p0", "hide", "T", invisible_ms=3) for _ in range(4)]
    asked[0].ok(node="n1")
    asked[1].fail()
    asked[2].info()
    with pytest.raises(InvariantError, match="ends once"):
        asked[0].info()
    recorder.close()
    told = read_operations(recorder.directory)
    extras = [operation.extras for operation in told]
    assert extras == [{"invisible_ms": 3, "node": "n1"}, *[{"invisible_ms": 3}] * 3]
    assert (told[3].outcome, told[3].complete_ns) == ("info", None)


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
