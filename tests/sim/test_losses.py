"""A loss that an operator accepts excuses that loss, and nothing else."""

import pytest

from dledger.types import ReplicaId
from dledger_sim.log.losses import Losses
from dledger_sim.log.violation import Violation

A, B = ReplicaId("a", "1"), ReplicaId("b", "1")
ENTRIES = [(1, 100, 7), (1, 200, 8)]


def test_without_an_operator_nothing_that_is_committed_is_lost() -> None:
    losses = Losses()
    losses.power_lost(A, 9)
    with pytest.raises(Violation, match="only if an operator accepts the loss"):
        losses.lose(5, ENTRIES)


def test_entries_in_every_accepted_log_must_not_be_lost() -> None:
    losses = Losses()
    losses.accepted(A, 6)
    losses.accepted(B, 4)
    assert [losses.may_lose(index) for index in (4, 5)] == [False, True]
    assert [losses.must_hold(last) for last in (3, 9)] == [3, 4]
    losses.lose(5, ENTRIES)
    assert losses.positions == [100]
    assert [losses.is_void(index, crc) for index, crc in ((5, 7), (6, 8), (5, 8), (7, 8))] == [True, True, False, False]


def test_a_node_is_in_doubt_from_a_power_loss_until_that_is_made_good_or_the_group_is_settled() -> None:
    losses = Losses()
    losses.power_lost(A, 5)
    losses.power_lost(A, 3)
    assert losses.is_in_doubt(A)
    assert losses.excuses(A, 1)
    assert not losses.excuses(B, 1)
    assert losses.made_good(A) == 5
    assert not losses.is_in_doubt(A)
    assert not losses.excuses(A, 1)
    losses.accepted(A, 4)
    assert losses.excuses(A, 5)
    losses.settled()
    assert not losses.may_lose(5)
    assert not losses.excuses(A, 5)
    assert losses.must_hold(9) == 9
