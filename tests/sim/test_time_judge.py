"""Judge of group time: how far a leader's group time may be ahead of the clocks of a majority."""

from types import SimpleNamespace
from typing import Any

import pytest

from dledger_sim.brokers.group_times import BUSY_S, SLACK_MS, TimeJudge
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.invariants import Violation
from dledger_sim.log.scheduler import Scheduler


def judge(ahead_ms: int, *, calls_take_time: bool) -> None:
    """Judge a group time that is ahead of all clocks."""
    times = TimeJudge(Scheduler(), calls_take_time=calls_take_time)
    voters = [SimpleNamespace(node_id=f"n{number}") for number in range(3)]
    times._clock_errors.update((voter.node_id, lambda: 0) for voter in voters)
    membership = SimpleNamespace(voters=voters, quorum=2)
    node = SimpleNamespace(name="n0", lives=1)
    life: Any = SimpleNamespace(node=node, replica=SimpleNamespace(engine=SimpleNamespace(membership=membership)))
    machine: Any = SimpleNamespace(leadership=SimpleNamespace(term=1))
    times._judge_group_time(life, machine, WALL_EPOCH_MS + ahead_ms)


@pytest.mark.parametrize("calls_take_time", [False, True])
def test_group_time_may_be_ahead_by_the_lead_of_a_busy_leaders_own_clock_and_no_more(calls_take_time: bool) -> None:
    """A busy leader carries the clocks of others on by its own monotonic clock, ahead where calls take time."""
    most_ms = SLACK_MS + int(BUSY_S * 1000) * calls_take_time
    judge(most_ms, calls_take_time=calls_take_time)
    with pytest.raises(Violation, match="not ahead of the clocks"):
        judge(most_ms + 1, calls_take_time=calls_take_time)
