"""What stock PySyncObj loses data by, each as a short history, and that the engine around it does not.

If a history of the stock library ends otherwise with a newer version, what stands in its place can go.
"""

import os
import pickle
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal
from stock_pysyncobj import Stock

from dledger.consensus.effects import AppendEntries, SaveHardState, Truncate
from dledger.consensus.peers import Mode
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply, VoteReply
from dledger.engines.pysyncobj.journal import LogJournal
from dledger.engines.pysyncobj.kind import PYSYNCOBJ
from dledger.testing.engine_group import Envelope, entries, replica
from dledger.testing.engine_suite.groups import brings_entries, group_of, led_by_a
from dledger.types import EntryMeta, Membership, Role


def test_stock_acknowledges_what_is_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are term and vote."""

    def synced(*_: object) -> None:
        raise AssertionError("a sync")

    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, synced)
    journal = FileJournal(str(tmp_path / "journal"))
    journal.setCurrentTerm(3, "b")
    for index in range(2, 100):
        journal.add(b"\x00" * 100, index, 3)
    journal.onOneSecondTimer()
    assert len(journal) == 98
    journal._destroy()


def test_here_what_is_acknowledged_was_synced() -> None:
    group = led_by_a(PYSYNCOBJ)
    group.unsynced.add("b")
    index = group.propose("a")
    group.settle()
    assert group.members["b"].last_index == index
    assert group["a"].progress[replica("b")].match_index == index - 1
    group.sync("b")
    group.settle()
    assert group["a"].progress[replica("b")].match_index == index


def test_here_who_was_alone_has_committed_no_more_than_it_has_synced() -> None:
    """What it has not synced needs a majority of those who vote now."""
    group = group_of(PYSYNCOBJ, "a", learners=["b"])
    group.pass_time(2.0)
    group.unsynced.add("a")
    group.hold(lambda envelope: envelope.sender == "b")
    last = group.propose("a", 3)
    group.pass_time(0.3)
    assert group["a"].commit_index == last - 3
    group.propose("a", membership=Membership((replica("a"), replica("b"))))
    group.sync("a")
    group.pass_time(0.3)
    assert group["a"].commit_index == last - 3, "b votes, and has acknowledged nothing"
    group.release()
    group.pass_time(0.3)
    assert group["a"].commit_index == last + 1


def test_stock_counts_a_vote_that_comes_twice_twice() -> None:
    stock = Stock("b", "c", "d", "e")
    stock.tick(10.0)
    for _ in range(2):
        stock.hear("b", type="response_vote", term=1)
    assert stock.object._isLeader()


def test_here_a_vote_counts_once() -> None:
    group = group_of(PYSYNCOBJ, "a", "b", "c", "d", "e")
    group.campaign("a")
    term = group["a"].term + 1
    for name in "bc":
        group.send(name, "a", VoteReply(term, granted=True, pre=True))
    assert group["a"].role is Role.CANDIDATE
    for _ in range(3):
        group.send("b", "a", VoteReply(term, granted=True))
        group.send("stranger", "a", VoteReply(term, granted=True))
    assert group["a"].role is Role.CANDIDATE
    group.send("c", "a", VoteReply(term, granted=True))
    assert group["a"].is_leader


def test_stock_cuts_what_it_has_acknowledged_when_older_entries_come_again() -> None:
    stock = Stock("b", "c")
    assert stock.follow("b", 1, (1, 0), (2, 1), (3, 1), (4, 1))["next_node_idx"] == 5
    stock.follow("b", 1, (1, 0), (2, 1))
    assert stock.log[-1] == (2, 1), "3 and 4 were acknowledged, and may be committed by that"


def test_here_entries_that_come_again_change_nothing() -> None:
    group = led_by_a(PYSYNCOBJ)
    metas = entries(1, 1, 1, first=1)
    group.send("a", "b", Append(1, 0, 1, 0, 3), metas)
    group.send("a", "b", Append(1, 0, 1, 0, 1), metas[:1])
    assert group.members["b"].last_index == 3
    assert group["b"].generation == 0


def test_stock_commits_another_leaders_entries_when_a_dump_begins() -> None:
    """As far as its own log goes, of which the leader knows nothing."""
    stock = Stock("b", "c")
    stock.follow("b", 1, (1, 0), (2, 1), (3, 1), (4, 1))
    stock.hear("c", type="append_entries", term=2, commit_index=4, serialized=None)
    assert stock.object.raftCommitIndex == 4


def test_here_a_commit_is_learned_up_to_what_this_terms_leader_has_verified() -> None:
    group = led_by_a(PYSYNCOBJ)
    group.send("a", "b", Append(1, 0, 1, 0, 3), entries(1, 1, 1, first=1))
    group.send("c", "b", Heartbeat(2, 3, 1))
    assert group["b"].commit_index == 0
    group.send("c", "b", Append(2, 0, 1, 0, 1), entries(2, first=1))
    group.send("c", "b", Heartbeat(2, 3, 2))
    assert group["b"].commit_index == 1
    assert group.members["b"].terms == [1, 2]


def test_stock_runs_what_a_message_holds(tmp_path: Path) -> None:
    target = tmp_path / "made"

    class Made:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(target),)

    stock = Stock("b", "c")
    fields = {"type": "append_entries", "term": 1, "prevLogIdx": 1, "prevLogTerm": 0, "commit_index": 1}
    stock.hear("b", transmission="start", data=b"", **fields)
    with pytest.raises((TypeError, KeyError, pickle.UnpicklingError, AttributeError)):
        stock.hear("b", transmission="finish", data=pickle.dumps(Made()), **fields)
    assert target.is_dir()


def test_stock_answers_no_leader_of_an_earlier_term() -> None:
    """Which leads on as long as a majority acknowledges for other reasons, and whose log is not brought up to date."""
    stock = Stock("b", "c")
    stock.hear("b", type="request_vote", term=5, last_log_index=1, last_log_term=0)
    assert stock.hear("c", type="append_entries", term=4, prevLogIdx=1, prevLogTerm=0, entries=[], commit_index=1) == []


def test_here_a_leader_of_an_earlier_term_learns_of_the_later_one() -> None:
    group = led_by_a(PYSYNCOBJ)
    group.send("c", "b", Heartbeat(5, 0, 1))
    (answer,) = group.send("a", "b", Heartbeat(1, 0, 9))
    assert isinstance(answer, AppendReply)
    assert (answer.term, answer.rejected_index) == (5, -1)
    group.deliver(Envelope("b", "a", answer))
    assert group["a"].term == 5
    assert not group["a"].is_leader


def test_here_a_vote_leaves_once_it_is_durable() -> None:
    group = group_of(PYSYNCOBJ)
    group.auto_save = False
    group.campaign("a")
    for name in "bc":
        group.send(name, "a", VoteReply(1, granted=True, pre=True))
    assert not [sent for sent in group.wire if not getattr(sent.message, "pre", False)], "no vote is asked for yet"
    assert group.members["a"].saves
    group.save("a")
    assert [sent.to for sent in group.wire if getattr(sent.message, "pre", True) is False] == ["b", "c"]


def test_here_a_lagging_followers_window_is_bounded() -> None:
    """`SyncObj` alone sends all it has, and again with every answer."""
    group = led_by_a(PYSYNCOBJ, one_entry_a_message=True)
    group.hold(lambda envelope: isinstance(envelope.message, AppendReply | HeartbeatReply) and envelope.sender == "c")
    size = 1 << 20
    first = group.members["a"].last_index + 1
    metas = [EntryMeta(first + place, group["a"].term, (first + place) * size, size) for place in range(12)]
    engine = group["a"]
    for meta in metas:
        engine.propose((meta,), b"", group.now)
    peer = engine.progress[replica("c")]
    sent = [effect for effect in engine.take().effects if type(effect).__name__ == "SendEntries"]
    assert peer.mode is Mode.STREAM
    assert len([effect for effect in sent if effect.to == replica("c")]) == 4


def test_effects_come_in_the_order_in_which_they_are_to_be_done() -> None:
    """A truncation before what replaces it, term and vote before both."""
    group = led_by_a(PYSYNCOBJ)
    group.send("a", "b", Append(1, 0, 1, 0, 3), entries(1, 1, 1, first=1))
    engine, metas = group["b"], entries(2, 2, first=1)
    engine.step(replica("c"), Append(2, 0, 1, 0, 2), group.now, metas, b"x" * 96)
    kinds = [type(effect) for effect in engine.take().effects]
    positions = [kinds.index(kind) for kind in (SaveHardState, Truncate, AppendEntries)]
    assert positions == sorted(positions)


def test_here_a_new_leader_does_not_look_at_each_entry_that_is_uncommitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`SyncObj` would, with every answer: they commit at once when one of its own term does, and none before."""
    group = led_by_a(PYSYNCOBJ)
    group.hold(lambda envelope: envelope.to == "a")
    uncommitted = 1000
    last = group.propose("a", uncommitted)
    group.settle()
    group.isolate("a")
    looks = 0
    look = LogJournal.__getitem__

    def counted(journal: LogJournal, item: int | slice) -> object:
        nonlocal looks
        looks += journal is group["b"]._journal and isinstance(item, slice)
        return look(journal, item)

    group.hold(lambda envelope: brings_entries(envelope) and envelope.sender == "b")
    group.campaign("b")
    group.settle()
    assert group["b"].is_leader
    group.propose("b")
    monkeypatch.setattr(LogJournal, "__getitem__", counted)
    group.pass_time(0.3)
    assert group["b"].progress[replica("c")].match_index == last
    assert group["b"].commit_index == last - uncommitted
    group.hold(lambda _envelope: False)
    group.release()
    group.pass_time(0.3)
    assert group["b"].commit_index == group.members["b"].last_index > last
    assert looks < uncommitted
