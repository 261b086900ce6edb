"""Delayed messages that are due while their topic is gone or has fewer queues, or while their record is rotten."""

import logging
from collections.abc import Callable

import pytest
from served_broker import ServedBroker

from dledger.errors import BusyError, LogError, LogFullError
from dledger_broker.features.delay.table import NOTHING, TIMERS
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.record import MAX_PROPERTIES_BYTES
from dledger_remoting.topics import TopicConfig
from tests.broker.features.delay.delayed_brokers import open_jobs, pending, recall

DELAYED = "TIMER_DELAY_MS\x015000\x02"
DELAY_S = 5.0
REPAIR_S = 30.0
"""Promised interval in seconds after which a record that cannot be read is tried again."""


def begin_to_fire(broker: ServedBroker) -> None:
    """Have the broker deliver what is due."""
    open_jobs(broker)


@pytest.fixture
def firing(broker: ServedBroker) -> ServedBroker:
    begin_to_fire(broker)
    return broker


def send(broker: ServedBroker, *bodies: bytes, topic: str = "T1", queue_id: int = 0) -> None:
    """Send messages that are due after `DELAY_S`."""
    for body in bodies:
        assert broker.client().send_message(topic, body, queue_id, i=DELAYED).code == 0


def send_to_a_deleted_topic(broker: ServedBroker, *bodies: bytes) -> None:
    broker.memory.create_topic("gone")
    send(broker, *bodies, topic="gone")
    broker.memory.delete_topic("gone")


def stored_properties(broker: ServedBroker, sent: RemotingCommand) -> bytes:
    """Return the properties that a message has where it waits."""
    position = parse_offset_message_id(sent.ext["msgId"])[1]
    found = broker.memory.run(broker.memory.machine.lookup.record_at(position))
    assert found is not None
    return found[1].properties


def queues(broker: ServedBroker, topic: str = "T1") -> list[list[bytes]]:
    return [broker.memory.bodies(topic, queue_id) for queue_id in range(4)]


def test_due_messages_of_a_deleted_topic_are_dropped_counted_and_logged_once_and_others_are_delivered(
    firing: ServedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    send_to_a_deleted_topic(firing, b"gone 0", b"gone 1", b"gone 2")
    send(firing, b"for T1")
    end = firing.memory.log.end
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 1)
    assert (firing.gauge("timers_without_topic"), firing.gauge("timers_fired")) == (3, 1)
    assert firing.memory.bodies("T1") == [b"for T1"]
    assert firing.table(TIMERS).total == NOTHING
    assert b"gone 0" not in firing.memory.log.data[end:]
    assert [record.getMessage() for record in caplog.records] == [
        "event=timer_without_topic topic=gone consequence='not delivered'"
    ]
    end = firing.memory.log.end
    firing.memory.create_topic("gone")
    created = firing.memory.log.end
    firing.advance(3 * REPAIR_S)
    assert (created > end, firing.memory.log.end) == (True, created), "nothing is tried again"
    assert queues(firing, "gone") == [[], [], [], []]


@pytest.mark.parametrize("error", [BusyError("too much is under way"), LogFullError("the disk is full")])
def test_a_due_message_of_a_deleted_topic_counts_once_despite_refusals_of_the_log(
    firing: ServedBroker, error: LogError, caplog: pytest.LogCaptureFixture
) -> None:
    send_to_a_deleted_topic(firing, b"gone")
    firing.memory.node.stage_error = error
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 5)
    assert (firing.gauge("timers_without_topic"), pending(firing), caplog.records) == (0, 1, [])
    firing.memory.node.stage_error = None
    firing.advance(1.0)
    assert (firing.gauge("timers_without_topic"), pending(firing)) == (1, 0)


