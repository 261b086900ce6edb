"""POP on three simulated nodes: what failovers, deposed leaders and snapshots do to deliveries.

More tests of it are in the simulator's schedules (`dledger_sim.brokers.schedules.pops`).
"""

import pytest

from dledger_broker.features.pop.requests import PopRequests
from dledger_remoting.record import iter_records
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.schedules.brokers import TOPIC
from dledger_sim.brokers.schedules.pops import HIDDEN_MS, Popping, codes, offsets


@pytest.fixture
def popping() -> Popping:
    return Popping()


def kill_leader(popping: Popping) -> str:
    """Kill the leader, wait until another node leads, and return the name of the killed node."""
    old = popping.brokers.leader
    popping.group.kill(old)
    popping.brokers.run(3.0)
    return old


def test_the_next_leader_takes_acknowledgements_of_popped_messages_through_any_node(popping: Popping) -> None:
    popped = popping.pop(popping.brokers.follower)
    assert offsets(popped) == [0, 1, 2]
    old = kill_leader(popping)
    assert popping.pop().code == 210
    answers = [popping.ack(popped, offset, popping.living_follower() if offset else None) for offset in (0, 1)]
    popping.brokers.run(1.0)
    assert [codes(answer) for answer in answers] == [[0], [0]]
    popping.group.start(old)
    popping.brokers.run(3.0)
    assert popping.committed() == [2, 2, 2]


def test_a_new_leader_redelivers_popped_messages_only_after_their_invisible_time() -> None:
    popping = Popping(1)
    popped, begun = popping.pop(), popping.brokers.scheduler.now
    kill_leader(popping)
    while (again := popping.pop()).code == 210:
        assert popping.brokers.scheduler.now - begun < 40.0
    assert popping.brokers.scheduler.now - begun > HIDDEN_MS / 1000 - 2.0
    (record,) = iter_records(again.body)
    assert (record.reconsume_times, record.topic) == (1, TOPIC)
    late = popping.ack(popped, 0)
    popping.brokers.run(1.0)
    assert codes(late) == [208]


def test_a_repeated_ordered_attempt_gets_the_same_messages_from_the_next_leader(popping: Popping) -> None:
    attempt = {"order": "true", "attemptId": "attempt-1", "maxMsgNums": "2"}
    assert offsets(popping.pop(popping.brokers.follower, **attempt)) == [0, 1]
    kill_leader(popping)
    assert popping.pop(order="true", attemptId="attempt-2").code == 210
    assert offsets(popping.pop(popping.living_follower(), **attempt)) == [0, 1]


def test_a_cut_off_or_deposed_leader_never_answers_that_a_popped_message_is_unknown(popping: Popping) -> None:
    """After an answer 208, the consumer would believe that its acknowledgement came too late."""
    old = popping.brokers.leader
    popping.cut_off(old)
    while_it_leads = popping.ack(Answer(0, {"popTime": "1"}, b"", ""), 0, old)
    popping.brokers.run(0.1)
    life = popping.group.nodes[old].life
    assert life is not None
    assert life.replica.is_ready
    popping.brokers.run(3.0)
    deposed = popping.ack(popping.pop(popping.ready(but=old)), 0, old)
    popping.brokers.run(0.5)
    assert codes(deposed) == []
    popping.group.network.heal()
    popping.brokers.run(5.0)
    assert codes(deposed) in ([0], [14], [1])
    assert codes(while_it_leads) != [208]


def test_only_a_leader_lists_deliveries_that_become_due(popping: Popping) -> None:
    """On another node nobody reads the list, and it would grow with every pop until the memory is used up."""

    def listed() -> dict[str, int]:
        lives = {name: node.life for name, node in popping.group.nodes.items()}
        services = {name: life.service.service for name, life in lives.items() if life is not None}
        return {name: len(service.parts[PopRequests].revivals._heap) for name, service in services.items()}

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
