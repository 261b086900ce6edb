"""Names and small values shared by every part of the log.

All of them are immutable. Times are seconds on a monotonic clock unless a name ends in `_ms`; positions and sizes are
in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, NewType, TypeAlias

import msgspec

Term = NewType("Term", int)
LogIndex = NewType("LogIndex", int)
Position = NewType("Position", int)
NodeId = NewType("NodeId", str)

Fill: TypeAlias = Callable[[int], Sequence[bytes | bytearray | memoryview]]
"""Returns the records of a unit, given the position of their first byte."""

NO_TERM = Term(0)
"""Term before the first entry; real terms count from 1."""

NO_CHAIN: Final = -1
"""Value in place of an unknown chain crc."""


NATIVE_ENGINE: Final = "native"
"""Name of the engine of groups whose identities and handshakes name none."""

PYSYNCOBJ_ENGINE: Final = "pysyncobj"

ENGINES: Final = (NATIVE_ENGINE, PYSYNCOBJ_ENGINE)
"""Names of the engines that a group can have."""


class EntryKind(IntEnum):
    """Kind of an entry: the `magic` of its header."""

    GROUP = 1
    NO_OP = 2
    MEMBERSHIP = 3


class ReplicaId(NamedTuple):
    """One incarnation of one member. A wiped directory makes another incarnation, and so another replica."""

    node_id: str
    incarnation: str

    def __str__(self) -> str:
        return f"{self.node_id}#{self.incarnation[:8]}"


class Membership(msgspec.Struct, frozen=True):
    """Members of a group, as written in membership entries, snapshots and identity files.

    `voters` count for elections and commits. `learners` receive the log and do not count.
    """

    voters: tuple[ReplicaId, ...] = ()
    learners: tuple[ReplicaId, ...] = ()

    @property
    def members(self) -> tuple[ReplicaId, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """Number of voters that make a majority."""
        return len(self.voters) // 2 + 1

    def find(self, node_id: str) -> ReplicaId | None:
        """Return the listed incarnation of a node, or None."""
        return next((member for member in self.members if member.node_id == node_id), None)


class EntryMeta(msgspec.Struct, frozen=True, gc=False):
    """Metadata of an entry: all that the consensus core knows of it. The bytes stay with the store.

    `position` is the byte position of the header in the log, and `size` the header (48) plus body. `channel` is the
    length of the state-command section at the end of the body.
    """

    index: int
    term: int
    position: int
    size: int
    kind: int = EntryKind.GROUP
    channel: int = 0
    chain_crc: int = 0
    membership: Membership | None = None

    @property
    def end(self) -> int:
        """Position of the first byte after the entry."""
        return self.position + self.size


class HardState(NamedTuple):
    """Term and vote, which a replica must never forget."""

    term: int = 0
    vote: ReplicaId | None = None


class SnapshotMeta(msgspec.Struct, frozen=True):
    """Metadata of a snapshot: the state after `last_index`, named by `position`, the start of a segment."""

    position: int
    last_index: int
    last_term: int
    chain_crc: int
    membership: Membership
    membership_index: int = -1


class WallClock(NamedTuple):
    """Bounds of a wall clock: it is somewhere between two times, in ms since 1970."""

    least_ms: int
    most_ms: int


class Lane(IntEnum):
    """One of the two connections by which a node dials another."""

    CONTROL = 0
    """Heartbeats, votes, acknowledgements: small messages, never behind bulk data."""
    BULK = 1
    """Appends, forwarded requests, snapshot chunks."""


class Role(IntEnum):
    """Role of a replica in its term."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3
