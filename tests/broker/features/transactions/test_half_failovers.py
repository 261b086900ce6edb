"""Transactions on three simulated nodes: what a failover, a snapshot and a trim at any point do to them."""

from __future__ import annotations

from typing import cast

from dledger_sim.brokers.schedules.brokers import TOPIC
from dledger_sim.brokers.schedules.transactions import COMMIT, ROLLBACK, Transacting, codes
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading


def test_a_half_is_committed_by_the_next_leader_through_a_node_that_does_not_lead() -> None:
    transacting = Transacting()
    brokers = transacting.brokers
    operation, sent = transacting.send()
    old = brokers.leader
    brokers.group.kill(old)
    brokers.run(2.0)
    assert not transacting.stored(operation)
    answers = transacting.end(operation, sent, COMMIT, brokers.follower if brokers.follower != old else None)
    brokers.run(1.0)
    assert codes(answers) == [0]
    assert transacting.stored(operation)
    brokers.group.start(old)
    brokers.run(3.0)
    assert [(len(table.open), len(table.ended)) for table in transacting.tables()] == [(0, 1)] * 3


def test_a_transaction_commit_repeated_after_a_failover_is_stored_once() -> None:
    transacting = Transacting()
    brokers, group = transacting.brokers, transacting.brokers.group
    operation, sent = transacting.send()
    old = brokers.leader
    first = transacting.end(operation, sent, COMMIT)
    while codes(first) == [] and not transacting.stored(operation):
        brokers.run(0.0005)
    group.kill(old)
    brokers.run(2.0)
    for _ in range(2):
        again = transacting.end(operation, sent, COMMIT, brokers.leader)
        brokers.run(1.0)
        assert codes(again) == [0]
    group.start(old)
    brokers.run(3.0)
    assert transacting.stored(operation)
    assert [(len(table.open), len(table.ended)) for table in transacting.tables()] == [(0, 1)] * 3


def test_a_deposed_leader_does_not_answer_an_end_from_its_own_state() -> None:
    """A deposed leader does not say what has become of a half.

    1. A leader stages a commit that no other node gets.
    2. The others elect a leader, and take the rollback.
    3. The old leader, which knows nothing of this, must not answer from its own state.
    """
    transacting = Transacting()
    brokers, group = transacting.brokers, transacting.brokers.group
    operation, sent = transacting.send()
    old = brokers.leader
    others = [name for name in group.nodes if name != old]
    for other in others:
        group.network.block(old, other)
        group.network.block(other, old)
    lost = transacting.end(operation, sent, COMMIT, old)
    stays_open = transacting.end(operation, sent, 0, old)
    brokers.run(3.0)
    new = next(name for name in others if (life := group.nodes[name].life) and life.replica.is_ready)
    taken = transacting.end(operation, sent, ROLLBACK, new)
    brokers.run(1.0)
    assert codes(taken) == [0]
    assert 0 not in codes(lost) + codes(stays_open)
    for other in others:
        group.network.unblock(old, other)
        group.network.unblock(other, old)
    brokers.run(4.0)
    assert not transacting.stored(operation)
    assert [(len(table.open), len(table.ended)) for table in transacting.tables()] == [(0, 1)] * 3


def test_halves_survive_a_snapshot_and_hold_the_log() -> None:
    transacting = Transacting()
    brokers, group = transacting.brokers, transacting.brokers.group
    late = brokers.follower
    group.kill(late)
    operation, sent = transacting.send()
    connection = brokers.connect(brokers.leader)
    for _ in range(40):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)
    leader = leading(group)
    part = cast(SimBroker, leader.service)
    position = leader.replica.snapshots.list()[-1].position
    (table, *_) = transacting.tables()
    assert table.lowest is not None
    assert table.lowest < position
    part.trim(position)  # as a full disk would
    brokers.run(1.0)
    group.start(late)
    brokers.run(5.0)
    assert [(len(table.open), table.lost) for table in transacting.tables()] == [(0, 1)] * 3
    answers = transacting.end(operation, sent, COMMIT)
    brokers.run(1.0)
    assert codes(answers) == [1]
    assert not transacting.stored(operation)
