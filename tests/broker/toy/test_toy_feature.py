"""A feature that only a tuple names: its route, command, table, digest, snapshot, metric and leader job work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import msgspec
import pytest
from served_broker import ServedBroker, make_served_broker

from dledger.errors import CorruptionError
from dledger_broker.config import BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.log.registers import leading
from tests.broker.kernel.applied_commands import apply
from tests.broker.toy import FEATURE
from tests.broker.toy.requests import REMIND, REMINDER_COUNT
from tests.broker.toy.table import REMINDERS, PutReminder, ReminderTable

WITH_REMINDERS: Final = (*FEATURES, FEATURE)


@pytest.fixture
def broker() -> ServedBroker:
    """A broker in memory that leads, and has topic T1."""
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    served = make_served_broker(config, BrokerInMemory(features=WITH_REMINDERS))
    served.memory.create_topic("T1")
    served.memory.machine.learn_kinds(NODE_ID, served.memory.machine.commands.kinds)
    served.settle()
    return served


def test_its_route_answers_when_its_command_is_applied(broker: ServedBroker) -> None:
    client = broker.client()
    assert client.call(REMIND, {"topic": "T1", "delaySeconds": "5"}, b"wake up").code == ResponseCode.SUCCESS
    assert client.call(REMIND, {"topic": "absent", "delaySeconds": "5"}).code == ResponseCode.TOPIC_NOT_EXIST
    (reminder,) = broker.memory.machine.state.table(REMINDERS).pending.values()
    assert (reminder.topic, reminder.body) == ("T1", b"wake up")
    (gauge,) = (gauge for part in broker.service.parts for gauge in part.gauges if gauge.name == "reminders")
    assert gauge.read() == 1


def test_a_broker_without_it_does_not_know_its_route() -> None:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    answer = make_served_broker(config, BrokerInMemory()).client().call(REMIND, {"topic": "T1", "delaySeconds": "1"})
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_its_table_counts_in_the_digest_and_comes_back_from_a_snapshot(broker: ServedBroker) -> None:
    client, state = broker.client(), broker.memory.machine.state
    before = state.digest()
    client.call(REMIND, {"topic": "T1", "delaySeconds": "5"}, b"wake up")
    assert state.digest() != before
    stream = b"".join(encode_state(state, 0.0))
    restored = decode_state([stream], 0.0, WITH_REMINDERS)
    assert restored.digest() == state.digest()
    assert restored.table(REMINDERS).pending == state.table(REMINDERS).pending
    with pytest.raises(CorruptionError, match="uses the feature 'reminders'"):
        decode_state([stream], 0.0, FEATURES)


def test_a_table_that_was_used_and_is_empty_again_is_not_a_new_one() -> None:
    state, empty = BrokerState(WITH_REMINDERS), ReminderTable()
    apply(state, PutReminder("gone", b"", 0), registry=BrokerInMemory(features=WITH_REMINDERS).machine.commands)
    table = state.table(REMINDERS)
    table.on_topic_deleted("gone")
    assert not table.pending
    assert table.digest != empty.digest
    assert table.capture_frames(0.0)
    assert not empty.capture_frames(0.0)


class Reminded:
    """Three simulated nodes with the feature, one of which leads, and its clients."""

    def __init__(self) -> None:
        self.brokers = Brokers(BrokerSettings(features=WITH_REMINDERS))

    def remind(self, delay_s: float) -> int:
        """Hand a reminder in; returns the operation that its message names."""
        brokers = self.brokers
        operation = brokers.workload.next_operation()
        ext = {"topic": TOPIC, "delaySeconds": str(delay_s)}
        answers = brokers.ask(brokers.connect(brokers.leader), REMIND, ext, encode_body(operation, 0))
        brokers.run(0.5)
        assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]
        return operation

    def count(self) -> Mapping[str, int]:
        """Ask a node that does not lead how many there are."""
        answers = self.brokers.ask(self.brokers.connect(self.brokers.follower), REMINDER_COUNT, {})
        self.brokers.run(0.5)
        (answer,) = answers
        assert answer is not None
        counted: Mapping[str, int] = msgspec.json.decode(answer.body)
        return counted

    def tables(self) -> list[ReminderTable]:
        """The tables of all nodes that live."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        services = [life.service for life in lives if life is not None]
        return [service.broker.state.table(REMINDERS) for service in services if isinstance(service, SimBroker)]

    def stored(self, operation: int) -> bool:
        """Whether the message is in its queue; the simulator's judge refuses a second one."""
        return operation in self.brokers.workload.truth.stored


