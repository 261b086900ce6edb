"""A process that was stopped may read its messages before it looks at its timers, or after.

Neither order disturbs the group.
"""

from dledger.core.messages import Heartbeat, HeartbeatReply
from dledger.types import Role
from dledger_sim.cores import CoreGroup


def test_a_paused_leader_heard_once_still_notices_its_isolation() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.now += 30
    group.send("b", "a", HeartbeatReply(1, 0, 0))
    group.tick("a")
    group.isolate("a")
    group.pass_time(5, "a")
    assert group["a"].role is not Role.LEADER


def test_a_paused_follower_that_heard_its_leader_once_still_campaigns_later() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.now += 30
    group.send("a", "b", Heartbeat(1, 0))
    group.tick("b")
    group.isolate("b")
    group.pass_time(5, "b")
    assert group["b"].role is Role.PRE_CANDIDATE
