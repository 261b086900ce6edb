"""Joining a group takes one change at a time, and never costs safety."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.consensus.peers import Mode
from dledger.core.progress import Progress
from dledger.replica.upkeep.members import REPLACE_AFTER_S, JoiningPolicy, promote, replace, without
from dledger.types import Membership, ReplicaId

A, B, C = (ReplicaId(name, "1") for name in "abc")
WIPED_C = ReplicaId("c", "2")
STRANGER = ReplicaId("x", "1")
GROUP = Membership((A, B, C))


def progress(match_index: int = -1) -> Progress:
    known = Progress(match_index + 1, 0.0)
    known.match_index, known.mode, known.contact_at = match_index, Mode.STREAM, 0.0
    return known


class Leader:
    """Leader that asks the policy for the next change. Its facts are attributes."""

    def __init__(self, membership: Membership, learners: Iterable[str] = ()) -> None:
        self.policy = JoiningPolicy("abc", learners)
        self.membership = membership
        self.connected: list[ReplicaId] = []
        self.progress = {member: progress() for member in membership.members}
        self.commit_index = 100
        self.now = 0.0

    def due(self) -> Membership | None:
        return self.policy.next_membership(self.membership, self.connected, self.progress, self.commit_index, self.now)


def test_a_wanted_node_becomes_a_learner_and_a_stranger_does_not():
    leader = Leader(Membership((A,)))
    leader.connected = [STRANGER]
    assert leader.due() is None
    leader.connected = [STRANGER, B]
    assert leader.due() == Membership((A,), (B,))


def test_a_lost_directory_is_replaced_once_its_old_incarnation_is_silent():
    leader = Leader(GROUP)
    leader.connected = [B, C]
    assert leader.due() is None, "a whole group needs no change"
    leader.connected = [B, WIPED_C]
    leader.now = REPLACE_AFTER_S - 0.1
    assert leader.due() is None
    leader.now = REPLACE_AFTER_S
    assert leader.due() == Membership((A, B), (WIPED_C,))
    leader.progress[C].contact_at = leader.now = 1000.0
    assert leader.due() is None, "the old incarnation is still heard"


def test_a_learner_is_promoted_once_it_has_the_commit_of_a_round_ago():
    leader = Leader(Membership((A,), (B,)))
    leader.progress[B] = progress(50)
    assert leader.due() is None, "the round begins"
    leader.progress[B].match_index = 99
    assert leader.due() is None
    leader.commit_index = 500
    assert leader.due() is None
    leader.progress[B].match_index = 499
    assert leader.due() is None, "what was committed a round ago is more by now"
    leader.commit_index = 600
    leader.progress[B].match_index = 500
    assert leader.due() == Membership((A, B))


@pytest.mark.parametrize(
    ("state", "learners"),
    [({"mode": Mode.PROBE}, ""), ({"mode": Mode.SNAPSHOT}, ""), ({"healthy": False}, ""), ({}, "b"), ({}, "")],
    ids=["probed", "sent a snapshot", "unhealthy", "a permanent learner", "promoted"],
)
def test_only_a_healthy_learner_that_is_streaming_and_no_permanent_one_is_promoted(state, learners: str):
    leader = Leader(Membership((A,), (B,)), learners)
    leader.progress[B] = progress(100)
    for name, value in state.items():
        setattr(leader.progress[B], name, value)
    assert leader.due() == (None if state or learners else Membership((A, B)))


@given(
    voters=st.sets(st.sampled_from("abc"), min_size=1),
    learners=st.sets(st.sampled_from("abc")),
    connected=st.sets(st.tuples(st.sampled_from("abcx"), st.sampled_from("12"))),
    matches=st.dictionaries(st.sampled_from("abc"), st.integers(-1, 200)),
    now=st.floats(0, 100),
)
def test_a_change_affects_at_most_one_voter_and_lists_no_node_twice(
    voters: set[str], learners: set[str], connected: set[tuple[str, str]], matches: dict[str, int], now: float
):
    membership = Membership(
        tuple(ReplicaId(name, "1") for name in sorted(voters)),
        tuple(ReplicaId(name, "1") for name in sorted(learners - voters)),
    )
    leader = Leader(membership)
    leader.connected = [ReplicaId(*each) for each in sorted(connected)]
    leader.now = now
    for member in membership.members:
        leader.progress[member].match_index = matches.get(member.node_id, -1)
    after = leader.due()
    if after is not None:
        assert len(set(membership.voters) ^ set(after.voters)) <= 1
        names = [member.node_id for member in after.members]
        assert len(names) == len(set(names))
        assert after != membership


def test_replacing_promoting_and_removing_give_the_expected_membership():
    assert replace(GROUP, C, WIPED_C) == Membership((A, B), (WIPED_C,))
    assert promote(Membership((A,), (B, C)), B) == Membership((A, B), (C,))
    assert without(Membership((A, B), (C,)), B) == Membership((A,), (C,))
    assert without(Membership((A, B), (C,)), C) == Membership((A, B))
