"""Messages of consensus engines, as those see them who carry them.

Sender and receiver are `ReplicaId`s known to whoever carries a message, and are not repeated inside.  A message that
brings entries is followed on the wire by their raw bytes; one that announces a snapshot comes behind all its pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dledger.types import EntryMeta, Lane, SnapshotMeta


class Message(Protocol):
    """One message of an engine; all that it says otherwise is between engines."""

    @property
    def term(self) -> int:
        """The term in which the sender speaks, or which it asks for."""

    @property
    def lane(self) -> Lane:
        """Where it goes: what brings entries, or joins them, keeps its order in the bulk lane."""

    @property
    def entries(self) -> EntryRange | None:
        """The entries that it brings, or of which it asks whether they would join; None if it speaks of none."""

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The snapshot that the receiver's log is to begin behind, whose pieces were sent before; else None."""


class EntryRange(Protocol):
    """The entries `prev_index + 1 … prev_index + count` of a leader's log, raw bytes alongside; `count` 0 is a probe.

    `prev_term` is the term of the entry that they join, `prev_chain` its chain crc, or `NO_CHAIN` if the sender does
    not know that.
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
        """The message with no more than its first `count` entries."""

    def behind(self, count: int, last: EntryMeta) -> Message:
        """The message without its first `count` entries, the last of which is `last`."""


@dataclass(frozen=True, slots=True)
class MessageCodec:
    """What an engine's messages are on the wire: MessagePack, which holds data and never code.

    `decode` raises `ValueError` or `msgspec.MsgspecError` for whatever is no message of this engine.
    """

    encode: Callable[[Message], bytes]
    decode: Callable[[bytes], Message]
