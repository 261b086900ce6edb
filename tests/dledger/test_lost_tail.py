"""A follower that comes back without the end of what it acknowledged (`flush = "async"`, and its host went down)."""

from dledger.testing.cores import CoreGroup
from dledger.testing.engine_group import replica


def test_a_follower_that_lost_its_tail_is_brought_up_to_date_by_the_same_leader() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    last = group.propose("a", 5)
    group.settle()
    leader, known = group["a"], group["a"].progress[replica("b")]
    assert known.match_index == last
    group.members["b"].durable = 3
    group.crash("b")
    group["b"].may_vote = False
    group.heal()
    group.settle()
    assert group.members["b"].terms == group.members["a"].terms
    assert leader.is_leader
    assert known.match_index == last
    group.propose("a")
    group.settle()
    group.pass_time(0.5)
    assert group["b"].may_vote


def test_what_a_follower_lost_is_not_counted_for_it() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", 5)
    group.settle()
    group.members["b"].durable = 3
    group.crash("b")
    group["a"].peer_connected(replica("b"), group.now)
    group.run("a")
    group.hold(lambda envelope: envelope.to == "b" and bool(envelope.metas))
    group.settle()
    assert group["a"].progress[replica("b")].match_index < 3
