"""A handover that comes to nothing leaves the leader with what it had in flight."""

from dledger.statemachine import Leadership
from dledger_broker.testing import START_MS, BrokerInMemory, Message, stage_messages
from dledger_broker.testing.node import NODE_ID


def handing_over(broker: BrokerInMemory, *, ready: bool) -> None:
    """The node leads the same term, and takes proposals or does not."""
    broker.machine.on_leadership(Leadership(broker.node.term, NODE_ID, is_leader=True, ready=ready))


def test_a_handover_that_fails_hands_out_no_queue_offset_twice():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    queue = broker.queue("orders")
    first = stage_messages(broker.node, queue, [Message(b"a"), Message(b"b")], START_MS)
    handing_over(broker, ready=False)
    handing_over(broker, ready=True)
    second = stage_messages(broker.node, queue, [Message(b"c")], START_MS)
    broker.env.run_ready()
    assert (first.outcome, second.outcome) == ("applied", "applied")
    assert broker.bodies("orders") == [b"a", b"b", b"c"]


def test_a_new_term_hands_out_what_applied_records_leave():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    stage_messages(broker.node, broker.queue("orders"), [Message(b"lost")], START_MS)
    broker.node.step_down()
    broker.node.lead()
    broker.send("orders", 0, Message(b"kept"))
    assert broker.bodies("orders") == [b"kept"]


def test_a_candidate_that_wins_starts_from_what_is_applied():
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.node.step_down()
    broker.machine.on_leadership(Leadership(broker.node.term + 1, None, is_leader=False, ready=False))
    broker.queue("orders").staged_offset = 7
    broker.node.lead()
    assert broker.queue("orders").staged_offset == 0
