"""Interface of a replicated service, and of what it is handed.

The log calls a `StateMachine` on the event loop only, but for `decode`, never concurrently, in log order, and never
inside a call of `stage`: what it is told may stage units, ask for reads and hand leadership over.  Applying never
rejects: whatever was to be decided was decided by the leader before it proposed.  An exception out of any method stops
the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from dledger.errors import LogFullError
from dledger.types import SnapshotMeta

Restore: TypeAlias = Callable[[], int]
"""Puts a decoded state in place, see `StateMachine.decode`."""


class CommittedEntry(msgspec.Struct, frozen=True, gc=False):
    """One committed group of records and commands.

    `records` are the body's bytes before the state-command section; the byte at `records_position` of the log is
    `records[0]`.  `commands` is that section, the log's own commands included: use
    `dledger.format.iter_commands` and skip kinds below 16.  `contexts` are the objects given to `stage` for the units
    of this entry, in order, on the replica that proposed it (and still holds them); elsewhere it is empty.
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
    """Told at every change. `ready`: this replica leads, has applied its own no-op, and takes proposals."""

    term: int
    leader_id: str | None
    is_leader: bool
    ready: bool


class StateMachine(Protocol):
    """A deterministic service on top of the log."""

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries in order; memory only, no blocking calls.  Each entry is applied exactly once per state."""

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Entries that the restored state already covers but that derived views lack (see `restore`)."""

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Proposals of this replica that end without being applied here.

        With `full` there was no space on the disk: nothing of them is in any log, nor will be. Without it the replica
        has lost track of them: each may or may not be committed by somebody.
        """

    def on_leadership(self, leadership: Leadership) -> None:
        """Roles changed.  On losing leadership this comes after `dropped` for everything not applied."""

    def snapshot(self) -> Iterator[bytes]:
        """Capture the state as it is *now* (copy-on-write), then encode it in chunks of at most 5 ms of work each."""

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """Read a snapshot (None: make the initial state), as a whole, into what will replace the state.

        A snapshot that the leader sent is decoded on a worker thread while entries go on being applied: neither is the
        state of the moment looked at here, nor what `apply` changes.  Nobody may ever call what is returned.

        Called on the event loop, that replaces the whole state; its work does not grow with the size of the state, or
        hardly. It returns the log position from which derived views are incomplete, at most `meta.position` (0 without
        one); the entries from there on are passed to `rebuild` up to `meta.position`, then to `apply`.
        """

    def digest(self) -> int:
        """A 64-bit digest of the replicated state, kept incrementally: equal states have equal digests."""