def test_a_reminder_is_stored_once_by_whoever_leads_when_it_is_due() -> None:
    reminded = Reminded()
    brokers = reminded.brokers
    operation = reminded.remind(delay_s=3.0)
    old = brokers.leader
    brokers.group.kill(old)
    brokers.run(2.0)
    assert brokers.leader != old
    assert not reminded.stored(operation)
    brokers.run(3.0)
    assert reminded.stored(operation)
    brokers.group.start(old)
    brokers.run(3.0)
    assert [(len(table.pending), table.stored) for table in reminded.tables()] == [(0, 1)] * 3
    position = brokers.workload.truth.stored[operation].position
    assert reminded.count() == {"pending": 0, "stored": 1, "lastPosition": position}


def test_a_run_that_follows_a_handover_that_fails_does_not_store_again_what_is_in_flight() -> None:
    """1. A reminder's message is on its way to slow followers. 2. The leader begins to hand over to a node that it
    cannot reach: the run of its job ends. 3. It goes on leading, the next run looks: the reminder is still pending.
    """
    reminded = Reminded()
    brokers, group = reminded.brokers, reminded.brokers.group
    operation = reminded.remind(delay_s=1.0)
    leader = brokers.leader
    life = leading(group)
    target, other = (name for name in group.nodes if name != leader)
    group.network.block(leader, target)
    group.network.slow(leader, other, 0.3)
    brokers.run(0.75)
    assert not reminded.stored(operation)
    member = life.replica.engine.membership.find(target)
    assert member is not None
    assert life.replica.transfer(member)
    brokers.run(3.0)
    group.network.slow(leader, other, 0.0)
    group.network.unblock(leader, target)
    brokers.run(3.0)
    assert reminded.stored(operation)
    assert {table.stored for table in reminded.tables()} == {1}


def test_a_node_that_comes_back_behind_a_trim_gets_its_table_from_a_snapshot() -> None:
    reminded = Reminded()
    brokers, group = reminded.brokers, reminded.brokers.group
    late = brokers.follower
    group.kill(late)
    reminded.remind(delay_s=60.0)
    connection = brokers.connect(brokers.leader)
    for _ in range(40):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)
    leader = leading(group)
    cast(SimBroker, leader.service).trim(leader.replica.snapshots.list()[-1].position)
    brokers.run(1.0)
    group.start(late)
    brokers.run(5.0)
    life = group.nodes[late].life
    assert life is not None
    assert life.replica.store.first_position > 0, "it has not got the log from the beginning"
    assert [len(table.pending) for table in reminded.tables()] == [1, 1, 1]


def test_a_deleted_topic_takes_its_reminders_along() -> None:
    reminded = Reminded()
    brokers = reminded.brokers
    connection = brokers.connect(brokers.leader)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, brokers.workload.topic_fields("passing"))
    brokers.run(1.0)
    brokers.ask(connection, REMIND, {"topic": "passing", "delaySeconds": "2"}, encode_body(99, 0))
    brokers.run(0.5)
    assert [len(table.pending) for table in reminded.tables()] == [1, 1, 1]
    brokers.ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "passing"})
    brokers.run(4.0)
    assert [(len(table.pending), table.stored) for table in reminded.tables()] == [(0, 0)] * 3
