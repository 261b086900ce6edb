"""Entries that left memory are read back for a peer, and every outcome of the read is reported to the engine."""

from __future__ import annotations

import pytest

from dledger.consensus.effects import SendCatchUp
from dledger.core.messages import Append
from dledger.errors import TrimmedError
from dledger.replica.peers.outbox import Outbox
from dledger.types import EntryKind, EntryMeta, ReplicaId
from tests.dledger.fake_driver import FakeDriver, HeldWork, connected_to

PEER = ReplicaId("c", "1")
TERM = 5
METAS = [EntryMeta(index, 4, index * 100, 100, EntryKind.NO_OP) for index in (3, 4)]


class Parts(HeldWork):
    """Outbox whose store, link and engine the test controls."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Append] = []
        self.reported: list[object] = []
        self.takes = True
        self.trimmed = False
        self.entries: tuple[list[EntryMeta], bytes] | TrimmedError = (METAS, b"x" * 200)
        self.outbox = Outbox(self, self, self, None, None, connected_to(PEER), None, self, FakeDriver())
        self.is_leader, self.term, self.commit_index = True, TERM, 9

    def now(self) -> float:
        return 1.0

    def read_entries(self, _first, _max_bytes, *, verify):
        assert verify
        if isinstance(self.entries, TrimmedError):
            raise self.entries
        return self.entries

    def send(self, _node_id, _lane, message, _parts=()) -> bool:
        self.sent.append(message)
        return self.takes

    def catch_up_message(self, term, metas):
        return None if self.trimmed else Append(term, metas[0].index - 1, 4, self.commit_index, len(metas))

    def catch_up_sent(self, to, term, last_index, size, _now) -> None:
        self.reported.append((to, term, last_index, size))

    def peer_disconnected(self, to) -> None:
        self.reported.append(to)


@pytest.fixture
def parts() -> Parts:
    parts = Parts()
    parts.outbox.send(SendCatchUp(PEER, TERM, 3, 1000))
    return parts


def test_sent_entries_are_reported(parts):
    parts.work_once()
    assert [message.prev_index for message in parts.sent] == [2]
    assert parts.reported == [(PEER, TERM, 4, 200)]


@pytest.mark.parametrize(
    ("state", "is_sent"),
    [({"takes": False}, True), ({"entries": TrimmedError("trimmed")}, False), ({"trimmed": True}, False)],
    ids=["the link takes nothing", "trimmed before the read", "trimmed after the read"],
)
def test_entries_that_are_not_sent_are_reported(parts, state, is_sent):
    """Without the report the engine would wait for the read while the link lasts, and send the peer nothing."""
    vars(parts).update(state)
    parts.work_once()
    assert (len(parts.sent), parts.reported) == (is_sent, [PEER])
