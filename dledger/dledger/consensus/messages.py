"""Messages of consensus engines, as the code that carries them sees them.

The carrier knows sender and receiver as `ReplicaId`s, so messages do not repeat them.  The raw bytes of a message's
entries follow it on the wire. A message that announces a snapshot follows all pieces of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dledger.types import EntryMeta, Lane, SnapshotMeta


class Message(Protocol):
    """One message of an engine. Only engines know its other fields."""

    @property
    def term(self) -> int:
        """The sender's term, or the term that it requests."""

    @property
    def lane(self) -> Lane:
        """The lane of the message. Entries, probes and announced snapshots stay in order in the bulk lane."""

    @property
    def entries(self) -> EntryRange | None:
        """The entries that the message carries, or of which it asks whether they would join; else None."""

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The snapshot behind which the receiver's log is to begin, if the message announces one; else None."""


class EntryRange(Protocol):
    """The entries `prev_index + 1 … prev_index + count` of a leader's log, raw bytes alongside; `count` 0 is a probe.

    `prev_term` and `prev_chain` are term and chain crc of the entry before the first. `prev_chain` is `NO_CHAIN` if the
    sender does not know it.
    """

    @property
    def prev_index(self) -> int: ...
    @property
    def prev_term(self) -> int: ...
    @property
    def prev_chain(self) -> int: ...
    @property
    def count(self) -> int: ...
    def up_to(self, count: int) -> Message:
        """Return a copy with the first `count` entries only."""

    def behind(self, count: int, last: EntryMeta) -> Message:
        """Return a copy without the first `count` entries; `last` is the last one that is left out."""


@dataclass(frozen=True, slots=True)
class MessageCodec:
    """Form of an engine's messages on the wire: MessagePack, which holds data and never code.

    `decode` raises `ValueError` or `msgspec.MsgspecError` for bytes that are not a message of this engine.
    """

    encode: Callable[[Message], bytes]
    decode: Callable[[bytes], Message]