def test_a_message_for_a_removed_queue_goes_to_a_readable_queue(firing: ServedBroker) -> None:
    for queue_id in range(4):
        send(firing, b"for %d" % queue_id, queue_id=queue_id)
    firing.memory.machine.proposals.put_topic(TopicConfig("T1", 2, 2), lambda _: None)
    firing.settle()
    firing.advance(DELAY_S + 1)
    assert [firing.memory.bodies("T1", queue_id) for queue_id in (0, 1)] == [[b"for 0", b"for 2"], [b"for 1", b"for 3"]]
    assert pending(firing) == 0


def test_a_due_message_for_an_unread_queue_goes_to_a_readable_queue(firing: ServedBroker) -> None:
    """RocketMQ shrinks a topic in this way: at first nobody writes to the last queues, then nobody reads them."""
    send(firing, b"for 3", queue_id=3)
    firing.memory.machine.proposals.put_topic(TopicConfig("T1", 1, 4), lambda _: None)
    firing.settle()
    firing.advance(DELAY_S + 1)
    assert queues(firing) == [[b"for 3"], [], [], []]


@pytest.fixture
def heal(firing: ServedBroker) -> Callable[[], None]:
    """Have two messages wait, the first with a rotten byte, and return a function that heals the byte."""
    send(firing, b"rotten one", b"whole one")
    data = firing.memory.log.data
    place = data.index(b"rotten one")

    def flip() -> None:
        data[place] ^= 0x20

    flip()
    return flip


@pytest.mark.usefixtures("heal")
def test_an_unreadable_due_message_is_set_aside_and_delays_no_other_message(
    firing: ServedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"whole one"]
    assert (firing.gauge("timers_set_aside"), pending(firing)) == (1, 1)
    assert ["event=timer_unreadable" in record.getMessage() for record in caplog.records] == [True]
    send(firing, b"later one")
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"whole one", b"later one"]


def test_a_rotten_message_is_delivered_once_after_its_repair(firing: ServedBroker, heal: Callable[[], None]) -> None:
    firing.advance(DELAY_S + 1 + 2 * REPAIR_S)
    assert (firing.memory.bodies("T1"), firing.gauge("timers_set_aside"), pending(firing)) == ([b"whole one"], 3, 1)
    heal()
    firing.advance(1.0)
    assert firing.memory.bodies("T1") == [b"whole one"], "it is not looked for all the time"
    for _ in range(2):
        firing.advance(REPAIR_S)
        assert firing.memory.bodies("T1") == [b"whole one", b"rotten one"]
        assert pending(firing) == 0


def test_a_delayed_message_must_leave_a_kibibyte_of_properties_free(firing: ServedBroker) -> None:
    """The broker adds to the properties when it writes the message again."""

    def padded(padding: int, asks: str = DELAYED) -> RemotingCommand:
        properties = f"{asks}UNIQ_KEY\x01K\x02PAD\x01{'x' * padding}\x02"
        return firing.client().send_message("T1", b"padded", i=properties)

    limit = MAX_PROPERTIES_BYTES - 1024
    most = limit - len(stored_properties(firing, padded(0)))
    refused = padded(most + 1)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"{limit + 1} bytes" in (refused.remark or "")
    assert f"the limit of a delayed message is {limit}" in (refused.remark or "")
    assert pending(firing) == 1
    assert len(stored_properties(firing, padded(most))) == limit
    assert padded(most + 1, asks="").code == ResponseCode.SUCCESS, "what is not delayed may have more"
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"padded"] * 3


def test_a_recall_on_a_full_disk_takes_a_message_back_without_the_reserve_for_trims(firing: ServedBroker) -> None:
    client, node = firing.client(), firing.memory.node
    handles = [client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"] for _ in range(2)]
    node.stage_error = LogFullError("the disk is full")
    assert recall(client, handles[0]).code == ResponseCode.SUCCESS
    node.reserve_left = 0.5
    refused = recall(client, handles[1])
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in (refused.remark or "")
    assert pending(firing) == 1
    node.stage_error = None
    assert recall(client, handles[1]).code == ResponseCode.SUCCESS
    firing.advance(DELAY_S + 1)
    assert (firing.memory.bodies("T1"), pending(firing), firing.gauge("timers_recalled")) == ([], 0, 2)
