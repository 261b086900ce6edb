"""A process that was stopped reads what had come before it looks at its timers; neither order may disturb them."""

from dledger.core.messages import Heartbeat, HeartbeatReply
from dledger.testing.cores import CoreGroup
from dledger.types import Role


def test_a_leader_that_was_stopped_and_then_heard_once_still_notices_that_it_is_alone() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.now += 30
    group.send("b", "a", HeartbeatReply(1, 0, 0))
    group.tick("a")
    group.isolate("a")
    group.pass_time(5, "a")
    assert group["a"].role is not Role.LEADER


def test_a_follower_that_was_stopped_and_then_heard_its_leader_once_still_campaigns_when_it_falls_silent() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.pass_time(0.3)
    group.now += 30
    group.send("a", "b", Heartbeat(1, 0))
    group.tick("b")
    group.isolate("b")
    group.pass_time(5, "b")
    assert group["b"].role is Role.PRE_CANDIDATE
