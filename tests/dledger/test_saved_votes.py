"""No message leaves a node before the term and the vote that it reflects are on the node's disk."""

from __future__ import annotations

import pytest
from node_group import JournalService
from sim_groups import run_until, started

from dledger.consensus.effects import SendMessage
from dledger.core.messages import VoteReply, VoteRequest
from dledger.replica.peers.outbox import HardStateSaver, Outbox, Send
from dledger.store.hardstate import HardStateFile
from dledger.types import HardState
from dledger_sim.log.group import GroupSettings

LEADERS = 10


class Witness:
    """Compares what each node sends with the term and the vote that its disk had by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.granted = self.asked = 0
        self._files: dict[Outbox, HardStateFile] = {}
        self._saved: dict[HardStateFile, HardState] = {}
        init, save, send = HardStateSaver.__init__, HardStateFile.save, Outbox.send

        def note_files(saver: HardStateSaver, *arguments: object) -> None:
            init(saver, *arguments)  # type: ignore[arg-type]
            self._files[saver._outbox] = saver._file

        def note_saved(file: HardStateFile, state: HardState) -> None:
            save(file, state)
            self._saved[file] = state

        def check(outbox: Outbox, sent: Send) -> None:
            self._check(outbox, sent)
            send(outbox, sent)

        monkeypatch.setattr(HardStateSaver, "__init__", note_files)
        monkeypatch.setattr(HardStateFile, "save", note_saved)
        monkeypatch.setattr(Outbox, "send", check)

    def _check(self, outbox: Outbox, sent: Send) -> None:
        if not isinstance(sent, SendMessage):
            return
        saved = self._saved.get(self._files[outbox], HardState())
        message = sent.message
        if isinstance(message, VoteReply) and message.granted and not message.pre:
            self.granted += 1
            assert (saved.term, saved.vote) == (message.term, sent.to), "a vote left before it was saved"
        elif isinstance(message, VoteRequest) and not message.pre:
            self.asked += 1
            assert saved.term == message.term, "a candidate asked before its own vote was saved"
        elif not isinstance(message, VoteReply | VoteRequest):
            assert saved.term >= message.term, "a message of a term left before the term was saved"


def test_a_vote_leaves_a_node_once_it_is_saved_over_ten_killed_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    witness = Witness(monkeypatch)
    group = started(GroupSettings(snapshot_interval_ms=0), JournalService)
    for _ in range(LEADERS):
        leader = group.leader
        assert leader is not None
        group.kill(leader.name)
        run_until(group, lambda: group.leader is not None)
        group.start(leader.name)
        run_until(group, group.healthy)
    assert witness.asked >= LEADERS
    assert witness.granted >= LEADERS
