"""What stands in the place of a fault of PySyncObj is needed: without it a promise of an engine is broken."""

from collections.abc import Callable

import pytest

from dledger.engines.pysyncobj import engine, following, leading, library, outbox
from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.errors import ContradictionError
from dledger.invariants import InvariantError
from dledger.testing.engine_suite import elections, members, replication
from dledger.testing.engine_suite import leading as reads
from dledger.testing.engine_suite.groups import Promise

Break = Callable[[pytest.MonkeyPatch], None]


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


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (_disk_answers_at_once, replication.only_what_a_majority_has_durably_is_committed),
        (_own_vote_counts_at_once, elections.no_vote_counts_before_it_is_durable),
        (_all_entries_are_passed_on, replication.a_message_can_be_cut_in_two),
        (_commits_go_as_far_as_the_log, replication.what_another_leader_wrote_is_replaced),
        (_no_pre_votes, elections.who_was_cut_off_deposes_nobody),
        (_the_clock_runs_while_the_process_stands, elections.a_late_tick_elects_nobody),
        (_nobody_answers, members.a_leader_that_leaves_leads_until_that_is_committed),
        (_any_answer_confirms_reads, reads.a_read_waits_for_answers_to_what_was_sent_behind_it),
        (_what_lies_beyond_is_not_asked_for, replication.what_contradicts_what_is_committed_is_refused),
    ],
    ids=lambda one: one.__name__.strip("_"),
)
def test_without_it_a_promise_is_broken(monkeypatch: pytest.MonkeyPatch, broken: Break, promise: Promise) -> None:
    promise(PYSYNCOBJ)
    broken(monkeypatch)
    with pytest.raises((InvariantError, ContradictionError, AssertionError)):
        promise(PYSYNCOBJ)
