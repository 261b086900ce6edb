"""What stands in the place of a fault of PySyncObj is needed: without it a promise of an engine is broken."""

import msgspec
import pytest
from common_breaks import Break, any_answer_ends_a_probe

from dledger.consensus.messages import Message
from dledger.core.messages import TimeoutNow, VoteReply, VoteRequest
from dledger.engines.pysyncobj import engine, following, leading, library, outbox
from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.errors import ContradictionError
from dledger.invariants import InvariantError
from dledger.testing.engine_suite import elections, members, replication, transfers
from dledger.testing.engine_suite import leading as reads
from dledger.testing.engine_suite.groups import Promise
from dledger.types import HardState, ReplicaId, Role


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
    patch.setattr(following.Following, "_missing", lambda _, metas: metas)


def _commits_go_as_far_as_the_log(patch: pytest.MonkeyPatch) -> None:
    append = library.Library.append

    def trusting(one: library.Library, *arguments: object) -> bool:
        *rest, commit_index = arguments
        return append(one, *rest, max(int(str(commit_index)), one._journal.table.last_index))  # type: ignore[arg-type]

    patch.setattr(library.Library, "append", trusting)


def _no_pre_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine.PySyncObjEngine, "_ask", lambda one, now: one._campaign(now, transferred=True))


def _the_clock_runs_while_the_process_stands(patch: pytest.MonkeyPatch) -> None:
    def pass_to(one: engine.PySyncObjEngine, now: float) -> None:
        one._last_now = one._library.now = now

    patch.setattr(engine.PySyncObjEngine, "_pass_to", pass_to)


def _nobody_answers(patch: pytest.MonkeyPatch) -> None:
    """A leader that is no voter counts itself."""
    set_members = library.Library.set_members

    def without(one: library.Library, me: object, membership: object) -> None:
        set_members(one, me, membership)  # type: ignore[arg-type]
        others = one._object._SyncObj__otherNodes
        others -= {node for node in others if node.id in (library._NOBODY, library._DISK)}

    patch.setattr(library.Library, "set_members", without)
    patch.setattr(library.Library, "own_vote_saved", lambda _: None)


def _any_answer_confirms_reads(patch: pytest.MonkeyPatch) -> None:
    def confirm(one: leading.Leading) -> None:
        for progress in one.progress.values():
            progress.read_round = one._round if progress.read_round else 0
        confirm_reads(one)

    confirm_reads = leading.Leading.confirm_reads
    patch.setattr(leading.Leading, "confirm_reads", confirm)


def _what_lies_beyond_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "_check_committed", lambda *_: None)


def _any_save_lets_messages_go(patch: pytest.MonkeyPatch) -> None:
    def saved(one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
        one._outbox.unsaved = False
        real(one, state, now)

    real = engine.PySyncObjEngine.hard_state_saved
    patch.setattr(engine.PySyncObjEngine, "hard_state_saved", saved)


def _any_save_is_one_of_the_own_vote(patch: pytest.MonkeyPatch) -> None:
    def saved(one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
        if one.role is Role.CANDIDATE:
            state = HardState(one._journal.term, one._journal.vote)
        real(one, state, now)

    real = engine.PySyncObjEngine.hard_state_saved
    patch.setattr(engine.PySyncObjEngine, "hard_state_saved", saved)


def _a_vote_is_forgotten_by_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(library.LogJournal, "getVotedForNodeId", lambda _: None)


def _a_second_vote_is_given(patch: pytest.MonkeyPatch) -> None:
    def vote(one: library.Library, *arguments: object) -> bool:
        one._object._SyncObj__votedForNodeId = None
        return real(one, *arguments)  # type: ignore[arg-type]

    real = library.Library.vote
    patch.setattr(library.Library, "vote", vote)


def _anyone_gets_the_vote(patch: pytest.MonkeyPatch) -> None:
    def asked(one: engine.PySyncObjEngine, sender: ReplicaId, request: VoteRequest, now: float) -> None:
        real(one, sender, msgspec.structs.replace(request, last_index=1 << 40, last_term=1 << 40), now)

    real = engine.PySyncObjEngine._on_vote_request
    patch.setattr(engine.PySyncObjEngine, "_on_vote_request", asked)


def _every_vote_is_passed_on(patch: pytest.MonkeyPatch) -> None:
    def counted(one: engine.PySyncObjEngine, sender: ReplicaId, message: VoteReply) -> None:
        one._granted.clear()
        real(one, sender, message)

    real = engine.PySyncObjEngine._on_vote
    patch.setattr(engine.PySyncObjEngine, "_on_vote", counted)


def _every_save_is_a_vote(patch: pytest.MonkeyPatch) -> None:
    def saved(one: engine.PySyncObjEngine, state: HardState, now: float) -> None:
        one._granted.discard(one.me)
        real(one, state, now)

    real = engine.PySyncObjEngine.hard_state_saved
    patch.setattr(engine.PySyncObjEngine, "hard_state_saved", saved)


def _every_promise_is_counted(patch: pytest.MonkeyPatch) -> None:
    def count(one: engine.PySyncObjEngine, voter: ReplicaId, now: float) -> None:
        if one._pre_votes and voter in one._pre_votes:
            voter = next(other for other in one.membership.voters if other not in one._pre_votes)
        real(one, voter, now)

    real = engine.PySyncObjEngine._count_pre_vote
    patch.setattr(engine.PySyncObjEngine, "_count_pre_vote", count)


def _anyone_hands_over(patch: pytest.MonkeyPatch) -> None:
    def step(one: engine.PySyncObjEngine, sender: ReplicaId, message: Message, now: float, *entries: object) -> None:
        if isinstance(message, TimeoutNow) and message.term == one.term and one.leader is not None:
            sender = one.leader
        real(one, sender, message, now, *entries)  # type: ignore[arg-type]

    real = engine.PySyncObjEngine.step
    patch.setattr(engine.PySyncObjEngine, "step", step)


def _who_led_hands_over(patch: pytest.MonkeyPatch) -> None:
    def step(one: engine.PySyncObjEngine, sender: ReplicaId, message: Message, now: float, *entries: object) -> None:
        if isinstance(message, TimeoutNow) and message.term < one.term and one.leader is not None:
            sender, message = one.leader, TimeoutNow(one.term)
        real(one, sender, message, now, *entries)  # type: ignore[arg-type]

    real = engine.PySyncObjEngine.step
    patch.setattr(engine.PySyncObjEngine, "step", step)


def _a_truncation_keeps_what_was_durable(patch: pytest.MonkeyPatch) -> None:
    def delete(one: library.LogJournal, place: int) -> None:
        durable = one.durable_index
        real(one, place)
        one.durable_index = durable

    real = library.LogJournal.deleteEntriesFrom
    patch.setattr(library.LogJournal, "deleteEntriesFrom", delete)


def _what_was_lost_counts_on(patch: pytest.MonkeyPatch) -> None:
    def set_match(one: library.Library, peer: ReplicaId, index: int) -> None:
        counted = one._object._SyncObj__raftMatchIndex[one._node(peer)] - library.OFFSET
        real(one, peer, max(index, counted))

    real = library.Library.set_match
    patch.setattr(library.Library, "set_match", set_match)


def _what_was_lost_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "may_vote", property(lambda _: True, lambda *_: None), raising=False)


def _answers_claim_all_that_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following.Following, "_match_index", property(lambda one: one._journal.durable_index))


