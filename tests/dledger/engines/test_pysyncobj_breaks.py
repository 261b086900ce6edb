"""Every part of the engine that replaces a faulty part of PySyncObj is needed. Without it a promise is broken."""

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

from dledger.core.messages import VoteReply, VoteRequest
from dledger.engines.pysyncobj import PYSYNCOBJ, engine, following, leading, library, outbox
from dledger.errors import ContradictionError
from dledger.types import HardState, ReplicaId, Role
from dledger_base.invariants import InvariantError
from dledger_sim.engine_suite import elections, members, replication, transfers
from dledger_sim.engine_suite import leading as reads
from dledger_sim.engine_suite.groups import Promise


def _disk_answers_at_once(patch: pytest.MonkeyPatch) -> None:
    synced = property(lambda journal: journal.table.last_index, lambda *_: None)
    patch.setattr(library.LogJournal, "durable_index", synced, raising=False)


def _messages_do_not_wait_for_the_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outbox.Outbox, "unsaved", property(lambda _: False, lambda *_: None), raising=False)


def _own_vote_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    campaign = library.Library.campaign

    def counted(one: library.Library) -> None:
        campaign(one)
        one.own_vote_saved()

    patch.setattr(library.Library, "campaign", counted)
    _messages_do_not_wait_for_the_vote(patch)


def _all_entries_are_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "_missing_entries", lambda _, metas: metas)


@instead_of(library.Library, "append")
def _commits_go_as_far_as_the_log(real: Any, one: library.Library, *arguments: object) -> bool:
    *rest, commit_index = arguments
    return real(one, *rest, max(int(str(commit_index)), one._journal.table.last_index))


def _no_pre_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine.PySyncObjEngine, "_start_pre_vote", lambda one, now: one._campaign(now, transferred=True))


def _the_clock_runs_while_the_process_stands(patch: pytest.MonkeyPatch) -> None:
    def pass_to(one: engine.PySyncObjEngine, now: float) -> None:
        one._last_now = one._library.now = now

    patch.setattr(engine.PySyncObjEngine, "_advance_clock", pass_to)


def _nobody_answers(patch: pytest.MonkeyPatch) -> None:
    """Remove the placeholder nodes, so that a leader that is no voter counts itself."""
    set_members = library.Library.set_members

    def without(one: library.Library, me: object, membership: object) -> None:
        set_members(one, me, membership)  # type: ignore[arg-type]
        others = one._sync_obj._SyncObj__otherNodes
        others -= {node for node in others if node.id in (library._NOBODY, library._DISK)}

    patch.setattr(library.Library, "set_members", without)
    patch.setattr(library.Library, "own_vote_saved", lambda _: None)


@instead_of(leading.Leading, "confirm_reads")
def _any_answer_confirms_reads(real: Any, one: leading.Leading) -> None:
    for progress in one.progress.values():
        progress.read_round = one._round if progress.read_round else 0
    real(one)


def _what_lies_beyond_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "_check_committed", lambda *_: None)


