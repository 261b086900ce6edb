"""Warnings about differences between members are logged once the difference has lasted, and again after a minute."""

import logging
from types import SimpleNamespace

import pytest

from dledger.consensus.peers import ClockReading
from dledger.core.progress import Progress
from dledger.replica.upkeep.watching import LASTING_S, REPEAT_S, Warnings
from dledger.types import Membership, ReplicaId

MEMBERS = Membership(tuple(ReplicaId(f"n{number}", f"i{number}") for number in range(3)))
NOON_MS = 1_700_000_000_000


def engine(ahead_ms: int = 0, answered_at: float = 0.0, members: Membership = MEMBERS) -> SimpleNamespace:
    progress = Progress(0, answered_at)
    progress.clock = ClockReading(NOON_MS + ahead_ms, answered_at, answered_at)
    return SimpleNamespace(
        progress={MEMBERS.voters[1]: progress}, wall_ms=NOON_MS, leader=MEMBERS.voters[0], membership=members
    )


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, logger="dledger.replica.upkeep.watching")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("ahead_ms", "words"), [(9_000, "9000 ms ahead of"), (-9_000, "9000 ms behind")])
def test_a_wrong_clock_is_logged_with_both_nodes_once_per_interval(said, ahead_ms, words):
    warnings = Warnings("n0", frozenset({"n0", "n1", "n2"}))
    for tenth in range(round(10 * (LASTING_S + REPEAT_S))):
        warnings.log_due(engine(ahead_ms, tenth / 10), tenth / 10)
    assert len(said()) == 1
    assert all(part in said()[0] for part in (words, "peer=n1", "leader n0", "at most 5000 ms"))
    later = LASTING_S + REPEAT_S
    warnings.log_due(engine(ahead_ms, later), later)
    assert len(said()) == 2


def test_a_short_clock_difference_is_not_logged(said):
    warnings = Warnings("n0", frozenset({"n0", "n1", "n2"}))
    for tenth in range(100):
        warnings.log_due(engine(9_000 if tenth % 20 < 10 else 0, tenth / 10), tenth / 10)
    assert said() == []


def test_a_configuration_with_other_members_is_logged_with_both_lists(said):
    warnings = Warnings("n0", frozenset({"n0", "n1", "n9"}))
    warnings.log_due(engine(), 0.0)
    warnings.log_due(engine(answered_at=LASTING_S), LASTING_S)
    assert len(said()) == 1
    assert "n0, n1, n9" in said()[0]
    assert "n0, n1, n2" in said()[0]
