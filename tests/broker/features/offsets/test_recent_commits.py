"""Memory of recent commits, whoever leads."""

from typing import cast

import pytest

from dledger.statemachine import CommittedEntry
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.recent_commits import (
    LATE_COMMIT_S,
    MAX_CLIENTS_PER_QUEUE,
    Committer,
    RecentCommits,
    Taken,
)
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets, OffsetTable
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import Changes

KEY = ("CG", "T1", 0)


def committer(channel: str, *client_ids: str, ip: str = "10.0.0.9") -> Committer:
    return Committer.of(channel, client_ids, ip)


@pytest.mark.parametrize(
    ("by", "offset", "after_s", "is_late"),
    [
        (committer("old", "c1"), 100, 1.0, True),
        (committer("old", "c1"), 120, 1.0, False),
        (committer("new", "c1"), 100, 1.0, False),
        (committer("old", "c2"), 100, 1.0, False),
        (committer("old", "c1"), 100, LATE_COMMIT_S + 1, False),
        (committer("old"), 100, 1.0, True),
        (committer("old", ip="10.0.0.10"), 100, 1.0, False),
    ],
)
def test_a_forwarded_commit_never_undoes_a_newer_one_of_its_client(by, offset, after_s, is_late):
    commits = RecentCommits()
    commits.note(KEY, Taken(120, committer("new", "c1"), 0.0))
    assert commits.is_late(by, KEY, offset, (), after_s) is is_late


def test_a_commit_on_its_way_counts_more_than_one_that_was_applied():
    commits = RecentCommits()
    commits.note(KEY, Taken(120, committer("old", "c1"), 0.0))
    under_way = (Taken(130, committer("new", "c1"), 1.0),)
    assert commits.is_late(committer("old", "c1"), KEY, 125, under_way, 2.0)
    assert not commits.is_late(committer("new", "c1"), KEY, 50, under_way, 2.0)


def test_old_commits_are_forgotten():
    commits = RecentCommits()
    for queue_id in range(100):
        commits.learn([("CG", "T1", queue_id, 1)], (committer("new", "c1"),), (0,), float(queue_id))
    assert len(commits) <= LATE_COMMIT_S + 1


def test_of_a_queue_only_its_last_clients_are_remembered():
    commits = RecentCommits()
    for number in range(10):
        commits.note(KEY, Taken(number, committer("channel", f"c{number}"), 0.0))
    assert len(commits.of(KEY, 0.0)) == MAX_CLIENTS_PER_QUEUE


def state_with_a_commit(at: float) -> BrokerState:
    state = BrokerState(FEATURES)
    state.table(OFFSETS).commit(*KEY, 120)
    state.table(OFFSETS).recent.note(KEY, Taken(120, committer("new", "c1"), at))
    return state


def test_a_replica_that_starts_from_a_snapshot_knows_what_others_know():
    found = (
        decode_state(encode_state(state_with_a_commit(at=1000.0), now=1010.0), now=5.0, features=FEATURES)
        .table(OFFSETS)
        .recent
    )
    assert found.is_late(committer("old", "c1"), KEY, 100, (), 6.0)
    assert not found.may_be_late(KEY, 100, 6.0)


def test_a_snapshot_leaves_out_what_is_too_old_to_matter():
    stream = encode_state(state_with_a_commit(at=1000.0), now=1001.0 + LATE_COMMIT_S)
    assert len(decode_state(stream, now=5.0, features=FEATURES).table(OFFSETS).recent) == 0


def test_what_a_snapshot_of_an_earlier_version_does_not_tell_is_doubted_for_a_while():
    stream = b"".join(encode_state(state_with_a_commit(at=1.0), now=2.0))
    without = stream.replace(b"\xa6recent", b"\xa6absent")
    found = decode_state([without], now=5.0, features=FEATURES).table(OFFSETS).recent
    assert without != stream
    assert found.may_be_late(KEY, 100, 6.0)
    assert not found.may_be_late(KEY, 100, 6.0 + LATE_COMMIT_S)


def test_who_commits_behind_a_reset_of_the_same_batch_is_remembered():
    table, by = OffsetTable(), committer("new", "c1")
    entry, changes = cast(CommittedEntry, None), cast(Changes, None)
    table.apply(CommitOffsets((("CG", "T1", 0, 100),), (by,), (0,)), entry, changes)
    table.forget_committers(KEY)
    table.apply(CommitOffsets((("CG", "T1", 0, 20),), (by,), (0,)), entry, changes)
    table.batch_applied(lambda: 1.0)
    assert table.recent.of(KEY, 2.0) == (Taken(20, by, 1.0),)
