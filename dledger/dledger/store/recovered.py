"""Result of a recovery: the content of a recovered log."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.store.damage import CorruptRange
from dledger.store.segments import Segment
from dledger.types import EntryMeta, SnapshotMeta


@dataclass(slots=True)
class Recovery:
    """Content of a log after recovery. All of it is durable."""

    base: SnapshotMeta | None
    """The snapshot that verification started from; None if it started from the first entry."""
    term_runs: list[tuple[int, int]]
    """(first index, term) of each run of entries of one term, from the first kept entry on."""
    memberships: list[EntryMeta]
    """Membership entries above `base`, as far as they can be read."""
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
    """False if no copy of the durable mark was valid. Then torn and corrupt entries cannot be distinguished."""
    clean: bool
    """True if the log was closed in an orderly way."""
    saved_commit: int
    """The saved commit index, which may lag; -1 if there is none."""


@dataclass(slots=True)
class Recovered:
    """The recovered log with its open parts, for `LogStore`."""

    segments: list[Segment]
    recent: list[EntryMeta]
    recovery: Recovery
    trim_interrupted: bool
    """True if files of a trimmed part of the log are still there, below the first segment."""
