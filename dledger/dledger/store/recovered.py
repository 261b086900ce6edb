"""What a log consists of after its recovery."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.store.damage import CorruptRange
from dledger.store.segments import Segment
from dledger.types import EntryMeta, SnapshotMeta


@dataclass(slots=True)
class Recovery:
    """What a log consists of after recovery; everything in it is durable."""

    base: SnapshotMeta | None
    """The snapshot that verification started from; None: from the first entry."""
    term_runs: list[tuple[int, int]]
    """(first index, term) of each run of entries of one term, from the first kept entry on."""
    memberships: list[EntryMeta]
    """The membership entries above `base`, of those that can be read."""
    unread: list[tuple[int, int]]
    """(first index, index behind) of ranges above `base` that cannot be read and may hold membership entries."""
    first_index: int
    last_index: int
    last_term: int
    last_chain: int
    first_position: int
    end_position: int
    durable_index: int
    corrupt_ranges: list[CorruptRange]
    notes: list[str]
    """A line for each thing that did not verify, with what was found."""
    mark_valid: bool
    """False: no copy of the durable mark was valid, so torn and corrupt entries cannot be told apart."""
    clean: bool
    """Whether the log was closed in an orderly way."""
    saved_commit: int
    """The commit index saved last, -1 if none; may lag."""


@dataclass(slots=True)
class Recovered:
    """The recovered log with its open parts, for `LogStore`."""

    segments: list[Segment]
    recent: list[EntryMeta]
    recovery: Recovery
    trim_interrupted: bool
    """Whether files of a log that was trimmed are still there, below the first segment."""
