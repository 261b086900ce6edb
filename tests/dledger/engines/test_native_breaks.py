"""Bugs of the native engine. Each of them breaks the promise beside it.

The bugs that the simulator knows are in `tests/sim/test_engine_suite.py`.
"""

from typing import Any

import msgspec
import pytest
from common_breaks import (
    Break,
    a_truncation_keeps_what_was_durable,
    any_answer_ends_a_probe,
    anyone_hands_over,
    instead_of,
    who_led_hands_over,
)

from dledger.core.messages import AppendReply
from dledger.core.progress import Progress
from dledger.core.raft import Raft
from dledger.engines.named import NATIVE
from dledger.types import HardState, ReplicaId, Role
from dledger_base.invariants import InvariantError
from dledger_sim.engine_suite import elections, replication, transfers
from dledger_sim.engine_suite.groups import Promise


@instead_of(Raft, "hard_state_saved")
def _any_save_lets_messages_go(real: Any, one: Raft, state: HardState, now: float) -> None:
    one._unsaved = False
    real(one, state, now)


@instead_of(Raft, "hard_state_saved")
def _any_save_is_one_of_the_own_vote(real: Any, one: Raft, state: HardState, now: float) -> None:
    if state != (one.term, one.vote) and one.role is Role.CANDIDATE:
        one._count_vote(one.me, now)
    real(one, state, now)


@instead_of(Raft, "__init__")
def _a_vote_is_forgotten_by_a_start(real: Any, one: Raft, *arguments: object, **named: object) -> None:
    real(one, *arguments, **named)
    one.vote = None


def _count_each(one: Raft, voter: ReplicaId) -> None:
    """Count a voter's second vote as a vote of another voter."""
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


@instead_of(Raft, "_count_vote")
def _every_save_is_a_vote(real: Any, one: Raft, voter: ReplicaId, now: float) -> None:
    if one.role is Role.CANDIDATE and voter == one.me:
        _count_each(one, voter)
    real(one, voter, now)


@instead_of(Progress, "note_rejected")
def _what_was_lost_counts_on(real: Any, one: Progress, match_index: int, next_index: int) -> None:
    counted = one.match_index
    real(one, match_index, next_index)
    one.match_index = counted


def _what_was_lost_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Raft, "may_vote", property(lambda _: True, lambda *_: None), raising=False)


def _answers_claim_all_that_is_durable(patch: pytest.MonkeyPatch) -> None:
    def reply(one: Raft, *rejection: int, **named: int) -> AppendReply:
        return msgspec.structs.replace(real(one, *rejection, **named), match_index=one.durable_index)

    real = Raft._reply
    patch.setattr(Raft, "_reply", reply)
    patch.setattr(Raft, "_match_index", property(lambda one: one.durable_index))


BREAKS: dict[Break, Promise] = {
    _any_save_lets_messages_go: elections.save_counts_for_its_own_state_only,
    _any_save_is_one_of_the_own_vote: elections.own_vote_counts_in_its_saved_term_only,
    _a_vote_is_forgotten_by_a_start: elections.voter_votes_once_a_term,
    _every_vote_is_counted(Role.CANDIDATE): elections.repeated_vote_counts_once,
    _every_save_is_a_vote: elections.repeated_vote_counts_once,
    _every_vote_is_counted(Role.PRE_CANDIDATE): elections.repeated_pre_vote_counts_once,
    anyone_hands_over(Raft): transfers.member_campaigns_only_for_its_leaders_handover,
    who_led_hands_over(Raft): transfers.member_campaigns_only_for_its_leaders_handover,
    a_truncation_keeps_what_was_durable(Raft, "_truncate"): replication.entries_after_a_truncation_are_not_yet_durable,
    _what_was_lost_counts_on: replication.follower_does_not_count_for_lost_entries,
    _what_was_lost_votes: replication.entries_on_one_follower_survive_the_leaders_loss,
    _answers_claim_all_that_is_durable: replication.entries_of_another_leader_are_not_acknowledged,
    any_answer_ends_a_probe: replication.member_trimmed_beyond_the_leader_gets_no_snapshot,
}


@pytest.mark.parametrize(("broken", "promise"), BREAKS.items(), ids=lambda one: one.__name__.strip("_"))
def test_a_broken_native_engine_violates_a_promise(
    monkeypatch: pytest.MonkeyPatch, broken: Break, promise: Promise
) -> None:
    broken(monkeypatch)
    with pytest.raises(InvariantError):
        promise(NATIVE)
