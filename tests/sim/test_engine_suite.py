"""A suite of promises that lets known bugs pass proves nothing: each of these bugs breaks the promise beside it."""

import pytest

from dledger.engines.native import NATIVE
from dledger.invariants import InvariantError
from dledger.testing.engine_suite import elections, leading, members, replication
from dledger.testing.engine_suite.groups import Promise
from dledger_sim.log.mutants import MUTANTS

CAUGHT: dict[str, Promise] = {
    "commit-without-quorum": replication.only_what_a_majority_has_durably_is_committed,
    "leader-counts-unsynced": replication.only_what_a_majority_has_durably_is_committed,
    "ack-before-sync": replication.only_what_a_majority_has_durably_is_committed,
    "lone-voter-commits-unsynced": replication.only_what_a_majority_has_durably_is_committed,
    "commit-older-term": replication.entries_of_earlier_terms_are_committed_by_one_of_the_own_term,
    "sync-generation-ignored": replication.a_sync_vouches_for_its_generation_alone,
    "follower-commits-last-index": replication.a_sync_vouches_for_its_generation_alone,
    "committed-counts-as-verified": replication.what_contradicts_what_is_committed_is_refused,
    "snapshot-sent-once": replication.who_needs_what_is_gone_gets_a_snapshot,
    "old-install-replaces": replication.a_snapshot_of_what_is_here_replaces_nothing,
    "install-drops-what-follows": replication.a_snapshot_of_what_is_here_replaces_nothing,
    "install-verifies-all": replication.a_snapshot_says_nothing_of_what_follows_it,
    "message-before-save": elections.no_vote_counts_before_it_is_durable,
    "votes-while-leader-heard": elections.a_leader_that_is_heard_is_left_alone,
    "leader-lets-itself-be-deposed": elections.a_leader_that_a_majority_hears_gives_its_place_to_nobody,
    "campaign-without-pre-vote": elections.who_was_cut_off_deposes_nobody,
    "in-doubt-votes": elections.who_may_have_lost_entries_neither_votes_nor_leads,
    "made-good-too-early": elections.to_hear_a_leader_makes_nothing_good,
    "unread-membership": elections.who_cannot_read_the_members_does_not_lead,
    "lone-leader-steps-down": elections.a_group_of_one_leads_itself,
    "read-without-round": leading.a_read_waits_for_a_majority,
    "read-before-own-commit": leading.no_read_before_the_no_op_is_committed,
    "lone-voter-waits-for-others": leading.a_read_of_a_group_of_one_needs_nobody,
    "learners-count": members.learners_get_the_log_and_count_for_nothing,
    "second-membership-change": members.a_membership_acts_from_when_it_is_appended,
    "start-forgets-changes": members.the_members_are_remembered,
    "install-keeps-membership": members.the_members_are_remembered,
    "membership-kept-by-truncation": members.a_membership_that_is_replaced_is_not_in_force,
    "membership-before-own-commit": members.nothing_changes_before_the_no_op_is_committed,
    "removed-leader-leads-on": members.a_leader_that_leaves_leads_until_that_is_committed,
    "vote-twice": elections.nobody_votes_twice_in_a_term,
    "vote-for-short-log": replication.what_the_others_have_outlives_the_leader_that_loses_it,
    "stale-acknowledgement": replication.what_another_leader_brought_is_not_acknowledged,
    "truncate-matching": replication.what_comes_again_cuts_nothing,
}


@pytest.mark.parametrize("name", CAUGHT)
def test_the_suite_catches(name: str) -> None:
    with MUTANTS[name].applied(), pytest.raises((InvariantError, ValueError)):
        CAUGHT[name](NATIVE)
