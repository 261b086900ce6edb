"""Memory of recent commits, which also holds after the leader changes."""

from typing import cast

import pytest

from dledger.statemachine import CommittedEntry
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.recent_commits import (
    LATE_COMMIT_S,
    MAX_CLIENTS_PER_QUEUE,
    Committer,
    RecentCommit,
    RecentCommits,
)
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets, OffsetTable
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import Changes

KEY = ("CG", "T1", 0)


def committer(channel: str, *client_ids: str, ip: str = "10.0.0.9") -> Committer:
    return Committer.of(channel, client_ids, ip)


OLD, NEW = committer("old", "c1"), committer("new", "c1")
"""Committers over two channels of one client."""
PAUSE_AND_HOLD_S = 60.0 + 5.0 + 10.0
"""Longest delay of a commit: a stopped node for a minute, then a wait for a leader, then for the leader's answer."""


@pytest.mark.parametrize(
    ("by", "offset", "after_s", "is_late"),
    [
        (OLD, 100, 1.0, True),
        (OLD, 120, 1.0, False),
        (NEW, 100, 1.0, False),
        (committer("old", "c2"), 100, 1.0, False),
        (OLD, 100, PAUSE_AND_HOLD_S, True),
        (OLD, 100, LATE_COMMIT_S + 1, False),
        (committer("old"), 100, 1.0, True),
        (committer("old", ip="10.0.0.10"), 100, 1.0, False),
    ],
)
def test_a_forwarded_commit_below_a_newer_commit_of_its_client_is_late(by, offset, after_s, is_late):
    commits = RecentCommits()
    commits.note(KEY, RecentCommit(120, NEW, 0.0))
    assert commits.is_overtaken(by, KEY, offset, (), after_s) is is_late


def test_a_commit_in_flight_takes_precedence_over_an_applied_commit():
    commits = RecentCommits()
    commits.note(KEY, RecentCommit(120, OLD, 0.0))
    under_way = (RecentCommit(130, NEW, 1.0),)
    assert commits.is_overtaken(OLD, KEY, 125, under_way, 2.0)
    assert not commits.is_overtaken(NEW, KEY, 50, under_way, 2.0)


def test_recent_commits_are_forgotten_after_late_commit_s_and_few_committers_of_a_queue_are_remembered():
    commits = RecentCommits()
    for queue_id in range(100):
        commits.learn([("CG", "T1", queue_id, 1)], (NEW,), (0,), float(queue_id))
    assert len(commits) <= LATE_COMMIT_S + 1
    commits = RecentCommits()
    for number in range(10):
        commits.note(KEY, RecentCommit(number, committer("channel", f"c{number}"), 0.0))
    assert len(commits.of(KEY, 0.0)) == MAX_CLIENTS_PER_QUEUE


def state_with_a_commit(at: float) -> BrokerState:
    state = BrokerState(FEATURES)
    state.table(OFFSETS).commit(*KEY, 120)
    state.table(OFFSETS).recent.note(KEY, RecentCommit(120, NEW, at))
    return state


def test_recent_commits_survive_a_snapshot():
    stream = encode_state(state_with_a_commit(at=1000.0), now=1010.0)
    found = decode_state(stream, now=5.0, features=FEATURES).table(OFFSETS).recent
    assert found.is_overtaken(OLD, KEY, 100, (), 6.0)
    assert not found.may_be_overtaken(KEY, 100, 6.0)


def test_a_snapshot_leaves_out_commits_that_are_no_longer_recent():
    stream = encode_state(state_with_a_commit(at=1000.0), now=1001.0 + LATE_COMMIT_S)
    assert len(decode_state(stream, now=5.0, features=FEATURES).table(OFFSETS).recent) == 0


def test_offsets_from_a_snapshot_of_an_earlier_version_are_doubted_for_a_while():
    stream = b"".join(encode_state(state_with_a_commit(at=1.0), now=2.0))
    without = stream.replace(b"\xa6recent", b"\xa6absent")
    found = decode_state([without], now=5.0, features=FEATURES).table(OFFSETS).recent
    assert without != stream
    assert found.may_be_overtaken(KEY, 100, 6.0)
    assert not found.may_be_overtaken(KEY, 100, 6.0 + LATE_COMMIT_S)


def test_the_committer_behind_a_reset_in_the_same_batch_is_remembered():
    table = OffsetTable()
    entry, changes = cast(CommittedEntry, None), cast(Changes, None)
    table.apply(CommitOffsets((("CG", "T1", 0, 100),), (NEW,), (0,)), entry, changes)
    table.forget_committers(KEY)
    table.apply(CommitOffsets((("CG", "T1", 0, 20),), (NEW,), (0,)), entry, changes)
    table.batch_applied(lambda: 1.0)
    assert table.recent.of(KEY, 2.0) == (RecentCommit(20, NEW, 1.0),)
