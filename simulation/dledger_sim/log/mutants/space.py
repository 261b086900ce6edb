"""Bugs of space reserved ahead: entries that wait for space, and files that become the next segment."""

from __future__ import annotations

from functools import partial

from dledger.errors import LogFullError
from dledger.replica.peers.inbox import Inbox
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.proposer import SealedEntry
from dledger.store import space
from dledger.store.disk import File
from dledger.store.space import Space
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules import space as space_schedules

CATALOGUE = Catalogue("log")


def _erase_nothing(file: File, begin: int, end: int) -> bool:
    _ = file, begin, end
    return True


CATALOGUE.add(
    "next-segment-not-erased",
    "a segment that a truncation takes off the log holds none of its old entries when it becomes the next segment",
    (space, "erase", _erase_nothing),
    schedule=space_schedules.void_entries_behind_rewritten_ones,
)


def _forget_what_was_proposed(self: Leading) -> None:
    self._standing.successor = None
    self._completions.add(partial(self._report_dropped, self._proposer.drop()))


CATALOGUE.add(
    "waiting-entries-outlive-leadership",
    "entries that wait for space are given up with the leadership in which they were sealed",
    (Leading, "drop", _forget_what_was_proposed),
    schedule=space_schedules.leadership_lost_while_entries_wait_for_space,
)


def _propose_what_has_space(self: Leading, entry: SealedEntry) -> None:
    if self._store.claim((entry.meta,), privileged=entry.privileged):
        self._propose_now(entry)
    else:
        _real_propose(self, entry)


_real_propose = Leading._propose  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "waiting-entries-overtaken",
    "an entry waits behind earlier entries that wait for space",
    (Leading, "_propose", _propose_what_has_space),
)


def _go_on_with_one(self: Leading) -> None:
    entry = self._backlog.first
    if self._store.claim((entry.meta,), privileged=entry.privileged):
        self._propose_now(self._backlog.take())
    else:
        self._wait_for_space()


CATALOGUE.add(
    "waiting-entries-forgotten",
    "every entry that waits for space is proposed or dropped",
    (Leading, "_propose_waiting", _go_on_with_one),
)


def _keep_waiting_once_full(self: Inbox, append: object, error: LogFullError | None) -> None:
    if error is None:
        _real_waited(self, append, error)  # type: ignore[arg-type]


_real_waited = Inbox._on_space  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "full-follower-waits-for-ever",
    "a follower whose disk was full takes appends once there is space",
    (Inbox, "_on_space", _keep_waiting_once_full),
)


def _take_nothing_away(self: Space) -> object:
    taken = _real_take_next_away(self)
    if taken is not None:
        self._next = taken[1]
        self._update_reserved_end()
    return taken


_real_take_next_away = Space._take_out_next  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "next-segment-recycled-in-use",
    "the log does not go on in a segment whose place a trimmed segment is about to take",
    (Space, "_take_out_next", _take_nothing_away),
    schedule=space_schedules.recycling_while_the_log_goes_on,
)
