"""The log as a service sees it: what it stages, reads, trims and is told of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from dledger.net.requests import Handler, RequestChannel
from dledger.replica.proposer import Fill
from dledger.replica.status import NodeStatus
from dledger.store.disk import DiskSpace
from dledger.store.ranges import EntryRun, LogCut, RecordSpan
from dledger.store.reader import OpenFile, SegmentInfo
from dledger.types import Membership, WallClock

T = TypeVar("T")


class Log(Protocol):
    """One replica's log.  `dledger.node.Node` is one, and so is a node of a simulated group.

    Methods are for the event loop on which the node was started, unless they say that they block.
    """

    @property
    def is_ready(self) -> bool:
        """Leads, has applied its own no-op, and takes proposals."""

    @property
    def membership(self) -> Membership:
        """The group's members."""

    @property
    def segment_bytes(self) -> int:
        """Size of the log's segments."""

    @property
    def first_position(self) -> int:
        """First kept byte of the log."""

    @property
    def end_position(self) -> int:
        """Where the log ends with what is proposed: what lies behind the applied position waits for a majority."""

    @property
    def durable_position(self) -> int:
        """Everything before it is on this node's disk."""

    @property
    def disk_space(self) -> DiskSpace | None:
        """What the file system of this node's log has, as of a second ago; None: nobody has looked yet."""

    @property
    def reserve_left(self) -> float:
        """Share of `reserve_bytes` that this node's disk still keeps back, 0 to 1; below 1 only when it is full."""

    def status(self) -> NodeStatus:
        """What `/status` shows."""

    def voter_clocks(self) -> Sequence[WallClock | None]:
        """Leader: where the wall clocks of all voters stand, its own among them; None for one that is not known: its
        node has answered nothing that it was asked in this term, and within the last second
        (`dledger.replica.clocks`).
        """

    # Writing

    def stage(
        self,
        size: int,
        fill: Fill | None,
        *,
        commands: bytes | bytearray = b"",
        context: object = None,
        privileged: bool = False,
    ) -> int:
        """Put a unit into the entry of this turn of the event loop; returns the position of its first record byte.

        `size` is the number of record bytes (0: commands only).  `fill(position)` is called at once and returns
        buffers of `size` bytes in all that must not change afterwards.  `commands` are encoded commands of kinds ≥ 16;
        `fill` may still complete them in place.
        Once the entry is applied here, `context` stands in `CommittedEntry.contexts`; if this replica loses track of
        it, it is passed to `StateMachine.dropped`.  When the disk is full, `privileged` units of commands only may use
        the space that is kept back, see `reserve_left`.

        Raises, before anything is proposed: `NotLeaderError`, `BusyError` (64 MiB wait for a majority), `LogFullError`,
        `TooLargeError` (a unit is at most 8 MiB and fits a segment).
        """

    def trim(self, before_position: int) -> bool:
        """Leader: have every replica drop what lies before a snapshot's position; False without such a snapshot."""

    def hand_over(self, node_id: str) -> bool:
        """Leader: begin to hand over to a voter; False if that cannot begin. This node may go on leading then, too."""

    def trim_candidates(self) -> list[int]:
        """Positions that `trim` takes now, ascending."""

    # Reading

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """Leader: `callback(None)` once all that was committed before this call is applied; else `NotLeaderError`."""

    def broadcast_commit(self) -> None:
        """Leader: tell followers the commit index at once."""

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """Raw log bytes if they are in the page cache, else None.  Raises `TrimmedError`."""

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """Call `use` with the file that has a position, which stays open meanwhile, see `dledger.store.reader`."""

    def read(self, position: int, size: int) -> Awaitable[bytes]:
        """Raw log bytes inside one segment, on a bounded pool.  Raises `TrimmedError`, `BusyError`."""

    def cuts(self, start: int, end: int, slice_bytes: int) -> Awaitable[list[LogCut]]:
        """Where to cut a committed range for readers, see `dledger.store.ranges`.  Raises as `read`."""

    def read_run(self, start: int, end: int, max_bytes: int) -> Awaitable[EntryRun]:
        """Whole raw entries of a committed range, unverified, see `dledger.store.ranges`.  Raises as `read`."""

    def record_spans(self, start: int, end: int) -> Awaitable[list[RecordSpan]]:
        """Where the first and the last records of each term in a range lie.  Raises as `read`."""

    def last_records(self, start: int, end: int) -> list[bytes]:
        """The last records of each term in a range, see `dledger.store.ranges`.  Blocks; for a worker thread."""

    def segments(self) -> Sequence[SegmentInfo]:
        """The kept segments, oldest first."""

    def segment_written_ms(self, start: int) -> int:
        """When a segment's file was written last, see `dledger.store.reader`.  Blocks; for a worker thread."""

    # Hooks

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        """`hook(position)` after every trim of this node's log."""

    def on_handover(self, hook: Callable[[], None]) -> None:
        """`hook()` before this node, as the leader, begins to hand over: the last moment for `stage`.

        Whoever takes over has what it stages; it is not refused as busy. Handovers begin on request, and by themselves
        when the disk of a leader is slow or its snapshot has rotted. A leader that is deposed has no such moment.
        """

    # The group

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        """Requests between the nodes of the group, on a channel 1…249; see `dledger.net.requests`."""
