"""Judge of a node's disk: it reads the bytes that are really on the platter, not the page cache.

1. All bytes below an acknowledgement, the durable mark or `durable_position` are on the platter. This holds from the
  first kept byte on, except for damage by an injected fault.
2. A mark that was written names an entry of the log: the mark may become durable at any moment.
3. A segment is removed only if the platter allows it. The durable mark lies below the segment (it is void) or behind it
  (it is trimmed), or a reset is announced.
4. A listed snapshot would survive a power loss.
5. A start leaves term and vote on the platter, in both copies. It leaves the recovered end of the log in the mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from dledger.errors import LogError
from dledger.store import hardstate, mark, reset
from dledger.store.mark import MarkValue
from dledger.store.segments import segment_name, segment_path
from dledger.store.slots import SLOT_SPACING_BYTES, SLOTS, Slot, decode_slot
from dledger.store.snapshots import DIRECTORY as SNAPSHOT_DIRECTORY
from dledger.types import HardState, SnapshotMeta
from dledger_sim.log.violation import require

if TYPE_CHECKING:
    from dledger.store.log import LogStore
    from dledger.testing.disk import SimDisk

SLOT_FILE_BYTES = SLOTS * SLOT_SPACING_BYTES
_SEGMENT = re.compile(r"commitlog/(\d{20})")
_decode_hard_state = msgspec.msgpack.Decoder(HardState).decode


def slots_of(raw: bytes) -> list[Slot]:
    """Return the valid slots of a file, newest first."""
    blocks = (raw[at : at + SLOT_SPACING_BYTES] for at in range(0, len(raw), SLOT_SPACING_BYTES))
    slots = (decode_slot(number, block) for number, block in enumerate(blocks))
    return sorted((slot for slot in slots if slot is not None), key=lambda slot: -slot.sequence)


def durable_hard_states(disk: SimDisk) -> list[HardState]:
    """Return both copies of term and vote, newest first, as a recovery after a power loss would find them now."""
    return [
        _decode_hard_state(slot.payload) for slot in slots_of(disk.durable_bytes(hardstate.PATH, 0, SLOT_FILE_BYTES))
    ]


def durable_hard_state(disk: SimDisk) -> HardState:
    """Return the term and vote that a recovery after a power loss would use now."""
    return next(iter(durable_hard_states(disk)), HardState())


def durable_mark(disk: SimDisk) -> MarkValue | None:
    """Return the durable mark as a recovery after a power loss would find it now."""
    slots = slots_of(disk.durable_bytes(mark.PATH, 0, SLOT_FILE_BYTES))
    return MarkValue.decode(slots[0].payload) if slots else None


class Platter:
    """Judge of one life of a node. `open` is called once the log is open."""

    def __init__(
        self,
        name: str,
        disk: SimDisk,
        segment_bytes: int,
        *,
        is_rotten: Callable[[], bool],
        excused_to: Callable[[], int],
    ) -> None:
        """Prepare the judge. An injected fault may have damaged the log below the position `excused_to()`."""
        self._name = name
        self._disk = disk
        self._is_rotten = is_rotten
        self._excused_to = excused_to
        self._store: LogStore | None = None
        self._segment_bytes = segment_bytes
        self._generation = 0
        self._durable_to = 0
        """Position below which everything kept was seen on the platter."""

    def open(self, store: LogStore, hard_state: HardState) -> None:
        """Check the platter after the node has recovered."""
        self._store = store
        self._generation = store.generation
        copies = durable_hard_states(self._disk)
        require(
            copies == [hard_state] * SLOTS,
            "a start leaves both copies of term and vote on the platter",
            node=self._name,
            found=copies,
            recovered=hard_state,
        )
        marked = durable_mark(self._disk)
        require(
            marked is not None and marked.position == store.end_position,
            "a start leaves the mark of the recovered log on the platter",
            node=self._name,
            mark=marked,
            end=store.end_position,
        )
        self.require_log(store.end_position, "recovered entries are on the platter")

    def require_log(self, end: int, promise: str, **facts: object) -> None:
        """Check that the log lies on the platter up to a position."""
        store = self._store
        if store is None:
            return
        if store.generation != self._generation:
            self._generation, self._durable_to = store.generation, 0
        if end <= self._durable_to:
            return
        size = self._segment_bytes
        at = max(self._durable_to, store.first_position, self._excused_to())
        while at < end:
            stop = min(end, at - at % size + size)
            require(
                self._disk.is_durable(segment_path(at - at % size), at % size, stop - at),
                promise,
                node=self._name,
                not_durable=(at, stop),
                **facts,
            )
            at = stop
        self._durable_to = end

    def observe(self) -> None:
        """Check the durable position after an event on the node."""
        store = self._store
        if store is not None and (store.durable_position > self._durable_to or store.generation != self._generation):
            require(
                store.durable_position <= store.end_position,
                "nothing behind the log's end counts as durable",
                node=self._name,
                durable=store.durable_position,
                end=store.end_position,
            )
            self.require_log(store.durable_position, "entries that count as durable are on the platter")

    def written(self, path: str) -> None:
        """Check a file that was written: a mark must name an entry that is in the log and durable."""
        store = self._store
        if path != mark.PATH or store is None or self._reset_is_announced():
            return
        newest = MarkValue.decode(slots_of(self._disk.cached_bytes(mark.PATH, 0, SLOT_FILE_BYTES))[0].payload)
        self.require_log(newest.position, "the mark names only durable entries", mark=newest)
        if newest.index < store.first_index or self._is_rotten():
            return
        known = newest.index <= store.last_index
        try:
            known = known and store.meta(newest.index).chain_crc == newest.chain
        except LogError:
            return  # the entry is being trimmed, or a disk error was injected for this read
        require(known, "the mark names an entry of the log", node=self._name, mark=newest, last=store.last_index)

    def entered(self, operation: str, path: str) -> None:
        """Check a disk operation that is about to begin: a segment is removed only if the platter allows it."""
        if operation not in ("unlink", "rename"):
            return
        segment = _SEGMENT.fullmatch(path)
        if segment is None or self._reset_is_announced():
            return
        start = int(segment[1])
        marked = durable_mark(self._disk)
        require(
            self._is_rotten()
            or marked is None
            or marked.position <= start
            or marked.position >= start + self._segment_bytes,
            "a segment is removed only once the mark on the platter lies outside it",
            node=self._name,
            segment=start,
            mark=marked,
        )

    def _reset_is_announced(self) -> bool:
        return self._disk.durable_size(reset.PATH) > 0

    def listed(self, meta: SnapshotMeta) -> None:
        """Check a snapshot that was listed."""
        path = f"{SNAPSHOT_DIRECTORY}/{segment_name(meta.position)}"
        size = self._disk.durable_size(path)
        require(
            size > 0 and size == self._disk.size(path) and self._disk.is_durable(path, 0, size),
            "a listed snapshot is on the platter",
            node=self._name,
            snapshot=meta.position,
        )
