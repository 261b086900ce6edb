"""Changes that a leader has proposed: who waits for them, and what becomes of them when it is deposed."""

import pytest

from dledger.errors import OutcomeUnknownError
from dledger_broker.kernel.topic_proposals import TopicProposals
from dledger_broker.testing import BrokerInMemory, Message, stage_messages
from dledger_remoting.topics import TopicConfig


def test_a_second_creator_of_a_topic_gets_the_outcome_of_the_first():
    broker = BrokerInMemory()
    outcomes = []
    entries = len(broker.log.entries)
    for queues in (4, 8):
        broker.machine.proposals.ensure_topic(TopicConfig("orders", queues, queues), outcomes.append)
    assert outcomes == []
    broker.env.run_ready()
    assert outcomes == [None, None]
    assert broker.machine.state.topics["orders"].config.read_queue_nums == 4
    assert len(broker.log.entries) == entries + 1


def test_an_update_while_a_creation_is_in_flight_follows_it():
    broker = BrokerInMemory()
    outcomes = []
    broker.machine.proposals.ensure_topic(TopicConfig("orders", 4, 4), outcomes.append)
    broker.machine.proposals.put_topic(TopicConfig("orders", 8, 8), outcomes.append)
    broker.env.run_ready()
    assert outcomes == [None, None]
    assert broker.machine.state.topics["orders"].config.read_queue_nums == 8


def test_nothing_can_be_staged_for_a_topic_whose_deletion_is_in_flight():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    outcomes = []
    broker.machine.proposals.delete_topic("orders", outcomes.append)
    assert broker.machine.queue("orders", 0) is None
    broker.machine.proposals.ensure_topic(TopicConfig("orders", 2, 2), outcomes.append)
    broker.env.run_ready()
    assert outcomes == [None, None]
    assert broker.queue("orders", 1).max_offset == 0


def test_what_is_in_flight_when_leadership_is_lost_has_an_unknown_outcome():
    broker = BrokerInMemory()
    outcomes = []
    broker.machine.proposals.ensure_topic(TopicConfig("orders"), outcomes.append)
    broker.machine.proposals.ensure_topic(TopicConfig("orders"), outcomes.append)
    broker.node.step_down()
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 2


def test_losing_leadership_takes_back_the_offsets_that_were_handed_out():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"kept"))
    queue = broker.queue("orders")
    queue.staged_offset = 5
    broker.node.step_down()
    assert queue.staged_offset == queue.next_offset == 1


def test_a_record_in_flight_for_a_deleted_topic_is_ignored_on_leader_and_follower():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    queue = broker.queue("orders")
    broker.delete_topic("orders")
    stage_messages(broker.node, queue, [Message(b"late")], 1)
    broker.env.run_ready()
    broker.create_topic("orders")
    assert broker.bodies("orders") == []
    follower = broker.restart(lead=False)
    assert follower.machine.digest() == broker.machine.digest()


def test_changes_that_wait_for_one_another_are_looked_at_once_or_twice_each(monkeypatch: pytest.MonkeyPatch):
    broker, looks, order = BrokerInMemory(), list[int](), list[int]()
    change = TopicProposals.change_topic

    def counted(self, name, make, done):
        looks.append(1)
        change(self, name, make, done)

    monkeypatch.setattr(TopicProposals, "change_topic", counted)
    for number in range(1, 101):
        config = TopicConfig("orders", number, number)
        broker.machine.proposals.put_topic(config, lambda _, number=number: order.append(number))
    broker.env.run_ready()
    assert order == list(range(1, 101))
    assert broker.machine.state.topics["orders"].queue_count == 100
    assert len(looks) <= 200
