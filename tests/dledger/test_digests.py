"""Replicas publish digests of their state. A replica that differs from a majority notices."""

from dledger.replica.snapshots.marks import KEPT_MARKS, Digest, DigestVotes, Verdict
from dledger.types import Membership, ReplicaId

A, B, C, LEARNER = (ReplicaId(name, "1") for name in "abcd")
GROUP = Membership((A, B, C), (LEARNER,))


def digest(replica: ReplicaId, value: int, position: int = 1000) -> Digest:
    return Digest(position, *replica, value)


def verdicts(votes: DigestVotes, me: ReplicaId, *digests: Digest) -> list[Verdict]:
    return [votes.record(each, GROUP, me) for each in digests]


def test_equal_states_agree_once_a_majority_has_spoken():
    found = verdicts(DigestVotes(), A, digest(A, 1), digest(B, 1), digest(C, 1))
    assert found == [Verdict.OPEN, Verdict.AGREED, Verdict.AGREED]
    of_others = verdicts(DigestVotes(), A, digest(A, 1, 1000), digest(B, 1, 2000), digest(C, 1, 3000))
    assert set(of_others) == {Verdict.OPEN}, "marks are compared with themselves only"


def test_the_differing_replica_is_found_in_any_order_of_digests():
    odd, *others = digest(C, 2), digest(A, 1), digest(B, 1)
    for order in ([odd, *others], [others[0], odd, others[1]], [*others, odd]):
        assert Verdict.SELF_DIFFERS in verdicts(DigestVotes(), C, *order)
        assert Verdict.SELF_DIFFERS not in verdicts(DigestVotes(), A, *order)


def test_replicas_without_a_majority_digest_disagree_until_a_majority_forms():
    votes = DigestVotes()
    assert verdicts(votes, A, digest(A, 1), digest(B, 2), digest(C, 3))[-1] is Verdict.NO_MAJORITY
    assert votes.has_dispute(GROUP)
    verdicts(votes, A, digest(A, 5, 2000), digest(B, 5, 2000))
    assert not votes.has_dispute(GROUP)


def test_a_dispute_ends_when_an_agreeing_learner_becomes_a_voter():
    votes, two = DigestVotes(), Membership((A, B), (C,))
    for each in (digest(C, 2), digest(A, 1), digest(B, 2)):
        votes.record(each, two, A)
    assert votes.has_dispute(two)
    assert not votes.has_dispute(GROUP)


def test_a_dispute_ends_when_the_digest_of_a_new_voter_makes_a_majority():
    votes = DigestVotes()
    for each in (digest(A, 1), digest(B, 2)):
        votes.record(each, Membership((A, B)), A)
    assert votes.has_dispute(GROUP), "the third one has not spoken"
    votes.record(digest(C, 1), GROUP, A)
    assert not votes.has_dispute(GROUP)


def test_a_silent_voter_leaves_the_question_open():
    votes = DigestVotes()
    assert verdicts(votes, A, digest(A, 1), digest(B, 2)) == [Verdict.OPEN, Verdict.OPEN]
    assert not votes.has_dispute(GROUP)


def test_learners_and_former_incarnations_do_not_count_but_learners_find_out():
    votes = DigestVotes()
    former = ReplicaId("b", "0")
    assert verdicts(votes, A, digest(A, 1), digest(LEARNER, 2), digest(former, 2)) == [Verdict.OPEN] * 3
    assert verdicts(votes, LEARNER, digest(B, 1)) == [Verdict.SELF_DIFFERS]


def test_recorded_digests_are_known():
    votes = DigestVotes()
    votes.record(digest(A, 1), GROUP, A)
    assert votes.is_recorded(digest(A, 1))
    assert not votes.is_recorded(digest(A, 2))
    assert not votes.is_recorded(digest(B, 1))


def test_a_digest_of_a_mark_older_than_the_kept_marks_counts_as_known():
    votes = DigestVotes()
    for number in range(KEPT_MARKS):
        assert not votes.is_recorded(digest(B, 1, 1000))
        votes.record(digest(A, 1, 2000 + number), GROUP, A)
    for late in (digest(B, 1, 1000), digest(B, 2, 1000)):
        assert votes.is_recorded(late)
        votes.record(late, GROUP, A)
        assert votes.is_recorded(late)
    assert not votes.is_recorded(digest(B, 1, 2000))
    assert not votes.is_recorded(digest(B, 1, 9000))
