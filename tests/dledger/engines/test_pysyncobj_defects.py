"""Stock PySyncObj loses data in these short histories. Some parts of the engine around it have promises of their own.

If a history of the stock library ends differently with a newer version, the engine's replacement can be removed. The
suite of engines holds the promises that the stock library breaks, see `test_pysyncobj_breaks`.
"""

import os
import pickle
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal
from stock_pysyncobj import Stock

from dledger.consensus.effects import AppendEntries, SaveHardState, Truncate
from dledger.consensus.peers import Mode
from dledger.core.messages import Append, AppendReply, Heartbeat, HeartbeatReply
from dledger.engines.pysyncobj import PYSYNCOBJ
from dledger.engines.pysyncobj.journal import LogJournal
from dledger.types import EntryMeta, Membership
from dledger_sim.engine_group import Envelope, entries, replica
from dledger_sim.engine_suite.groups import brings_entries, group_of, led_by_a


def test_stock_pysyncobj_syncs_neither_log_nor_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock PySyncObj syncs neither the log nor term and vote."""

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


def test_a_lone_leader_commits_only_synced_entries() -> None:
    """Entries that a lone leader has not synced need a majority of the present voters."""
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


def test_stock_pysyncobj_counts_a_repeated_vote_twice() -> None:
    stock = Stock("b", "c", "d", "e")
    stock.tick(10.0)
    for _ in range(2):
        stock.hear("b", type="response_vote", term=1)
    assert stock.object._isLeader()


def test_stock_pysyncobj_truncates_acknowledged_entries_on_a_repeated_append() -> None:
    stock = Stock("b", "c")
    assert stock.follow("b", 1, (1, 0), (2, 1), (3, 1), (4, 1))["next_node_idx"] == 5
    stock.follow("b", 1, (1, 0), (2, 1))
    assert stock.log[-1] == (2, 1), "3 and 4 were acknowledged, and may be committed by that"


def test_stock_pysyncobj_commits_foreign_entries_when_a_dump_begins() -> None:
    """The stock library commits up to the end of its own log. The new leader may not have these entries."""
    stock = Stock("b", "c")
    stock.follow("b", 1, (1, 0), (2, 1), (3, 1), (4, 1))
    stock.hear("c", type="append_entries", term=2, commit_index=4, serialized=None)
    assert stock.object.raftCommitIndex == 4


def test_stock_pysyncobj_executes_pickled_code_of_a_message(tmp_path: Path) -> None:
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


def test_stock_pysyncobj_does_not_answer_a_leader_of_an_earlier_term() -> None:
    """The stock library does not answer a leader of an earlier term.

    That leader stays leader while a majority acknowledges for other reasons, and the log here is not brought up to
    date.
    """
    stock = Stock("b", "c")
    stock.hear("b", type="request_vote", term=5, last_log_index=1, last_log_term=0)
    assert stock.hear("c", type="append_entries", term=4, prevLogIdx=1, prevLogTerm=0, entries=[], commit_index=1) == []


def test_the_pysyncobj_engine_tells_an_old_leader_the_later_term() -> None:
    group = led_by_a(PYSYNCOBJ)
    group.send("c", "b", Heartbeat(5, 0, 1))
    (answer,) = group.send("a", "b", Heartbeat(1, 0, 9))
    assert isinstance(answer, AppendReply)
    assert (answer.term, answer.rejected_index) == (5, -1)
    group.deliver(Envelope("b", "a", answer))
    assert group["a"].term == 5
    assert not group["a"].is_leader


def test_the_pysyncobj_engine_limits_the_window_of_a_lagging_follower() -> None:
    """`SyncObj` alone sends all its entries, and sends them again with every answer."""
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


def test_effects_are_ordered_hard_state_truncation_entries() -> None:
    """The truncation comes before the replacing entries, and term and vote come before both."""
    group = led_by_a(PYSYNCOBJ)
    group.send("a", "b", Append(1, 0, 1, 0, 3), entries(1, 1, 1, first=1))
    engine, metas = group["b"], entries(2, 2, first=1)
    engine.step(replica("c"), Append(2, 0, 1, 0, 2), group.now, metas, b"x" * 96)
    kinds = [type(effect) for effect in engine.take().effects]
    positions = [kinds.index(kind) for kind in (SaveHardState, Truncate, AppendEntries)]
    assert positions == sorted(positions)


def test_a_new_pysyncobj_leader_does_not_scan_every_uncommitted_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SyncObj` would look at each entry with every answer.

    Yet all of them commit together, with the first entry of the leader's own term.
    """
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
