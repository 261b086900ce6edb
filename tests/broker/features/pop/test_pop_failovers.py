"""POP on three simulated nodes: what failovers, deposed leaders, snapshots and clocks do to deliveries."""

from __future__ import annotations

from typing import Final, cast

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.deliveries import PopQueue
from dledger_broker.features.pop.table import POPPED
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.record import iter_records
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading

GROUP: Final = "CG"
KEY: Final = PopQueueKey(GROUP, TOPIC, 0)
HIDDEN_MS: Final = 20_000


class Popping:
    """Three simulated nodes, and consumers that pop."""

    def __init__(self, messages: int = 3) -> None:
        self.brokers = Brokers()
        self.group = self.brokers.group
        connection = self.brokers.connect(self.brokers.leader)
        for _ in range(messages):
            self.brokers.send(connection, TOPIC)
        self.brokers.run(1.0)

    def ask_pop(self, node: str | None = None, **fields: str) -> list[Answer | None]:
        """Pop at a node; its answer will stand in the list."""
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": str(HIDDEN_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            **fields,
        }
        connection = self.brokers.connect(node or self.brokers.leader)
        return self.brokers.ask(connection, RequestCode.POP_MESSAGE, ext)

    def pop(self, node: str | None = None, **fields: str) -> Answer:
        answers = self.ask_pop(node, **fields)
        self.brokers.run(1.0)
        (answer,) = answers
        assert answer is not None
        return answer

    def ack(self, popped: Answer, offset: int, node: str | None = None) -> list[Answer | None]:
        message = (tuple(KEY), int(popped.ext["popTime"]), offset)
        self.brokers.workload.truth.pops.ack_asked.add(message)
        text = f"0 {popped.ext['popTime']} {HIDDEN_MS} 0 0 broker 0 {offset}"
        ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "extraInfo": text, "offset": str(offset)}
        return self.brokers.ask(self.brokers.connect(node or self.brokers.leader), RequestCode.ACK_MESSAGE, ext)

    def cut_off(self, name: str) -> None:
        """A node hears nothing of the others, and they nothing of it."""
        for other in self.group.nodes.keys() - {name}:
            self.group.network.block(name, other)
            self.group.network.block(other, name)

    def ready(self, but: str) -> str:
        """Another node that is ready as the leader."""
        nodes = self.group.nodes.items()
        return next(name for name, node in nodes if name != but and node.life and node.life.replica.is_ready)

    def living_follower(self) -> str:
        return next(name for name, node in self.group.nodes.items() if node.life and name != self.brokers.leader)

    def states(self) -> list[BrokerState]:
        """The states of all nodes that live."""
        lives = [node.life for node in self.group.nodes.values()]
        return [cast(SimBroker, life.service).broker.state for life in lives if life is not None]

    def queues(self) -> list[PopQueue]:
        """The popped queue, as these nodes have it."""
        queues = [state.table(POPPED).queue(KEY) for state in self.states()]
        return [queue for queue in queues if queue is not None]

    def committed(self) -> list[int | None]:
        return [state.table(OFFSETS).get(*KEY) for state in self.states()]


def offsets(answer: Answer) -> list[int]:
    return [record.queue_offset for record in iter_records(answer.body)]


def codes(answers: list[Answer | None]) -> list[int]:
    return [answer.code for answer in answers if answer is not None]


def test_the_next_leader_knows_what_was_popped_and_takes_its_acknowledgement_through_any_node() -> None:
    popping = Popping()
    popped = popping.pop(popping.brokers.follower)
    assert offsets(popped) == [0, 1, 2]
    old = popping.brokers.leader
    popping.group.kill(old)
    popping.brokers.run(3.0)
    assert popping.pop().code == 210
    answers = [popping.ack(popped, offset, popping.living_follower() if offset else None) for offset in (0, 1)]
    popping.brokers.run(1.0)
    assert [codes(answer) for answer in answers] == [[0], [0]]
    popping.group.start(old)
    popping.brokers.run(3.0)
    assert popping.committed() == [2, 2, 2]


def test_what_a_dead_leader_delivered_comes_again_from_the_next_one_and_not_before_its_time() -> None:
    popping = Popping(1)
    popped = popping.pop()
    begun = popping.brokers.scheduler.now
    popping.group.kill(popping.brokers.leader)
    popping.brokers.run(3.0)
    while (again := popping.pop()).code == 210:
        assert popping.brokers.scheduler.now - begun < 40.0
    assert popping.brokers.scheduler.now - begun > HIDDEN_MS / 1000 - 2.0
    (record,) = iter_records(again.body)
    assert (record.reconsume_times, record.topic) == (1, TOPIC)
    late = popping.ack(popped, 0)
    popping.brokers.run(1.0)
    assert codes(late) == [208]


def test_a_pop_whose_leader_dies_before_it_is_applied_has_no_answer_with_messages() -> None:
    popping = Popping()
    old = popping.brokers.leader
    popping.cut_off(old)
    answers = popping.ask_pop(old)
    popping.brokers.run(4.0)
    assert all(answer is None or answer.code != 0 for answer in answers)
    new = popping.ready(but=old)
    assert offsets(popping.pop(new)) == [0, 1, 2]


def test_a_deposed_leader_does_not_say_that_nothing_is_known_of_a_message() -> None:
    """1. A leader is cut off. 2. The next one delivers a message. 3. Its acknowledgement comes to the first one, which
    never heard of it: answered 208, the consumer would believe that it came too late.
    """
    popping = Popping()
    old = popping.brokers.leader
    popping.cut_off(old)
    popping.brokers.run(3.0)
    new = popping.ready(but=old)
    popped = popping.pop(new)
    answers = popping.ack(popped, 0, old)
    popping.brokers.run(0.5)
    assert codes(answers) == []
    popping.group.network.heal()
    popping.brokers.run(5.0)
    assert codes(answers) in ([0], [14], [1])


def test_a_clock_that_jumps_ahead_delivers_nothing_early() -> None:
    popping = Popping(1)
    popping.pop()
    for node in popping.group.nodes.values():
        node.wall_offset_ms = 3_600_000
    popping.brokers.run(HIDDEN_MS / 1000 - 3.0)
    assert popping.pop().code == 210


def test_nodes_that_start_from_a_snapshot_know_what_was_popped() -> None:
    popping = Popping()
    brokers, group = popping.brokers, popping.group
    popped = popping.pop()
    popping.ack(popped, 1)
    connection = brokers.connect(brokers.leader)
    for _ in range(40):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)
    assert leading(group).replica.snapshots.list()[-1].position > 0
    for name in group.nodes:
        group.kill(name)
    for name in group.nodes:
        group.start(name)
    brokers.run(4.0)
    opened = [sorted(o for delivery in queue for o in delivery.open_offsets) for queue in popping.queues()]
    assert opened == [[0, 2]] * 3
    late = popping.ack(popped, 0)
    brokers.run(1.0)
    assert codes(late) == [0]
