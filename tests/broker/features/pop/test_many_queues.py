"""Tables with many queues: a trim, a change and a pull take only processor time for what they concern."""

import time

from served_broker import MakeBroker

from dledger_broker.clients.tables import ClientIndex, ClientRow, MergedClients
from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import PutGroup
from dledger_broker.features.pop.commands import NO_ROW, Pop, PopRow
from dledger_broker.features.pop.revival import SPARE_ENTRIES
from dledger_broker.features.pop.table import POPPED
from dledger_broker.features.pop.turns import QUEUES_A_TURN
from dledger_broker.features.resets.table import RESETS, ResetOffsets, ResetRow
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.heartbeat import ConsumerData, MessageModel, SubscriptionData
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.features.pop.pop_calls import FOUND, NOTHING, POP, Popper, pop_ext, revivals_of
from tests.broker.kernel.applied_commands import apply
from tests.slowness import slowness

QUEUES = 10_000
TURN_S = 0.05
"""Maximum processor time that one turn may take, in seconds."""


def many_queues() -> BrokerState:
    """Return a state with many queues with a message each. One group pops them, and another is reset in them."""
    state = BrokerState(FEATURES)
    apply(state, PutGroup(SubscriptionGroupConfig("CG")), PutTopic(TopicConfig("many", QUEUES, QUEUES), 1))
    topic = state.topics["many"]
    for queue_id in range(QUEUES):
        queue = topic.queue(queue_id)
        queue.next_offset = queue.staged_offset = 10
    resets = tuple(ResetRow("many", topic.created_position, queue_id, 0) for queue_id in range(QUEUES))
    rows = tuple(PopRow("many", topic.created_position, queue_id, NO_ROW, 1, (0,)) for queue_id in range(QUEUES))
    apply(state, ResetOffsets("idle", resets), Pop("CG", 1_000, 60_000, rows))
    return state


def test_the_cost_of_a_trim_depends_only_on_the_trimmed_queues() -> None:
    state = many_queues()
    topic = state.topics["many"]
    rows = tuple(("many", topic.created_position, queue_id, 5) for queue_id in range(QUEUES))
    began = time.process_time()
    for begin in range(0, QUEUES, 100):
        apply(state, TrimQueues(1, rows[begin : begin + 100]))
    spent = time.process_time() - began
    assert spent < QUEUES / 100 * TURN_S * slowness()
    pending = state.table(RESETS).pending
    assert {reset.offset for reset in pending.values()} == {5}
    assert len(pending) == QUEUES
    assert state.table(POPPED).open_count == 0


def test_the_cost_of_a_topic_change_does_not_depend_on_other_topics() -> None:
    state = many_queues()
    apply(state, PutTopic(TopicConfig("other", 1, 1), 2))
    began = time.process_time()
    for _ in range(200):
        apply(state, PutTopic(TopicConfig("other", 1, 1), 2))
    assert time.process_time() - began < 200 * TURN_S / 10 * slowness()
    assert state.table(POPPED).open_count == QUEUES
    apply(state, PutTopic(TopicConfig("many", 10, 10), 1))
    assert state.table(POPPED).open_count == 10


def test_the_cost_of_a_subscription_lookup_does_not_depend_on_the_number_of_members() -> None:
    own = ClientIndex()
    merged = MergedClients("n1", own)

    def version() -> int:
        found = merged.subscription("CG", "T19")
        assert found is not None
        return found.sub_version

    def member(number: int, version: int, model: MessageModel = MessageModel.CLUSTERING) -> ClientRow:
        topics = [SubscriptionData(topic=f"T{topic}", sub_string="*", sub_version=version) for topic in range(20)]
        consumer = ConsumerData("CG", message_model=model, subscription_data_set=topics)
        return ClientRow(f"c{number}", "10.0.0.1:1", 12, 479, (), (consumer,))

    for number in range(1_000):
        own.put(member(number, 1))
    began = time.process_time()
    for _ in range(1_000):
        assert version() == 1
        assert not merged.is_broadcasting("CG")
    assert time.process_time() - began < 20 * TURN_S * slowness()
    own.put(member(7, 2))
    assert version() == 2
    own.put(member(7, 3, MessageModel.BROADCASTING))
    assert merged.is_broadcasting("CG")
    own.remove("c7")
    assert not merged.is_broadcasting("CG")
    assert version() == 1


def test_the_list_of_revivals_drops_acknowledged_deliveries_before_their_time(client: Popper) -> None:
    client.store(b"left")
    client.pop(maxMsgNums="1", invisibleTime="3600000")
    for _ in range(SPARE_ENTRIES + 100):
        client.store(b"x")
        (message,) = client.pop(maxMsgNums="1", invisibleTime="43200000")
        assert client.ack(message) == FOUND
    assert 1 <= len(revivals_of(client.broker)._heap) <= SPARE_ENTRIES + 2


def test_any_number_of_empty_pops_over_many_queues_takes_less_than_a_turn(make_broker: MakeBroker) -> None:
    client = Popper(make_broker().put_group())
    client.broker.memory.create_topic("many", QUEUES)
    assert client.pop("many") == [], "the group begins in all of them"
    began = time.process_time()
    asked = [client.send(POP, pop_ext("many")) for _ in range(10)]
    assert time.process_time() - began < TURN_S * slowness()
    assert sum(map(client.has_answer, asked)) == QUEUES_A_TURN // QUEUES, "the others wait for their turns"
    client.broker.settle()
    assert {client.answered(opaque).code for opaque in asked} == {NOTHING}
    client.store(b"x", topic="many", queue_id=QUEUES - 1)
    assert client.pop_bodies("many") == [b"x"]
