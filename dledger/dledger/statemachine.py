"""Interface of a replicated service, with the data that the log passes to it.

The log calls a `StateMachine` only on the event loop, except for `decode`. Calls are never concurrent, in log order,
and never inside a call of `stage`. So the service may stage units, ask for reads and hand leadership over in any call
that notifies it. Applying never rejects, because the leader has decided everything before it proposed. An exception
from any method stops the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from dledger.errors import LogFullError
from dledger.types import SnapshotMeta

Restore: TypeAlias = Callable[[], int]
"""Puts a decoded state in place; see `StateMachine.decode`."""


class CommittedEntry(msgspec.Struct, frozen=True, gc=False):
    """One committed group of records and commands.

    `records` are the body's bytes before the state-command section; `records[0]` is at `records_position` of the log.
    `commands` is that section, including the log's own commands: use `dledger.format.iter_commands` and skip kinds
    below
    16. `contexts` are the objects given to `stage` for the units of this entry, in order. They are only there on the
        replica that proposed the entry, while it has not lost track of the entry.
    """

    index: int
    term: int
    position: int
    records: bytes | memoryview
    commands: bytes | memoryview
    contexts: Sequence[object] = ()

    @property
    def records_position(self) -> int:
        return self.position + 48

    @property
    def end(self) -> int:
        """Position of the first byte after the entry."""
        return self.position + 48 + len(self.records) + len(self.commands)


class Leadership(msgspec.Struct, frozen=True):
    """Leadership, as it is reported to the service at every change.

    `ready`: this replica leads, has applied the no-op of its term, and takes proposals.
    """

    term: int
    leader_id: str | None
    is_leader: bool
    ready: bool


class StateMachine(Protocol):
    """A deterministic service on top of the log."""

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries in order. Memory only, without blocking calls. Each entry is applied exactly once per state."""

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Rebuild views from entries that the restored state already covers and that the views lack (see `decode`)."""

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Take back proposals of this replica that end without being applied here.

        With `full` there was no space on the disk: none of them is or will be in any log. Without `full` the replica
        has lost track of them: each may or may not be committed.
        """

    def on_leadership(self, leadership: Leadership) -> None:
        """Take note of changed roles. If leadership is lost, `dropped` is called before, for everything not applied."""

    def snapshot(self) -> Iterator[bytes]:
        """Capture the state as it is *now* (copy-on-write), then encode it in chunks of at most 5 ms of work each."""

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """Read a whole snapshot (None: make the initial state), and return the call that replaces the state with it.

        A snapshot that the leader sent is decoded on a worker thread while entries are still being applied. So this
        must not use the present state or anything that `apply` changes. The returned call may never be made.

        The returned call is made on the event loop, and replaces the whole state. Its work must hardly grow with the
        size of the state. It returns the log position from which derived views are incomplete, at most `meta.position`
        (0 without a meta). The entries from there on are passed to `rebuild` up to `meta.position`, then to `apply`.
        """

    def digest(self) -> int:
        """Return a 64-bit digest of the replicated state, kept incrementally. Equal states have equal digests."""
