"""Interface of the log for a service: staging, reading, trimming and hooks."""

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
    """Log of one replica. `dledger.node.Node` implements it, and so does a node of a simulated group.

    Methods are for the event loop on which the node was started, unless they say that they block.
    """

    @property
    def is_ready(self) -> bool:
        """True if this node leads, has applied the no-op of its term, and takes proposals."""

    @property
    def membership(self) -> Membership:
        """Members of the group."""

    @property
    def segment_bytes(self) -> int:
        """Size of the log's segments in bytes."""

    @property
    def first_position(self) -> int:
        """Position of the first kept byte of the log."""

    @property
    def end_position(self) -> int:
        """Position where the log ends, including proposals that still wait for a majority."""

    @property
    def durable_position(self) -> int:
        """Position up to which everything is on this node's disk."""

    @property
    def disk_space(self) -> DiskSpace | None:
        """Space of the file system of this node's log, up to a second old; None before the first look."""

    @property
    def reserve_left(self) -> float:
        """Share of `reserve_bytes` that this node's disk still keeps back, 0 to 1; below 1 only on a full disk."""

    def status(self) -> NodeStatus:
        """Return the status for `/status`."""

    def voter_clocks(self) -> Sequence[WallClock | None]:
        """Return, on the leader, the bounds of all voters' wall clocks, including its own.

        An item is None if the clock is not known (`dledger.replica.clocks`). Then the node has answered no heartbeat
        that was sent in this term and within the last second.
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
        """Put a unit into the entry of this turn of the event loop, and return the position of its first record byte.

        `size` is the number of record bytes (0: commands only). `fill(position)` is called at once. It returns buffers
        of `size` bytes in total that must not change afterwards. `commands` are encoded commands of kinds ≥ 16; `fill`
        may still complete them in place.

        Once the entry is applied here, `context` is in `CommittedEntry.contexts`. If this replica loses track of the
        unit, `context` is passed to `StateMachine.dropped`.

        On a full disk, `privileged` units of commands only may use the space that is kept back (see `reserve_left`).
        `privileged` units with records free space, and may use the space that `watch_disk` keeps free.

        Raises, before anything is proposed, `NotLeaderError`, `BusyError` (too many bytes wait for a majority) or
        `LogFullError`. Raises `TooLargeError` as well: a unit is at most 8 MiB and fits a segment.
        """

    def trim(self, before_position: int) -> bool:
        """On the leader, have every replica trim the log before a snapshot's position.

        Returns False if there is no snapshot at that position.
        """

    def hand_over(self, node_id: str) -> bool:
        """On the leader, begin to hand over to a voter.

        False if that cannot begin. A handover that begins may still fail.
        """

    def trim_candidates(self) -> list[int]:
        """Return the positions that `trim` accepts now, ascending."""

    # Reading

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """On the leader, call `callback(None)` once all that is committed by now is applied.

        On any other replica the argument is a `NotLeaderError`.
        """

    def broadcast_commit(self) -> None:
        """On the leader, send the commit index to the followers at once."""

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """Return raw log bytes if they are in the page cache, else None. Raises `TrimmedError`."""

    def read_runs_nowait(self, runs: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Return the raw log bytes at these positions, of these sizes, if all are in the page cache, else None.

        Raises `TrimmedError`.
        """

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """Call `use` with the file that holds a position, which stays open meanwhile; see `dledger.store.reader`."""

    def read(self, position: int, size: int) -> Awaitable[bytes]:
        """Read raw log bytes inside one segment, on a bounded pool. Raises `TrimmedError` or `BusyError`."""

    def read_blocking(self, position: int, size: int) -> bytes:
        """Read like `read`. Blocks; for a worker thread."""

    def read_failed(self, position: int) -> None:
        """Look for damage at `position`, where a reader found bytes that do not verify.

        Damage that is found is repaired.
        """

    def cuts(self, start: int, end: int, slice_bytes: int) -> Awaitable[list[LogCut]]:
        """Return where to cut a committed range for readers; see `dledger.store.ranges`. Raises as `read`."""

    def read_run(self, start: int, end: int, max_bytes: int) -> Awaitable[EntryRun]:
        """Return whole raw entries of a committed range, unverified; see `dledger.store.ranges`. Raises as `read`."""

    def record_spans(self, start: int, end: int) -> Awaitable[list[RecordSpan]]:
        """Return the positions of the first and last records of each term in a range. Raises as `read`."""

    def last_records(self, start: int, end: int) -> list[bytes]:
        """Return the last records of each term in a range; see `dledger.store.ranges`. Blocks; for a worker thread."""

    def segments(self) -> Sequence[SegmentInfo]:
        """Return the kept segments, oldest first."""

    def segment_written_ms(self, start: int) -> int:
        """Return when a segment's file was last written; see `dledger.store.reader`. Blocks; for a worker thread."""

    # Hooks

    def watch_disk(self, watermark: Callable[[], float], kept_free: Callable[[], int]) -> None:
        """Warn while the used share of this node's file system is above `watermark()`, 0 to 1.

        Units that are not privileged are refused while fewer bytes are free than `kept_free()` plus what snapshots
        need.
        """

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        """Call `hook(position)` after every trim of this node's log."""

    def on_handover(self, hook: Callable[[], None]) -> None:
        """Call `hook()` before this node, as the leader, begins a handover: the last moment for `stage`.

        The target of the handover will have the units staged then, and they are not refused as busy. Handovers begin on
        request, and by themselves when a leader's disk is slow or its snapshot has rotted. A leader that is deposed
        does not get this call.
        """

    # The group

    @property
    def group_identity(self) -> str:
        """Identity of the group (`dledger_base.group_identity`); empty until this node knows it."""

    def adopt(self, group_id: str) -> None:
        """Take over the group identity that the log has: show it to other nodes, and keep it in the directory."""

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        """Open a channel for requests between the nodes of the group, numbered 1…249; see `dledger.net.requests`."""
