"""Changes that a leader has proposed: which requests wait for them, and what happens when the leader is deposed."""

import pytest

from dledger.errors import OutcomeUnknownError
from dledger.statemachine import Leadership
from dledger_broker.kernel.topic_proposals import TopicProposals
from dledger_broker.testing import START_MS, BrokerInMemory, Message, stage_messages
from dledger_broker.testing.node import NODE_ID
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


def test_nothing_can_be_staged_for_a_topic_whose_deletion_is_in_flight(broker):
    outcomes = []
    broker.machine.proposals.delete_topic("orders", outcomes.append)
    assert broker.machine.queue("orders", 0) is None
    broker.machine.proposals.ensure_topic(TopicConfig("orders", 2, 2), outcomes.append)
    broker.env.run_ready()
    assert outcomes == [None, None]
    assert broker.queue("orders", 1).max_offset == 0


def test_proposals_in_flight_when_leadership_is_lost_have_an_unknown_outcome():
    broker = BrokerInMemory()
    outcomes = []
    broker.machine.proposals.ensure_topic(TopicConfig("orders"), outcomes.append)
    broker.machine.proposals.ensure_topic(TopicConfig("orders"), outcomes.append)
    broker.node.step_down()
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 2


@pytest.mark.parametrize("elected", [False, True])
def test_losing_leadership_withdraws_staged_offsets(broker: BrokerInMemory, elected: bool):
    """A new term hands out offsets behind the applied records, also after an election without a leader."""
    stage_messages(broker.node, broker.queue("orders"), [Message(b"lost")], START_MS)
    assert broker.queue("orders").staged_offset == 1
    broker.node.step_down()
    assert broker.queue("orders").staged_offset == 0
    if elected:
        broker.machine.on_leadership(Leadership(broker.node.term + 1, None, is_leader=False, ready=False))
        broker.queue("orders").staged_offset = 7
    broker.node.lead()
    assert broker.queue("orders").staged_offset == 0
    broker.send("orders", 0, Message(b"kept"))
    assert broker.bodies("orders") == [b"kept"]


def test_a_record_in_flight_for_a_deleted_topic_is_ignored_on_leader_and_follower(broker):
    queue = broker.queue("orders")
    broker.delete_topic("orders")
    stage_messages(broker.node, queue, [Message(b"late")], 1)
    broker.env.run_ready()
    broker.create_topic("orders")
    assert broker.bodies("orders") == []
    follower = broker.restart(lead=False)
    assert follower.machine.digest() == broker.machine.digest()


def test_each_of_many_waiting_changes_of_a_topic_is_examined_at_most_twice(monkeypatch: pytest.MonkeyPatch):
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


def handing_over(broker: BrokerInMemory, *, ready: bool) -> None:
    """Let the node lead the same term, and take proposals or not."""
    broker.machine.on_leadership(Leadership(broker.node.term, NODE_ID, is_leader=True, ready=ready))


def test_a_handover_that_fails_hands_out_no_queue_offset_twice(broker):
    queue = broker.queue("orders")
    first = stage_messages(broker.node, queue, [Message(b"a"), Message(b"b")], START_MS)
    handing_over(broker, ready=False)
    handing_over(broker, ready=True)
    second = stage_messages(broker.node, queue, [Message(b"c")], START_MS)
    broker.env.run_ready()
    assert (first.outcome, second.outcome) == ("applied", "applied")
    assert broker.bodies("orders") == [b"a", b"b", b"c"]
