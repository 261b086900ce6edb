"""POP on three simulated nodes: what failovers, deposed leaders and snapshots do to deliveries.

More of it is in the simulator's schedules (`dledger_sim.brokers.schedules.pops`).
"""

from __future__ import annotations

from dledger_broker.features.pop.requests import PopRequests
from dledger_remoting.record import iter_records
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.schedules.brokers import TOPIC
from dledger_sim.brokers.schedules.pops import HIDDEN_MS, Popping, codes, offsets
from dledger_sim.log.registers import leading


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


def test_a_leader_that_is_cut_off_does_not_say_so_before_it_steps_down_either() -> None:
    """1. A leader is cut off, and believes that it leads. 2. An acknowledgement comes of which it never heard."""
    popping = Popping()
    old = popping.brokers.leader
    popping.cut_off(old)
    answers = popping.ack(Answer(0, {"popTime": "1"}, b"", ""), 0, old)
    popping.brokers.run(0.1)
    life = popping.group.nodes[old].life
    assert life is not None
    assert life.replica.is_ready
    popping.brokers.run(5.0)
    assert codes(answers) != [208]


def test_only_a_leader_lists_what_becomes_due() -> None:
    """A list that nobody reads grows with every pop, until the node leads or has no memory left."""
    popping = Popping()

    def listed() -> dict[str, int]:
        lives = {name: node.life for name, node in popping.group.nodes.items()}
        services = {name: life.service.service for name, life in lives.items() if life is not None}
        return {name: len(service.parts[PopRequests]._revivals._heap) for name, service in services.items()}

    def pop_and_count() -> tuple[bool, set[int]]:
        assert popping.pop().code == 0
        popping.brokers.run(1.0)
        counts = listed()
        return counts.pop(popping.brokers.leader) > 0, set(counts.values())

    assert pop_and_count() == (True, {0})
    old = popping.brokers.leader
    popping.cut_off(old)
    popping.brokers.run(3.0)
    popping.group.network.heal()
    popping.brokers.run(HIDDEN_MS / 1000)
    assert popping.brokers.leader != old
    assert pop_and_count() == (True, {0})


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
