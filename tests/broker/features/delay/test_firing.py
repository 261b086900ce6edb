"""What becomes of a delayed message when it is due and its topic is gone, has fewer queues, or its record is rotten."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker

from dledger.errors import BusyError, LogError, LogFullError
from dledger_broker.features.delay.firing import REPAIR_S
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.table import NOTHING, TIMERS
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.record import MAX_PROPERTIES_BYTES
from dledger_remoting.topics import TopicConfig
from tests.broker.features.delay.test_recalls import pending, recall

DELAYED = "TIMER_DELAY_MS\x015000\x02"
DELAY_S = 5.0


def begin_to_fire(broker: ServedBroker) -> None:
    """Have a broker deliver what is due; its time index knows what is applied from now on."""
    machine = broker.memory.machine
    due_messages = broker.service.parts[DueMessages]
    broker.memory.run(due_messages.index.rows.follower.fold())
    machine.jobs.open([due_messages.fires], broker.memory.node, broker.memory.writer)
    broker.settle()


@pytest.fixture
def firing(broker: ServedBroker) -> ServedBroker:
    begin_to_fire(broker)
    return broker


def stored_properties(broker: ServedBroker, sent: RemotingCommand) -> bytes:
    """What a message has where it waits."""
    position = parse_offset_message_id(sent.ext["msgId"])[1]
    found = broker.memory.run(broker.memory.machine.lookup.record_at(position))
    assert found is not None
    return found[1].properties


def gauge(broker: ServedBroker, name: str) -> float:
    gauges = broker.service.parts[DueMessages].gauges
    return {gauge.name: gauge.read() for gauge in gauges}[name]


# ---------------------------------------------------------------- topics and queues


def test_what_is_due_for_a_topic_that_is_gone_is_over_counted_and_logged_once(
    firing: ServedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = firing.client()
    firing.memory.create_topic("gone")
    for number in range(3):
        assert client.send_message("gone", b"gone %d" % number, i=DELAYED).code == 0
    firing.memory.delete_topic("gone")
    end = firing.memory.log.end
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 1)
    assert gauge(firing, "timers_without_topic") == 3
    assert gauge(firing, "timers_fired") == 0
    assert firing.memory.machine.state.table(TIMERS).total == NOTHING
    assert b"gone 0" not in firing.memory.log.data[end:]
    assert [record.getMessage() for record in caplog.records] == [
        "event=timer_without_topic topic=gone consequence='not delivered'"
    ]
    end = firing.memory.log.end
    firing.memory.create_topic("gone")
    created = firing.memory.log.end
    firing.advance(3 * REPAIR_S)
    assert (created > end, firing.memory.log.end) == (True, created), "nothing is tried again"
    assert [firing.memory.bodies("gone", queue_id) for queue_id in range(4)] == [[], [], [], []]


@pytest.mark.parametrize("error", [BusyError("too much is under way"), LogFullError("the disk is full")])
def test_what_is_gone_is_counted_once_however_often_the_log_refuses_to_take_that(
    firing: ServedBroker, error: LogError, caplog: pytest.LogCaptureFixture
) -> None:
    client = firing.client()
    firing.memory.create_topic("gone")
    assert client.send_message("gone", b"gone", i=DELAYED).code == 0
    firing.memory.delete_topic("gone")
    firing.memory.node.stage_error = error
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 5)
    assert (gauge(firing, "timers_without_topic"), pending(firing), caplog.records) == (0, 1, [])
    firing.memory.node.stage_error = None
    firing.advance(1.0)
    assert (gauge(firing, "timers_without_topic"), pending(firing)) == (1, 0)


def test_what_is_due_beside_it_is_delivered(firing: ServedBroker) -> None:
    client = firing.client()
    firing.memory.create_topic("gone")
    for topic in ("gone", "T1"):
        client.send_message(topic, b"for " + topic.encode(), i=DELAYED)
    firing.memory.delete_topic("gone")
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"for T1"]
    assert (gauge(firing, "timers_fired"), gauge(firing, "timers_without_topic")) == (1, 1)


def test_a_queue_that_is_gone_is_replaced_by_one_that_consumers_read(firing: ServedBroker) -> None:
    client = firing.client()
    for queue_id in range(4):
        assert client.send_message("T1", b"for %d" % queue_id, queue_id, i=DELAYED).code == 0
    firing.memory.machine.proposals.put_topic(TopicConfig("T1", 2, 2), lambda _: None)
    firing.settle()
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1", 0) == [b"for 0", b"for 2"]
    assert firing.memory.bodies("T1", 1) == [b"for 1", b"for 3"]
    assert pending(firing) == 0


def test_a_queue_that_exists_and_that_nobody_reads_is_replaced_too(firing: ServedBroker) -> None:
    """As RocketMQ shrinks a topic: first nobody writes to the last queues, then nobody reads them."""
    firing.client().send_message("T1", b"for 3", 3, i=DELAYED)
    firing.memory.machine.proposals.put_topic(TopicConfig("T1", 1, 4), lambda _: None)
    firing.settle()
    firing.advance(DELAY_S + 1)
    assert [firing.memory.bodies("T1", queue_id) for queue_id in range(4)] == [[b"for 3"], [], [], []]


# ---------------------------------------------------------------- rot


@pytest.fixture
def heal(firing: ServedBroker) -> Callable[[], None]:
    """Two messages wait, of the first of which a byte has rotted; a call heals it."""
    client = firing.client()
    for body in (b"rotten one", b"whole one"):
        assert client.send_message("T1", body, i=DELAYED).code == 0
    data = firing.memory.log.data
    place = data.index(b"rotten one")

    def flip() -> None:
        data[place] ^= 0x20

    flip()
    return flip


def test_what_cannot_be_read_when_it_is_due_is_set_aside_and_holds_up_no_other(
    firing: ServedBroker, heal: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"whole one"]
    assert (gauge(firing, "timers_set_aside"), pending(firing)) == (1, 1)
    assert ["event=timer_unreadable" in record.getMessage() for record in caplog.records] == [True]
    firing.client().send_message("T1", b"later one", i=DELAYED)
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"whole one", b"later one"]


def test_it_is_delivered_once_after_its_repair(firing: ServedBroker, heal: Callable[[], None]) -> None:
    firing.advance(DELAY_S + 1)
    heal()
    firing.advance(1.0)
    assert firing.memory.bodies("T1") == [b"whole one"], "it is not looked for all the time"
    firing.advance(REPAIR_S)
    assert firing.memory.bodies("T1") == [b"whole one", b"rotten one"]
    assert pending(firing) == 0
    firing.advance(2 * REPAIR_S)
    assert firing.memory.bodies("T1") == [b"whole one", b"rotten one"]


def test_what_stays_rotten_is_set_aside_again(firing: ServedBroker, heal: Callable[[], None]) -> None:
    firing.advance(DELAY_S + 1 + 2 * REPAIR_S)
    assert firing.memory.bodies("T1") == [b"whole one"]
    assert (gauge(firing, "timers_set_aside"), pending(firing)) == (3, 1)


# ---------------------------------------------------------------- properties


def test_a_kibibyte_of_its_properties_is_free_of_a_delayed_message_and_not_a_byte_less(firing: ServedBroker) -> None:
    """The broker adds to them when it writes the message again."""
    client = firing.client()

    def send(padding: int, asks: str = DELAYED) -> RemotingCommand:
        return client.send_message("T1", b"padded", i=f"{asks}UNIQ_KEY\x01K\x02PAD\x01{'x' * padding}\x02")

    limit = MAX_PROPERTIES_BYTES - 1024
    most = limit - len(stored_properties(firing, send(0)))
    refused = send(most + 1)
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"{limit + 1} bytes" in (refused.remark or "")
    assert f"the limit of a delayed message is {limit}" in (refused.remark or "")
    assert pending(firing) == 1
    assert len(stored_properties(firing, send(most))) == limit
    assert send(most + 1, asks="").code == ResponseCode.SUCCESS, "what is not delayed may have more"
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == [b"padded"] * 3


# ---------------------------------------------------------------- full disks


def test_a_full_disk_takes_a_message_back_from_its_reserve(broker: ServedBroker, client: FakeClient) -> None:
    handle = client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]
    broker.memory.node.stage_error = LogFullError("the disk is full")
    refused = client.send_message("T1", b"another", i=DELAYED)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert recall(client, handle).code == ResponseCode.SUCCESS
    assert pending(broker) == 0


def test_the_part_of_the_reserve_that_is_for_trims_takes_no_message_back(
    broker: ServedBroker, client: FakeClient
) -> None:
    handle = client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]
    broker.memory.node.stage_error = LogFullError("the disk is full")
    broker.memory.node.reserve_left = 0.5
    refused = recall(client, handle)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in (refused.remark or "")
    assert pending(broker) == 1
    broker.memory.node.stage_error = None
    assert recall(client, handle).code == ResponseCode.SUCCESS
    assert pending(broker) == 0


def test_what_was_taken_back_on_a_full_disk_is_never_delivered(firing: ServedBroker) -> None:
    client = firing.client()
    handle = client.send_message("T1", b"later", i=DELAYED).ext["recallHandle"]
    firing.memory.node.stage_error = LogFullError("the disk is full")
    fields = {"topic": "T1", "recallHandle": handle}
    assert client.call_from_disk(RequestCode.RECALL_MESSAGE, fields).code == ResponseCode.SUCCESS
    firing.memory.node.stage_error = None
    firing.advance(DELAY_S + 1)
    assert firing.memory.bodies("T1") == []
    assert gauge(firing, "timers_recalled") == 1
