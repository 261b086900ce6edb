"""The core's memory of the log: the term of every entry, and size and membership where it needs them.

Terms are kept as runs, so a log of any length costs a few entries a term.  Sizes are kept for a window of recent
entries only (everything not committed, and up to `window` more); what lies before the window is sent by catch-up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from dledger.invariants import invariant
from dledger.term_runs import TermRuns, relearned
from dledger.types import NO_CHAIN, NO_TERM, EntryMeta, Membership, ReplicaId


class LogTable:
    """Metadata of the entries `first_index … last_index`; `base_index = first_index - 1` is known by its term."""

    def __init__(
        self,
        base_index: int = -1,
        base_term: int = NO_TERM,
        runs: Sequence[tuple[int, int]] = (),
        last_index: int | None = None,
        base_membership: Membership | None = None,
        base_membership_index: int = -1,
        memberships: Sequence[EntryMeta] = (),
        unread: Sequence[tuple[int, int]] = (),
        window: int = 4096,
    ) -> None:
        """`runs` are (first index, term) in ascending order, as recovered from the store; so are `unread`, ranges
        (first index, index behind) of entries that could not be read and may be membership entries.
        """
        self.base_index = base_index
        self.base_term = int(base_term)
        self.last_index = base_index if last_index is None else last_index
        self._starts = [start for start, _ in runs]
        self._terms = [term for _, term in runs]
        self.window = window
        self._recent: deque[EntryMeta] = deque()
        self._memberships: list[tuple[int, Membership]] = [(base_membership_index, base_membership or Membership())]
        for meta in memberships:
            if meta.membership is not None:
                self._memberships.append((meta.index, meta.membership))
        self._unread = list(unread)

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_term(self) -> int:
        return self._terms[-1] if self._terms else self.base_term

    @property
    def membership(self) -> Membership:
        """The membership in force: that of the newest membership entry, committed or not."""
        return self._memberships[-1][1]

    @property
    def membership_is_known(self) -> bool:
        """False while an entry that cannot be read may hold another membership than `membership`."""
        return not self._unread

    @property
    def membership_index(self) -> int:
        return self._memberships[-1][0]

    @property
    def window_first(self) -> int:
        """Index of the oldest entry whose size is known; `last_index + 1` if none is."""
        return self._recent[0].index if self._recent else self.last_index + 1

    def may_elect(self, replica: ReplicaId, commit_index: int) -> bool:
        """Whether a replica is a voter in the membership that is committed, or in any later one.

        Any of these may prove to be in force, and a replica that the newest one leaves out may be the only one that can
        be elected (Ongaro's thesis, 4.2.2):

        1. Of the voters a and b, a leads; it appends the membership of b alone, stops before b has that, and starts.
        2. The log of b is shorter, so a does not vote for b.
        3. Unless a stands for election, with b's vote, nobody ever leads.
        """
        in_force, _ = self.membership_at(commit_index)
        return any(replica in membership.voters for index, membership in self._memberships if index >= in_force)

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """The membership (with its entry's index) in force at `index`."""
        for at, membership in reversed(self._memberships):
            if at <= index:
                return at, membership
        return self._memberships[0]

    def term_at(self, index: int) -> int | None:
        """The term of an entry, or None if it lies below `base_index` or above `last_index`."""
        if index > self.last_index or index < self.base_index:
            return None
        if index == self.base_index:
            return self.base_term
        return self._terms[bisect_right(self._starts, index) - 1]

    def chain_at(self, index: int) -> int:
        """The chain crc of an entry, or `NO_CHAIN` if the window does not hold it."""
        at = index - self.window_first
        return self._recent[at].chain_crc if 0 <= at < len(self._recent) else NO_CHAIN

    def last_at_or_below_term(self, index: int, term: int) -> int:
        """The largest index ≤ `index` whose term is ≤ `term`, but at least `base_index` (the conflict search)."""
        index = min(index, self.last_index)
        run = bisect_right(self._starts, index) - 1
        while run >= 0 and self._terms[run] > term:
            index = self._starts[run] - 1
            run -= 1
        return max(index, self.base_index)

    def next_after_conflict(self, rejected_index: int, hint_index: int, hint_term: int) -> int:
        """Which entry a leader tries next with a follower that rejected what follows `rejected_index`.

        The hints are the follower's: its own conflict search.  A conflict at or below the base of this log can only be
        mended by a snapshot.
        """
        if hint_index > rejected_index:
            # The follower knows nothing below the hint, which it has committed: either it joins there, or it is
            # contradicted there.
            return min(hint_index, self.last_index) + 1
        candidate = self.last_at_or_below_term(hint_index, hint_term)
        if hint_index < self.base_index or (self.term_at(candidate) or 0) > hint_term:
            return self.base_index
        return candidate + 1

    def append(self, metas: Sequence[EntryMeta], committed: int) -> None:
        """Add entries that continue the log; forget sizes of committed ones beyond the window."""
        for meta in metas:
            invariant(
                meta.index == self.last_index + 1, "entries are appended in order", meta=meta, last=self.last_index
            )
            if not self._terms or self._terms[-1] != meta.term:
                invariant(meta.term >= self.last_term, "terms never decrease", meta=meta, last_term=self.last_term)
                self._starts.append(meta.index)
                self._terms.append(meta.term)
            if meta.membership is not None:
                self._memberships.append((meta.index, meta.membership))
            self._recent.append(meta)
            self.last_index = meta.index
        recent = self._recent
        while len(recent) > self.window and recent[0].index <= committed:
            recent.popleft()

    def learn(self, first_index: int, next_index: int, memberships: Sequence[EntryMeta], term_runs: TermRuns) -> None:
        """The entries from `first_index` to before `next_index` can be read again; `memberships` are among them.

        Their terms had been guessed.
        """
        known_runs = tuple(zip(self._starts, self._terms, strict=True))
        runs = relearned(known_runs, term_runs, first_index, next_index, self.last_index)
        self._starts, self._terms = [start for start, _ in runs], [term for _, term in runs]
        known = dict(self._memberships)
        base = self._memberships[0][0]
        for meta in memberships:
            if meta.membership is not None and base < meta.index <= self.last_index:
                known[meta.index] = meta.membership
        self._memberships = sorted(known.items(), key=lambda item: item[0])
        rest = [(first, min(behind, first_index)) for first, behind in self._unread]
        rest += [(max(first, next_index), behind) for first, behind in self._unread]
        self._unread = sorted((first, behind) for first, behind in rest if first < behind)

    def truncate(self, first_index: int) -> None:
        """Drop the entries from `first_index` on."""
        invariant(first_index > self.base_index, "the base is never truncated", first=first_index, base=self.base_index)
        while self._starts and self._starts[-1] >= first_index:
            self._starts.pop()
            self._terms.pop()
        while self._recent and self._recent[-1].index >= first_index:
            self._recent.pop()
        while len(self._memberships) > 1 and self._memberships[-1][0] >= first_index:
            self._memberships.pop()
        self._unread = [(first, min(behind, first_index)) for first, behind in self._unread if first < first_index]
        self.last_index = first_index - 1

    def trim(self, base_index: int, base_term: int) -> None:
        """Forget the entries up to and including `base_index`."""
        if base_index <= self.base_index:
            return
        invariant(base_index <= self.last_index, "a trim stays inside the log", base=base_index, last=self.last_index)
        run = bisect_right(self._starts, base_index + 1) - 1
        del self._starts[:run], self._terms[:run]
        if self._starts:
            self._starts[0] = max(self._starts[0], base_index + 1)
            if self._starts[0] > self.last_index:
                self._starts.clear()
                self._terms.clear()
        while self._recent and self._recent[0].index <= base_index:
            self._recent.popleft()
        while len(self._memberships) > 1 and self._memberships[1][0] <= base_index:
            self._memberships.pop(0)
        self.base_index = base_index
        self.base_term = base_term

    def reset(self, base_index: int, base_term: int, membership: Membership, membership_index: int) -> None:
        """Start over behind an installed snapshot."""
        self.base_index = self.last_index = base_index
        self.base_term = base_term
        self._starts.clear()
        self._terms.clear()
        self._recent.clear()
        self._memberships = [(membership_index, membership)]
        self._unread.clear()

    def run_from(self, first_index: int, max_bytes: int) -> tuple[int, int]:
        """(count, bytes) of the longest contiguous run inside the window of at most `max_bytes`, or of one entry.

        A run never crosses a segment: it ends before an entry that does not start where the one before ends.
        """
        offset = first_index - self._recent[0].index
        count = size = 0
        end = None
        recent = self._recent
        for place in range(offset, len(recent)):
            meta = recent[place]
            if count and (size + meta.size > max_bytes or meta.position != end):
                break
            count += 1
            size += meta.size
            end = meta.end
        return count, size
