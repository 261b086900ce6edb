"""Entries that left memory are read back for a peer, and whatever comes of that is reported to the engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.consensus.effects import SendCatchUp
from dledger.core.messages import Append
from dledger.errors import TrimmedError
from dledger.replica.outbox import Outbox
from dledger.types import EntryKind, EntryMeta, ReplicaId
from tests.dledger.fake_driver import FakeDriver

PEER = ReplicaId("c", "1")
TERM = 5
METAS = [EntryMeta(index, 4, index * 100, 100, EntryKind.NO_OP) for index in (3, 4)]


class Parts:
    """An outbox with a store, a link and an engine that say what the test wants."""

    def __init__(self) -> None:
        self.read: Callable[[], None] | None = None
        self.sent: list[Append] = []
        self.reported: list[object] = []
        self.takes = True
        self.trimmed = False
        self.entries: tuple[list[EntryMeta], bytes] | TrimmedError = (METAS, b"x" * 200)
        self.outbox = Outbox(self, self, self, None, None, {"c": PEER}, None, self, FakeDriver())
        self.is_leader, self.term, self.commit_index = True, TERM, 9

    def run_blocking(self, _lane, work, done) -> None:
        def read() -> None:
            try:
                result = work()
            except TrimmedError as error:
                result = error
            done(result)

        self.read = read

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
    assert parts.read is not None
    return parts


def test_what_went_out_is_reported(parts):
    parts.read()
    assert [message.prev_index for message in parts.sent] == [2]
    assert parts.reported == [(PEER, TERM, 4, 200)]


def test_a_link_that_takes_nothing_is_reported(parts):
    parts.takes = False
    parts.read()
    assert parts.reported == [PEER]


def test_entries_that_a_trim_took_before_they_were_read_are_reported(parts):
    parts.entries = TrimmedError("trimmed")
    parts.read()
    assert (parts.sent, parts.reported) == ([], [PEER])


def test_entries_that_a_trim_took_once_they_were_read_are_reported(parts):
    """The peer would be taken for one that is being caught up as long as its link lasts, and be sent nothing."""
    parts.trimmed = True
    parts.read()
    assert (parts.sent, parts.reported) == ([], [PEER])
