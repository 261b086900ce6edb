"""Judge of a node's disk: what is really on its platter, whatever its page cache shows.

1. What an acknowledgement, the durable mark or `durable_position` names is there, from the first kept byte on, but for
   what an injected fault has damaged.
2. A mark that was written names an entry of the log: it may become durable at any moment.
3. A segment goes only once the platter says so: the durable mark lies below it (it is void) or behind it (it is
   trimmed), or a reset is announced.
4. A snapshot that is listed would survive a power loss.
5. A start leaves term and vote on the platter, in both copies, and in the mark what it recovered.
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
    """The valid slots of a file, newest first."""
    blocks = (raw[at : at + SLOT_SPACING_BYTES] for at in range(0, len(raw), SLOT_SPACING_BYTES))
    slots = (decode_slot(number, block) for number, block in enumerate(blocks))
    return sorted((slot for slot in slots if slot is not None), key=lambda slot: -slot.sequence)


def durable_hard_states(disk: SimDisk) -> list[HardState]:
    """Both copies of term and vote, newest first, as a recovery after a power loss would find them now."""
    return [
        _decode_hard_state(slot.payload) for slot in slots_of(disk.durable_bytes(hardstate.PATH, 0, SLOT_FILE_BYTES))
    ]


def durable_hard_state(disk: SimDisk) -> HardState:
    """Term and vote that such a recovery would go by."""
    return next(iter(durable_hard_states(disk)), HardState())


def durable_mark(disk: SimDisk) -> MarkValue | None:
    """The durable mark as such a recovery would find it."""
    slots = slots_of(disk.durable_bytes(mark.PATH, 0, SLOT_FILE_BYTES))
    return MarkValue.decode(slots[0].payload) if slots else None


class Platter:
    """Judges one life of a node; `open` is called once its log is."""

    def __init__(
        self,
        name: str,
        disk: SimDisk,
        segment_bytes: int,
        *,
        is_rotten: Callable[[], bool],
        excused_to: Callable[[], int],
    ) -> None:
        """`excused_to()` is the position below which an injected fault may have damaged the log."""
        self._name = name
        self._disk = disk
        self._is_rotten = is_rotten
        self._excused_to = excused_to
        self._store: LogStore | None = None
        self._segment_bytes = segment_bytes
        self._generation = 0
        self._durable_to = 0
        """Everything kept below was seen on the platter."""

    def open(self, store: LogStore, hard_state: HardState) -> None:
        """The node has recovered."""
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
            "a start leaves the mark of what it recovered on the platter",
            node=self._name,
            mark=marked,
            end=store.end_position,
        )
        self.require_log(store.end_position, "what is recovered is on the platter")

    def require_log(self, end: int, promise: str, **facts: object) -> None:
        """The log lies on the platter up to a position."""
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
        """Something happened on the node."""
        store = self._store
        if store is not None and (store.durable_position > self._durable_to or store.generation != self._generation):
            require(
                store.durable_position <= store.end_position,
                "nothing behind the log's end is called durable",
                node=self._name,
                durable=store.durable_position,
                end=store.end_position,
            )
            self.require_log(store.durable_position, "what is called durable is on the platter")

    def written(self, path: str) -> None:
        """A file was written to: a mark names what the log has, and what is durable."""
        store = self._store
        if path != mark.PATH or store is None or self._reset_is_announced():
            return
        newest = MarkValue.decode(slots_of(self._disk.cached_bytes(mark.PATH, 0, SLOT_FILE_BYTES))[0].payload)
        self.require_log(newest.position, "the mark names what is durable", mark=newest)
        if newest.index < store.first_index or self._is_rotten():
            return
        known = newest.index <= store.last_index
        try:
            known = known and store.meta(newest.index).chain_crc == newest.chain
        except LogError:
            return  # it is being trimmed, or a disk error was injected for this read
        require(known, "the mark names an entry of the log", node=self._name, mark=newest, last=store.last_index)

    def entered(self, operation: str, path: str) -> None:
        """An operation of the node's begins: a segment goes only once the platter says so."""
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
            "a segment goes only once the platter says so",
            node=self._name,
            segment=start,
            mark=marked,
        )

    def _reset_is_announced(self) -> bool:
        return self._disk.durable_size(reset.PATH) > 0

    def listed(self, meta: SnapshotMeta) -> None:
        """A snapshot was listed."""
        path = f"{SNAPSHOT_DIRECTORY}/{segment_name(meta.position)}"
        size = self._disk.durable_size(path)
        require(
            size > 0 and size == self._disk.size(path) and self._disk.is_durable(path, 0, size),
            "a snapshot that is listed is on the platter",
            node=self._name,
            snapshot=meta.position,
        )