def _an_older_leaders_entries_stay_verified(patch: pytest.MonkeyPatch) -> None:
    def set_term(one: library.LogJournal, term: int, vote: ReplicaId | None) -> None:
        verified = one.verified_index
        real(one, term, vote)
        one.verified_index = verified

    real = library.LogJournal.setCurrentTerm
    patch.setattr(library.LogJournal, "setCurrentTerm", set_term)


BREAKS: dict[Break, Promise] = {
    _disk_answers_at_once: replication.only_what_a_majority_has_durably_is_committed,
    _own_vote_counts_at_once: elections.no_vote_counts_before_it_is_durable,
    _all_entries_are_passed_on: replication.a_message_can_be_cut_in_two,
    _commits_go_as_far_as_the_log: replication.what_another_leader_wrote_is_replaced,
    _no_pre_votes: elections.who_was_cut_off_deposes_nobody,
    _the_clock_runs_while_the_process_stands: elections.a_late_tick_elects_nobody,
    _nobody_answers: members.a_leader_that_leaves_leads_until_that_is_committed,
    _any_answer_confirms_reads: reads.a_read_waits_for_answers_to_what_was_sent_behind_it,
    _what_lies_beyond_is_not_asked_for: replication.what_contradicts_what_is_committed_is_refused,
    _any_save_lets_messages_go: elections.a_save_counts_for_what_it_has_saved,
    _any_save_is_one_of_the_own_vote: elections.an_own_vote_counts_in_the_term_that_was_saved,
    _a_vote_is_forgotten_by_a_start: elections.nobody_votes_twice_in_a_term,
    _a_second_vote_is_given: elections.nobody_votes_twice_in_a_term,
    _anyone_gets_the_vote: replication.what_the_others_have_outlives_the_leader_that_loses_it,
    _every_vote_is_passed_on: elections.votes_are_counted_by_voter,
    _every_save_is_a_vote: elections.votes_are_counted_by_voter,
    _every_promise_is_counted: elections.a_promise_to_vote_is_counted_by_voter,
    _anyone_hands_over: transfers.leadership_is_handed_over_by_its_holder_alone,
    _who_led_hands_over: transfers.leadership_is_handed_over_by_its_holder_alone,
    _a_truncation_keeps_what_was_durable: replication.a_truncation_takes_what_was_durable,
    _what_was_lost_counts_on: replication.a_follower_counts_for_what_it_has_not_lost,
    _what_was_lost_votes: replication.what_one_other_has_outlives_the_leader_that_loses_it,
    _answers_claim_all_that_is_durable: replication.what_another_leader_brought_is_not_acknowledged,
    _an_older_leaders_entries_stay_verified: replication.what_another_leader_brought_is_not_acknowledged,
    any_answer_ends_a_probe: replication.who_lacks_nothing_that_is_gone_gets_no_snapshot,
}


@pytest.mark.parametrize(("broken", "promise"), BREAKS.items(), ids=lambda one: one.__name__.strip("_"))
def test_without_it_a_promise_is_broken(monkeypatch: pytest.MonkeyPatch, broken: Break, promise: Promise) -> None:
    broken(monkeypatch)
    with pytest.raises((InvariantError, ContradictionError)):
        promise(PYSYNCOBJ)
