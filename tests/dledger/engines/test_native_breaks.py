"""Bugs of the native engine, each of which breaks the promise beside it.

Those that the simulator knows stand in `tests/sim/test_engine_suite.py`.
"""

import msgspec
import pytest
from common_breaks import Break, any_answer_ends_a_probe

from dledger.core.messages import AppendReply, TimeoutNow
from dledger.core.progress import Progress
from dledger.core.raft import Raft
from dledger.engines.native import NATIVE
from dledger.invariants import InvariantError
from dledger.testing.engine_suite import elections, replication, transfers
from dledger.testing.engine_suite.groups import Promise
from dledger.types import HardState, ReplicaId, Role


def _any_save_lets_messages_go(patch: pytest.MonkeyPatch) -> None:
    def saved(one: Raft, state: HardState, now: float) -> None:
        one._unsaved = False
        real(one, state, now)

    real = Raft.hard_state_saved
    patch.setattr(Raft, "hard_state_saved", saved)


def _any_save_is_one_of_the_own_vote(patch: pytest.MonkeyPatch) -> None:
    def saved(one: Raft, state: HardState, now: float) -> None:
        if state != (one.term, one.vote) and one.role is Role.CANDIDATE:
            one._count_vote(one.me, now)
        real(one, state, now)

    real = Raft.hard_state_saved
    patch.setattr(Raft, "hard_state_saved", saved)


def _a_vote_is_forgotten_by_a_start(patch: pytest.MonkeyPatch) -> None:
    def begin(one: Raft, *arguments: object, **named: object) -> None:
        real(one, *arguments, **named)  # type: ignore[arg-type]
        one.vote = None

    real = Raft.__init__
    patch.setattr(Raft, "__init__", begin)


def _count_each(one: Raft, voter: ReplicaId) -> None:
    """Count a vote that was counted as that of somebody else."""
    if voter in one._votes:
        one._votes.add(next(other for other in one.table.membership.voters if other not in one._votes))


def _every_vote_is_counted(role: Role) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> None:
        def count(one: Raft, voter: ReplicaId, now: float) -> None:
            if one.role is role and voter != one.me:
                _count_each(one, voter)
            real(one, voter, now)

        real = Raft._count_vote
        patch.setattr(Raft, "_count_vote", count)

    broken.__name__ = f"_every_vote_of_a_{role.name.lower()}_is_counted"
    return broken


def _every_save_is_a_vote(patch: pytest.MonkeyPatch) -> None:
    def count(one: Raft, voter: ReplicaId, now: float) -> None:
        if one.role is Role.CANDIDATE and voter == one.me:
            _count_each(one, voter)
        real(one, voter, now)

    real = Raft._count_vote
    patch.setattr(Raft, "_count_vote", count)


def _anyone_hands_over(patch: pytest.MonkeyPatch) -> None:
    def step(one: Raft, sender: ReplicaId, message: object, now: float, *entries: object) -> None:
        if isinstance(message, TimeoutNow) and message.term == one.term and one.leader is not None:
            sender = one.leader
        real(one, sender, message, now, *entries)  # type: ignore[arg-type]

    real = Raft.step
    patch.setattr(Raft, "step", step)


def _who_led_hands_over(patch: pytest.MonkeyPatch) -> None:
    def step(one: Raft, sender: ReplicaId, message: object, now: float, *entries: object) -> None:
        if isinstance(message, TimeoutNow) and message.term < one.term and one.leader is not None:
            sender, message = one.leader, TimeoutNow(one.term)
        real(one, sender, message, now, *entries)  # type: ignore[arg-type]

    real = Raft.step
    patch.setattr(Raft, "step", step)


def _a_truncation_keeps_what_was_durable(patch: pytest.MonkeyPatch) -> None:
    def truncate(one: Raft, index: int) -> None:
        durable = one.durable_index
        real(one, index)
        one.durable_index = durable

    real = Raft._truncate
    patch.setattr(Raft, "_truncate", truncate)


def _what_was_lost_counts_on(patch: pytest.MonkeyPatch) -> None:
    def rejected(one: Progress, match_index: int, next_index: int) -> None:
        counted = one.match_index
        real(one, match_index, next_index)
        one.match_index = counted

    real = Progress.rejected
    patch.setattr(Progress, "rejected", rejected)


def _what_was_lost_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "may_vote", property(lambda _: True, lambda *_: None), raising=False)


def _answers_claim_all_that_is_durable(patch: pytest.MonkeyPatch) -> None:
    def reply(one: Raft, *rejection: int, **named: int) -> AppendReply:
        return msgspec.structs.replace(real(one, *rejection, **named), match_index=one.durable_index)

    real = Raft._reply
    patch.setattr(Raft, "_reply", reply)
    patch.setattr(Raft, "_match_index", property(lambda one: one.durable_index))


BREAKS: dict[Break, Promise] = {
    _any_save_lets_messages_go: elections.a_save_counts_for_what_it_has_saved,
    _any_save_is_one_of_the_own_vote: elections.an_own_vote_counts_in_the_term_that_was_saved,
    _a_vote_is_forgotten_by_a_start: elections.nobody_votes_twice_in_a_term,
    _every_vote_is_counted(Role.CANDIDATE): elections.votes_are_counted_by_voter,
    _every_save_is_a_vote: elections.votes_are_counted_by_voter,
    _every_vote_is_counted(Role.PRE_CANDIDATE): elections.a_promise_to_vote_is_counted_by_voter,
    _anyone_hands_over: transfers.leadership_is_handed_over_by_its_holder_alone,
    _who_led_hands_over: transfers.leadership_is_handed_over_by_its_holder_alone,
    _a_truncation_keeps_what_was_durable: replication.a_truncation_takes_what_was_durable,
    _what_was_lost_counts_on: replication.a_follower_counts_for_what_it_has_not_lost,
    _what_was_lost_votes: replication.what_one_other_has_outlives_the_leader_that_loses_it,
    _answers_claim_all_that_is_durable: replication.what_another_leader_brought_is_not_acknowledged,
    any_answer_ends_a_probe: replication.who_lacks_nothing_that_is_gone_gets_no_snapshot,
}


@pytest.mark.parametrize(("broken", "promise"), BREAKS.items(), ids=lambda one: one.__name__.strip("_"))
def test_with_it_a_promise_is_broken(monkeypatch: pytest.MonkeyPatch, broken: Break, promise: Promise) -> None:
    broken(monkeypatch)
    with pytest.raises(InvariantError):
        promise(NATIVE)