@instead_of(engine.PySyncObjEngine, "hard_state_saved")
def _any_save_lets_messages_go(real: Any, one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
    one._outbox.unsaved = False
    real(one, state, now)


@instead_of(engine.PySyncObjEngine, "hard_state_saved")
def _any_save_is_one_of_the_own_vote(real: Any, one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
    if one.role is Role.CANDIDATE:
        state = HardState(one._journal.term, one._journal.vote)
    real(one, state, now)


def _a_vote_is_forgotten_by_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(library.LogJournal, "getVotedForNodeId", lambda _: None)


@instead_of(library.Library, "vote")
def _a_second_vote_is_given(real: Any, one: library.Library, *arguments: object) -> bool:
    one._sync_obj._SyncObj__votedForNodeId = None
    return real(one, *arguments)


@instead_of(engine.PySyncObjEngine, "_on_vote_request")
def _anyone_gets_the_vote(
    real: Any, one: engine.PySyncObjEngine, sender: ReplicaId, request: VoteRequest, now: float
) -> None:
    real(one, sender, msgspec.structs.replace(request, last_index=1 << 40, last_term=1 << 40), now)


@instead_of(engine.PySyncObjEngine, "_on_vote")
def _every_vote_is_passed_on(real: Any, one: engine.PySyncObjEngine, sender: ReplicaId, message: VoteReply) -> None:
    one._counted_votes.clear()
    real(one, sender, message)


@instead_of(engine.PySyncObjEngine, "hard_state_saved")
def _every_save_is_a_vote(real: Any, one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
    one._counted_votes.discard(one.me)
    real(one, state, now)


@instead_of(engine.PySyncObjEngine, "_count_pre_vote")
def _every_promise_is_counted(real: Any, one: engine.PySyncObjEngine, voter: ReplicaId, now: float) -> None:
    if one._pre_votes and voter in one._pre_votes:
        voter = next(other for other in one.membership.voters if other not in one._pre_votes)
    real(one, voter, now)


@instead_of(library.Library, "set_match")
def _what_was_lost_counts_on(real: Any, one: library.Library, peer: ReplicaId, index: int) -> None:
    counted = one._sync_obj._SyncObj__raftMatchIndex[one._node(peer)] - library.OFFSET
    real(one, peer, max(index, counted))


def _what_was_lost_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "may_vote", property(lambda _: True, lambda *_: None), raising=False)


def _answers_claim_all_that_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "_match_index", property(lambda one: one._journal.durable_index))


@instead_of(library.LogJournal, "setCurrentTerm")
def _an_older_leaders_entries_stay_verified(
    real: Any, one: library.LogJournal, term: int, vote: ReplicaId | None
) -> None:
    verified = one.verified_index
    real(one, term, vote)
    one.verified_index = verified


BREAKS: dict[Break, Promise] = {
    _disk_answers_at_once: replication.entries_durable_on_a_majority_are_committed,
    _own_vote_counts_at_once: elections.votes_count_only_once_durable,
    _all_entries_are_passed_on: replication.message_can_be_split,
    _commits_go_as_far_as_the_log: replication.uncommitted_entries_of_another_leader_are_replaced,
    _no_pre_votes: elections.returning_member_does_not_depose_the_leader,
    _the_clock_runs_while_the_process_stands: elections.late_tick_starts_no_election,
    _nobody_answers: members.leaving_leader_leads_until_the_commit,
    _any_answer_confirms_reads: reads.read_is_confirmed_by_answers_to_later_messages_only,
    _what_lies_beyond_is_not_asked_for: replication.contradiction_of_committed_entries_is_refused,
    _any_save_lets_messages_go: elections.save_counts_for_its_own_state_only,
    _any_save_is_one_of_the_own_vote: elections.own_vote_counts_in_its_saved_term_only,
    _a_vote_is_forgotten_by_a_start: elections.voter_votes_once_a_term,
    _a_second_vote_is_given: elections.voter_votes_once_a_term,
    _anyone_gets_the_vote: replication.entries_on_the_others_survive_the_leaders_loss,
    _every_vote_is_passed_on: elections.repeated_vote_counts_once,
    _every_save_is_a_vote: elections.repeated_vote_counts_once,
    _every_promise_is_counted: elections.repeated_pre_vote_counts_once,
    anyone_hands_over(engine.PySyncObjEngine): transfers.member_campaigns_only_for_its_leaders_handover,
    who_led_hands_over(engine.PySyncObjEngine): transfers.member_campaigns_only_for_its_leaders_handover,
    a_truncation_keeps_what_was_durable(
        library.LogJournal, "deleteEntriesFrom"
    ): replication.entries_after_a_truncation_are_not_yet_durable,
    _what_was_lost_counts_on: replication.follower_does_not_count_for_lost_entries,
    _what_was_lost_votes: replication.entries_on_one_follower_survive_the_leaders_loss,
    _answers_claim_all_that_is_durable: replication.entries_of_another_leader_are_not_acknowledged,
    _an_older_leaders_entries_stay_verified: replication.entries_of_another_leader_are_not_acknowledged,
    any_answer_ends_a_probe: replication.member_trimmed_beyond_the_leader_gets_no_snapshot,
}


@pytest.mark.parametrize(("broken", "promise"), BREAKS.items(), ids=lambda one: one.__name__.strip("_"))
def test_a_broken_pysyncobj_engine_violates_a_promise(
    monkeypatch: pytest.MonkeyPatch, broken: Break, promise: Promise
) -> None:
    broken(monkeypatch)
    with pytest.raises((InvariantError, ContradictionError)):
        promise(PYSYNCOBJ)
