"""Bugs between threads: what an event loop and a worker share, and use at the same time.

Blocking work that is done in one step shows none of these: only scenario `threads` does, where a disk call of a worker
may be interrupted.
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


_real_leave = Space._leave  # noqa: SLF001 - what is patched is what is private

CATALOGUE.add(
    "filling-not-waited-for",
    "no entry is written where a step of filling is under way",
    (Space, "_leave", _leave_at_once),
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
    lock, self._working = self._working, nullcontext()  # type: ignore[assignment]
    try:
        return _real_recycle(self, segment)
    finally:
        self._working = lock


_real_recycle = Space.recycle

CATALOGUE.add(
    "spare-replaced-while-filled",
    "no trimmed segment takes the place of the next one while a step of filling is under way in that",
    (Space, "recycle", _recycle_at_once),
)
