"""The suite of promises catches known bugs: each of them breaks the promise beside it."""

import pytest

from dledger.engines.named import NATIVE
from dledger_base.invariants import InvariantError
from dledger_sim.engine_suite import elections, leading, members, replication
from dledger_sim.engine_suite.groups import Promise
from dledger_sim.log.mutants import MUTANTS

CAUGHT: dict[str, Promise] = {
    "commit-without-quorum": replication.entries_durable_on_a_majority_are_committed,
    "leader-counts-unsynced": replication.entries_durable_on_a_majority_are_committed,
    "ack-before-sync": replication.entries_durable_on_a_majority_are_committed,
    "lone-voter-commits-unsynced": replication.entries_durable_on_a_majority_are_committed,
    "commit-older-term": replication.earlier_terms_are_committed_by_an_own_entry,
    "sync-generation-ignored": replication.sync_counts_for_its_generation_only,
    "follower-commits-last-index": replication.sync_counts_for_its_generation_only,
    "committed-counts-as-verified": replication.contradiction_of_committed_entries_is_refused,
    "snapshot-sent-once": replication.member_that_needs_dropped_entries_gets_a_snapshot,
    "old-install-replaces": replication.snapshot_of_present_entries_replaces_nothing,
    "install-drops-what-follows": replication.snapshot_of_present_entries_replaces_nothing,
    "install-verifies-all": replication.snapshot_acknowledges_no_entry_behind_it,
    "message-before-save": elections.votes_count_only_once_durable,
    "votes-while-leader-heard": elections.deaf_member_does_not_depose_the_leader,
    "leader-lets-itself-be-deposed": elections.leader_with_a_majority_votes_for_no_candidate,
    "campaign-without-pre-vote": elections.returning_member_does_not_depose_the_leader,
    "in-doubt-votes": elections.doubtful_member_neither_votes_nor_leads,
    "made-good-too-early": elections.hearing_a_leader_does_not_end_doubt,
    "unread-membership": elections.member_with_unreadable_memberships_does_not_lead,
    "lone-leader-steps-down": elections.lone_voter_elects_itself,
    "read-without-round": leading.a_read_waits_for_a_majority,
    "read-before-own-commit": leading.reads_wait_for_the_committed_no_op,
    "lone-voter-waits-for-others": leading.read_of_a_lone_voter_is_confirmed_at_once,
    "learners-count": members.learners_get_the_log_and_do_not_count,
    "second-membership-change": members.appended_membership_is_in_force,
    "start-forgets-changes": members.membership_survives_a_restart,
    "install-keeps-membership": members.membership_survives_a_restart,
    "membership-kept-by-truncation": members.replaced_membership_is_not_in_force,
    "membership-before-own-commit": members.membership_changes_wait_for_the_committed_no_op,
    "removed-leader-leads-on": members.leaving_leader_leads_until_the_commit,
    "vote-twice": elections.voter_votes_once_a_term,
    "vote-for-short-log": replication.entries_on_the_others_survive_the_leaders_loss,
    "stale-acknowledgement": replication.entries_of_another_leader_are_not_acknowledged,
    "truncate-matching": replication.repeated_older_message_truncates_nothing,
}


@pytest.mark.parametrize("name", CAUGHT)
def test_the_suite_catches(name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises((InvariantError, ValueError)):
        CAUGHT[name](NATIVE)
