"""Bugs between threads: an event loop and a worker share data and use it at the same time.

Blocking work in a single step shows none of these. Only scenario `threads` does: it may interrupt a worker at a disk
call.
"""

from __future__ import annotations

from contextlib import nullcontext

from dledger.store.index import UNIT_BYTES, IndexFiles
from dledger.store.segments import Segment
from dledger.store.space import Space
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("threads")


def _leave_at_once(self: Space, end: int) -> bool:
    filling, self._filling = self._filling, None
    try:
        return _real_leave(self, end)
    finally:
        self._filling = filling


_real_leave = Space._leave_to_entries  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "filling-not-waited-for",
    "no entry is written to a place that is being filled",
    (Space, "_leave_to_entries", _leave_at_once),
)


def _read_without_lock(self: IndexFiles, segment_start: int, slot: int, count: int) -> bytes:
    file = self._file(segment_start, create=False)
    return b"" if file is None else file.pread(count * UNIT_BYTES, slot * UNIT_BYTES)


CATALOGUE.add(
    "index-read-without-lock",
    "no index file is closed while it is read",
    (IndexFiles, "read_raw", _read_without_lock),
)


def _recycle_at_once(self: Space, segment: Segment) -> bool:
    lock, self._disk_lock = self._disk_lock, nullcontext()  # type: ignore[assignment]
    try:
        return _real_recycle(self, segment)
    finally:
        self._disk_lock = lock


_real_recycle = Space.recycle

CATALOGUE.add(
    "spare-replaced-while-filled",
    "no trimmed segment takes the place of the next segment while the next segment is being filled",
    (Space, "recycle", _recycle_at_once),
)
