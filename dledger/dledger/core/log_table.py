"""The core's memory of the log: the term of every entry, and size and membership where the core needs them.

Terms are kept as runs, so a log of any length costs a few entries per term.  Sizes are kept only for a window of recent
entries: all that are not committed, and up to `window` more.  Entries before the window are sent by catch-up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from dledger.term_runs import TermRuns, relearned
from dledger.types import NO_CHAIN, NO_TERM, EntryMeta, Membership, ReplicaId
from dledger_base.invariants import invariant


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
        """`runs` are pairs (first index, term) in ascending order, as recovered from the store.

        `unread` are ranges (first index, index behind), also in ascending order. Their entries could not be read and
        may be membership entries.
        """
        self.base_index = base_index
        self.base_term = int(base_term)
        self.last_index = base_index if last_index is None else last_index
        self._starts = [start for start, _ in runs]
        self._terms = [term for _, term in runs]
        self.window = window
        self._recent: deque[EntryMeta] = deque()
        self._memberships: list[tuple[int, Membership]] = [(base_membership_index, base_membership or Membership())]
        self.membership_index, self.membership = self._memberships[0]
        """The membership in force: that of the newest membership entry, committed or not."""
        for meta in memberships:
            if meta.membership is not None:
                self._add_membership(meta.index, meta.membership)
        self._unread = list(unread)

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_term(self) -> int:
        return self._terms[-1] if self._terms else self.base_term

    @property
    def membership_is_known(self) -> bool:
        """False while an entry that cannot be read may hold another membership than `membership`."""
        return not self._unread

    @property
    def window_first(self) -> int:
        """Index of the oldest entry whose size is known; `last_index + 1` if no size is known."""
        return self._recent[0].index if self._recent else self.last_index + 1

    def may_elect(self, replica: ReplicaId, commit_index: int) -> bool:
        """True if a replica is a voter in the committed membership, or in any later one.

        Each of these memberships may prove to be in force. A replica that the newest membership leaves out may be the
        only one that can be elected (Ongaro's thesis, 4.2.2):

        1. The voters are a and b, and a leads. It appends a membership of b alone, stops before b has it, and restarts.
        2. The log of b is shorter, so a does not vote for b.
        3. Unless a campaigns and gets b's vote, the group never has a leader again.
        """
        in_force, _ = self.membership_at(commit_index)
        return any(replica in membership.voters for index, membership in self._memberships if index >= in_force)

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the membership (with its entry's index) in force at `index`."""
        for at, membership in reversed(self._memberships):
            if at <= index:
                return at, membership
        return self._memberships[0]

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry; None if it lies below `base_index` or above `last_index`."""
        if index > self.last_index or index < self.base_index:
            return None
        if index == self.base_index:
            return self.base_term
        return self._terms[bisect_right(self._starts, index) - 1]

    def chain_at(self, index: int) -> int:
        """Return the chain crc of an entry; `NO_CHAIN` if the window does not hold it."""
        at = index - self.window_first
        return self._recent[at].chain_crc if 0 <= at < len(self._recent) else NO_CHAIN

    def last_at_or_below_term(self, index: int, term: int) -> int:
        """Return the largest index ≤ `index` whose term is ≤ `term`, but at least `base_index` (conflict search)."""
        index = min(index, self.last_index)
        run = bisect_right(self._starts, index) - 1
        while run >= 0 and self._terms[run] > term:
            index = self._starts[run] - 1
            run -= 1
        return max(index, self.base_index)

    def next_after_conflict(self, rejected_index: int, hint_index: int, hint_term: int) -> int:
        """Find the entry that a leader tries next with a follower that rejected the entries behind `rejected_index`.

        The hints come from the follower's own conflict search.  Only a snapshot mends a conflict at or below this log's
        base.
        """
        if hint_index > rejected_index:
            # The hint is the base of the follower's log, and committed there. The follower knows nothing below it: it
            # accepts what follows the hint, or its log contradicts this one.
            return min(hint_index, self.last_index) + 1
        candidate = self.last_at_or_below_term(hint_index, hint_term)
        if hint_index < self.base_index or (self.term_at(candidate) or 0) > hint_term:
            return self.base_index
        return candidate + 1

    def append(self, metas: Sequence[EntryMeta], committed: int) -> None:
        """Add entries that continue the log; forget the sizes of committed entries beyond the window."""
        for meta in metas:
            invariant(
                meta.index == self.last_index + 1, "entries are appended in order", meta=meta, last=self.last_index
            )
            if not self._terms or self._terms[-1] != meta.term:
                invariant(meta.term >= self.last_term, "terms never decrease", meta=meta, last_term=self.last_term)
                self._starts.append(meta.index)
                self._terms.append(meta.term)
            if meta.membership is not None:
                self._add_membership(meta.index, meta.membership)
            self._recent.append(meta)
            self.last_index = meta.index
        recent = self._recent
        while len(recent) > self.window and recent[0].index <= committed:
            recent.popleft()

    def _add_membership(self, index: int, membership: Membership) -> None:
        self._memberships.append((index, membership))
        self.membership_index, self.membership = index, membership

    def learn(self, first_index: int, next_index: int, memberships: Sequence[EntryMeta], term_runs: TermRuns) -> None:
        """Learn the entries from `first_index` to before `next_index`, which can be read again.

        `memberships` are the membership entries among them. The terms of these entries were only guessed before.
        """
        known_runs = tuple(zip(self._starts, self._terms, strict=True))
        runs = relearned(known_runs, term_runs, first_index, next_index, self.last_index)
        self._starts, self._terms = [start for start, _ in runs], [term for _, term in runs]
        known_memberships = dict(self._memberships)
        base_membership_index = self._memberships[0][0]
        for meta in memberships:
            if meta.membership is not None and base_membership_index < meta.index <= self.last_index:
                known_memberships[meta.index] = meta.membership
        self._memberships = sorted(known_memberships.items(), key=lambda item: item[0])
        self.membership_index, self.membership = self._memberships[-1]
        still_unread = [(first, min(behind, first_index)) for first, behind in self._unread]
        still_unread += [(max(first, next_index), behind) for first, behind in self._unread]
        self._unread = sorted((first, behind) for first, behind in still_unread if first < behind)

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
        self.membership_index, self.membership = self._memberships[-1]
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
        self.membership_index, self.membership = membership_index, membership
        self._unread.clear()

    def run_from(self, first_index: int, max_bytes: int) -> tuple[int, int]:
        """Return (count, bytes) of the longest contiguous run in the window: at most `max_bytes`, or one entry.

        A run never crosses a segment: it ends before an entry that does not start at the end of the previous entry.
        """
        offset = first_index - self._recent[0].index
        count = size = 0
        end = None
        recent = self._recent
        for at in range(offset, len(recent)):
            meta = recent[at]
            if count and (size + meta.size > max_bytes or meta.position != end):
                break
            count += 1
            size += meta.size
            end = meta.end
        return count, size
