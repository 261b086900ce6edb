"""A replica that still has committed entries whose loss an operator accepted must not influence the group.

With `flush = "async"` a power loss may take the same committed entries from a majority. `recover --accept-loss` lets
these nodes vote, and the group continues without the entries. A replica that still has them is contradicted, and comes
back as another incarnation. Until then it must neither stop the leader nor count towards a commit.
"""

import pytest

from dledger.core.messages import Append, AppendReply, HeartbeatReply, InstallSnapshot
from dledger.errors import ContradictionError
from dledger.types import Membership
from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import entries, replica

KEPT, LOST = 3, 4


def after_an_accepted_loss() -> CoreGroup:
    """Return a group in which `a` leads with the same log as `b`. Only `c` kept the later committed entries."""
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", KEPT + LOST - 1)
    group.settle()
    group.pass_time(0.2)
    assert group["c"].commit_index == KEPT + LOST - 1
    group.isolate("c")
    for name in ("a", "b"):
        group.members[name].durable = KEPT
        group.crash(name)
    for index in range(KEPT, KEPT + LOST):
        del group.committed[index]  # the operator has accepted their loss
    group.pass_time(1.0, "c")
    group.elect("a")
    return group


@pytest.mark.parametrize("written", [0, LOST, 2 * LOST], ids=["shorter", "as long", "longer"])
def test_the_replica_that_has_more_is_contradicted_and_the_leader_lives(written: int) -> None:
    group = after_an_accepted_loss()
    group.propose("a", written)
    group.heal()
    with pytest.raises(ContradictionError, match="committed here"):
        group.pass_time(1.0)
    assert group["a"].is_leader


@pytest.mark.parametrize("written", [LOST - 1, 2 * LOST])
def test_acknowledgements_of_a_replica_with_other_entries_commit_nothing(written: int) -> None:
    group = after_an_accepted_loss()
    group.settle()
    committed = group["a"].commit_index
    group.isolate("b")
    group.propose("a", written)
    group.join(("a", "c"), ("c", "a"))
    group["a"].peer_connected(replica("c"), group.now)
    group.run("a")
    with pytest.raises(ContradictionError):
        group.pass_time(0.3, "a", "c")
    assert group["a"].commit_index == committed


def test_a_heartbeat_that_overtakes_every_append_verifies_nothing() -> None:
    group = after_an_accepted_loss()
    group.propose("a", 2 * LOST)
    group.settle()
    group.heal()
    beats = [sent for sent in group.wire if sent.to == "c" and not isinstance(sent.message, Append)]
    assert beats
    for beat in beats:
        group.wire.remove(beat)
        group.deliver(beat)
    answers = [sent.message for sent in group.wire if sent.sender == "c"]
    assert [answer.match_index for answer in answers if isinstance(answer, HeartbeatReply)] == [-1] * len(beats)


def test_nothing_is_verified_at_the_start_of_a_term() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 1, 2), entries(1, 1))
    assert group["a"].commit_index == 1
    (reply,) = group.send("c", "a", Append(2, 1, 1, 1))
    assert isinstance(reply, AppendReply)
    assert (reply.match_index, reply.verified_index) == (1, 1)
    group.send("b", "a", Append(3, 0, 1, 0))
    assert group["a"].verified_index == 0, "an append verifies up to where it joins, not what was committed before"


def test_an_append_below_the_base_is_answered_with_the_base() -> None:
    """Nothing is known of the entries below the base.

    If they counted as verified, the answer would acknowledge any entry there.
    """
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 3, 4), entries(1, 1, 1, 1))
    group.compact("a", 2)
    (reply,) = group.send("c", "a", Append(2, 0, 1, 0))
    assert isinstance(reply, AppendReply)
    assert reply.rejected
    assert (reply.hint_index, reply.hint_term, reply.verified_index) == (2, 1, -1)


def test_a_replica_whose_log_begins_behind_the_leaders_end_is_contradicted_later() -> None:
    group = after_an_accepted_loss()
    group.settle()
    group.compact("c", KEPT + LOST - 2)
    group.heal()
    group.pass_time(1.0)
    assert group["a"].is_leader
    assert group["c"].verified_index == -1
    group.propose("a", 2 * LOST)
    with pytest.raises(ContradictionError):
        group.pass_time(1.0)
    assert group["a"].is_leader


def test_a_follower_whose_log_begins_later_than_known_joins_at_its_base() -> None:
    group = CoreGroup("a", "b", "c")
    group.elect("a")
    group.propose("a", 6)
    group.settle()
    group.pass_time(0.2)
    group.isolate("c")
    group.compact("c", 4)
    group["a"].progress[replica("c")].restart(2)  # its acknowledgements were lost
    group["a"].progress[replica("c")].match_index = 1
    group.heal()
    last = group.propose("a", 2)
    group.pass_time(0.5)
    assert group["c"].commit_index == last


def test_a_snapshot_that_differs_from_committed_entries_contradicts() -> None:
    group = CoreGroup("a", "b", "c")
    group.send("b", "a", Append(1, -1, 0, 3, 4), entries(1, 1, 1, 1))
    install = InstallSnapshot(2, 96, 1, 2, 0, Membership((replica("a"), replica("b"), replica("c"))), -1)
    with pytest.raises(ContradictionError):
        group.send("c", "a", install)


def test_a_voter_that_lost_its_whole_log_still_votes_for_the_leader() -> None:
    """`a` made `d` a voter, and then `d` lost its whole log. Without the vote of `d` no leader can be elected."""
    group = CoreGroup("a", strangers=("d",))
    group.elect("a")
    for membership in (
        Membership((replica("a"),), (replica("d"),)),
        Membership((replica("a"), replica("d"))),
    ):
        group.propose("a", membership=membership)
        group.settle()
        group.pass_time(0.2)
    for name, kept in (("a", len(group.members["a"].log)), ("d", 0)):
        group.members[name].durable = kept
        group.crash(name)
    group.pass_time(3.0)
    assert group["a"].is_leader
    assert group["d"].table.last_index == group["a"].table.last_index
