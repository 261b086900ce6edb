"""A group of one replica with its log in memory: stages, commits, applies, snapshots and trims like `dledger.node`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from dledger.environment import Environment
from dledger.errors import LogFullError, NotLeaderError, TooLargeError, TrimmedError
from dledger.format import BLANK_BYTES, HEADER_BYTES, MAX_ENTRY_BODY_BYTES, MAX_UNIT_BYTES, blank, seal
from dledger.net.links import ChannelListener
from dledger.net.requests import Handler, RequestChannel
from dledger.replica.status import LoopLateness, NodeStatus
from dledger.statemachine import CommittedEntry, Leadership, StateMachine
from dledger.store.disk import Buffer, DiskSpace
from dledger.store.log import SegmentInfo
from dledger.store.ranges import EntryRun, LogCut, RecordSpan
from dledger.store.reader import OpenFile
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId, SnapshotMeta, WallClock
from dledger_base.invariants import invariant
from dledger_base.loop_guard import excepted

T = TypeVar("T")

NODE_ID = "fake-n0"
MEMBERSHIP = Membership((ReplicaId(NODE_ID, "00000000"),))


class FakeLog:
    """Committed bytes, and snapshots of the state. Several nodes may use it, one after another."""

    def __init__(self, segment_bytes: int = 1 << 20) -> None:
        self.segment_bytes = segment_bytes
        self.data = bytearray()
        self.entries: list[EntryMeta] = []
        self.segment_starts = [0]
        self.segment_times: list[int] = [0]
        self.snapshots: dict[int, tuple[SnapshotMeta, list[bytes]]] = {}
        self.first_position = 0

    @property
    def end(self) -> int:
        """Position after the last entry or blank."""
        return len(self.data)

    @property
    def room(self) -> int:
        """Bytes left in the last segment."""
        return self.segment_starts[-1] + self.segment_bytes - self.end

    def roll(self, wall_ms: int) -> None:
        """Begin another segment, unless the last one is empty."""
        if self.end > self.segment_starts[-1]:
            if self.room:
                self.data += blank(self.room)
            self.segment_starts.append(self.end)
            self.segment_times.append(wall_ms)

    def append(self, kind: int, term: int, records: bytes, commands: bytes) -> EntryMeta:
        """Seal an entry at the end."""
        index = len(self.entries)
        chain = self.entries[-1].chain_crc if self.entries else 0
        entry = bytearray(HEADER_BYTES) + records + commands
        meta = seal(entry, kind, index, term, self.end, len(commands), chain)
        self.data += entry
        self.entries.append(meta)
        return meta


class _NoPeers:
    """Links of a node that is alone: no peer can be reached."""

    def open_channel(self, number: int, listener: ChannelListener) -> None:
        """Do nothing, because nothing will arrive."""

    def can_exchange(self, node_id: str) -> bool:
        """Return False: no peer can be reached."""
        _ = node_id
        return False

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Return False: no peer takes data."""
        _ = to, channel, data
        return False


class FakeNode:
    """A `dledger.log.Log` of a ready leader that is alone in its group.

    Units staged in one turn of the event loop are committed and applied in a later turn, or when `commit` is called.
    With `cold` set, `read_nowait` finds nothing in the page cache.
    """

    def __init__(self, machine: StateMachine, env: Environment, log: FakeLog | None = None) -> None:
        self.env = env
        self.log = log or FakeLog()
        self.failed_reads: list[int] = []
        self.cold = False
        self.term = 0
        self.is_ready = False
        self.leader_id: str | None = None
        self.applied_index = -1
        self.applied_position = 0
        self.membership = MEMBERSHIP
        self.disk_used = 0
        self.disk_space: DiskSpace | None = None
        self.loop_late: LoopLateness | None = None
        self.stage_error: Exception | None = None
        self.reserve_left = 1.0
        self.durable_limit: int | None = None
        self.watched: tuple[Callable[[], float], Callable[[], int]] | None = None
        """Arguments of the last `watch_disk`."""
        self.clocks: list[WallClock | None] | None = None
        """Result of `voter_clocks` instead of this node's own clock."""
        self._machine = machine
        self._parts: list[Buffer] = []
        self._record_bytes = 0
        self._commands: list[bytes | bytearray] = []
        self._contexts: list[object] = []
        self._sealed: list[tuple[EntryMeta, list[object]]] = []
        self._commit_due = False
        self._trim_hooks: list[Callable[[int], None]] = []
        self.handover_hooks: list[Callable[[], None]] = []

    # ---------------------------------------------------------------- life

    def start(self, *, lead: bool = True) -> None:
        """Restore from the newest snapshot, apply the log, and lead in the next term unless the arguments forbid it."""
        with excepted("nothing is served yet"):
            self.restore()
        self.catch_up()
        if lead:
            self.lead()

    def restore(self, snapshot_position: int | None = None) -> None:
        """Give the machine the newest snapshot, or that of a position, and rebuild the entries that its views lack."""
        position = max(self.log.snapshots, default=None) if snapshot_position is None else snapshot_position
        if position is None:
            self._machine.decode(None, ())()
            return
        meta, chunks = self.log.snapshots[position]
        rebuild_from = max(self._machine.decode(meta, chunks)(), self.log.first_position)
        self.applied_index, self.applied_position = meta.last_index, meta.position
        lacking = [
            entry
            for entry in self.log.entries[: meta.last_index + 1]
            if entry.end > rebuild_from and entry.position >= self.log.first_position
        ]
        groups = [self._group(entry, ()) for entry in lacking if entry.kind == EntryKind.GROUP]
        for begin in range(0, len(groups), 3):
            self._machine.rebuild(groups[begin : begin + 3])

    def catch_up(self) -> None:
        """Apply the entries of the log, as a follower does."""
        while self.applied_index + 1 < len(self.log.entries):
            meta = self.log.entries[self.applied_index + 1]
            if meta.kind == EntryKind.GROUP:
                self._machine.apply([self._group(meta, ())])
            self.applied_index, self.applied_position = meta.index, meta.end

    def lead(self) -> None:
        """Become the ready leader of the next term."""
        self.term = (self.log.entries[-1].term if self.log.entries else 0) + 1
        self.leader_id = NODE_ID
        self.log.append(EntryKind.NO_OP, self.term, b"", b"")
        self.catch_up()
        self.is_ready = True
        self._machine.on_leadership(Leadership(self.term, NODE_ID, is_leader=True, ready=True))

    def step_down(self) -> None:
        """Lose leadership. Staged units are dropped, except units that were sealed before: these are in the log."""
        contexts = [context for _, sealed in self._sealed for context in sealed] + self._contexts
        self._sealed, self._contexts = [], []
        self._parts, self._commands, self._record_bytes = [], [], 0
        self.is_ready = False
        self.leader_id = None
        self._machine.dropped(contexts, None)
        self._machine.on_leadership(Leadership(self.term + 1, None, is_leader=False, ready=False))

    def drop_staged(self) -> None:
        """Drop staged units that have waited in vain for space on the disk. This node keeps leading."""
        contexts, self._contexts = self._contexts, []
        self._parts, self._commands, self._record_bytes = [], [], 0
        self._commit_due = False
        self._machine.dropped(contexts, LogFullError("the disk of this node is full"))

    # ---------------------------------------------------------------- writing

    def stage(
        self,
        size: int,
        fill: Callable[[int], Sequence[Buffer]] | None,
        *,
        commands: bytes | bytearray = b"",
        context: object = None,
        privileged: bool = False,
    ) -> int:
        """Stage a unit. Raise `stage_error` if it is set, except for privileged units of commands on a full disk.

        Nothing is applied before it returns.
        """
        reserved = privileged and not size
        if self.stage_error is not None and not (reserved and isinstance(self.stage_error, LogFullError)):
            raise self.stage_error
        if not self.is_ready:
            raise NotLeaderError(self.leader_id, self.term)
        unit_bytes = size + len(commands)
        limit = min(MAX_UNIT_BYTES, self.segment_bytes - HEADER_BYTES - BLANK_BYTES)
        if unit_bytes > limit:
            raise TooLargeError(f"a unit of {unit_bytes} bytes does not fit: the limit is {limit} bytes")
        pending = HEADER_BYTES + self._record_bytes + sum(map(len, self._commands))
        if pending + unit_bytes > min(MAX_ENTRY_BODY_BYTES, self.log.room - BLANK_BYTES):
            self._seal()
            if HEADER_BYTES + unit_bytes > self.log.room - BLANK_BYTES:
                self.log.roll(self.env.wall_ms())
        position = self.log.end + HEADER_BYTES + self._record_bytes
        if size and fill is not None:
            parts = list(fill(position))
            invariant(sum(map(len, parts)) == size, "a unit has the size that was announced", size=size)
            self._parts += parts
            self._record_bytes += size
        if commands:
            self._commands.append(commands)
        if context is not None:
            self._contexts.append(context)
        if not self._commit_due:
            self._commit_due = True
            self.env.call_soon(self.commit)
        return position

    def commit(self) -> None:
        """Seal, commit and apply the staged units."""
        self._commit_due = False
        self._seal()
        sealed, self._sealed = self._sealed, []
        for meta, contexts in sealed:
            self._machine.apply([self._group(meta, contexts)])
            self.applied_index, self.applied_position = meta.index, meta.end

    def _seal(self) -> None:
        if not self._parts and not self._commands:
            return
        records, commands = b"".join(self._parts), b"".join(self._commands)
        contexts, self._contexts = self._contexts, []
        self._parts, self._commands, self._record_bytes = [], [], 0
        self._sealed.append((self.log.append(EntryKind.GROUP, self.term, records, commands), contexts))

    # ---------------------------------------------------------------- reading

    @property
    def first_position(self) -> int:
        """Position of the first kept byte."""
        return self.log.first_position

    @property
    def segment_bytes(self) -> int:
        """Size of a segment."""
        return self.log.segment_bytes

    @property
    def end_position(self) -> int:
        """Position after the log's last byte. Entries that are sealed and not committed count."""
        return self.log.end

    @property
    def durable_position(self) -> int:
        """Position up to which the log is durable: all of it, or `durable_limit` if a test has set that."""
        return self.log.end if self.durable_limit is None else self.durable_limit

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """Return bytes of the log, None while `cold` is set."""
        return None if self.cold else self._read(position, size)

    def read_runs_nowait(self, runs: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Return bytes of the log, None while `cold` is set."""
        pieces: list[bytes] = []
        for position, size in runs:
            data = self.read_nowait(position, size)
            if data is None:
                return None
            pieces.append(data)
        return pieces

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """Return None: the log has no file."""

    async def read(self, position: int, size: int) -> bytes:
        """Return bytes of the log."""
        return self._read(position, size)

    def read_blocking(self, position: int, size: int) -> bytes:
        """Return bytes of the log."""
        return self._read(position, size)

    def read_failed(self, position: int) -> None:
        """Note the position of a failed read in `failed_reads`."""
        self.failed_reads.append(position)

    async def cuts(self, start: int, end: int, slice_bytes: int) -> list[LogCut]:
        """Return the cuts of a range of the log into slices that begin with an entry."""
        cuts: list[LogCut] = []
        chain = 0
        for meta in self.log.entries:
            due = (
                not cuts or meta.position >= cuts[-1].position + slice_bytes or meta.position in self.log.segment_starts
            )
            if meta.end > max(start, self.log.first_position) and meta.position < end and due:
                cuts.append(LogCut(meta.position, meta.index, chain))
            chain = meta.chain_crc
        return cuts

    async def read_run(self, start: int, end: int, max_bytes: int) -> EntryRun:
        """Return a run of whole entries, at most `max_bytes` unless the first entry is larger."""
        self._read(start, 0)
        data, stop = b"", start
        for meta in self.log.entries:
            if start <= meta.position < end and meta.position == stop and (not data or meta.end - start <= max_bytes):
                data += self._read(meta.position, meta.size)
                stop = meta.end
        following = (meta.position for meta in self.log.entries if meta.position >= stop)
        return EntryRun(data, min(next(following, stop), end))

    async def record_spans(self, start: int, end: int) -> list[RecordSpan]:
        """Return the spans of records of each term in a range of the log."""
        return self._record_spans(start, end)

    def last_records(self, start: int, end: int) -> list[bytes]:
        """Return the last records of each term in a range of the log."""
        return [self._read(span.last_position, span.last_size) for span in self._record_spans(start, end)]

    def _record_spans(self, start: int, end: int) -> list[RecordSpan]:
        spans: dict[int, RecordSpan] = {}
        for meta in self.log.entries:
            size = meta.size - HEADER_BYTES - meta.channel
            if meta.kind == EntryKind.GROUP and size and start <= meta.position < end:
                begin = meta.position + HEADER_BYTES
                first = spans[meta.term].first_position if meta.term in spans else begin
                spans[meta.term] = RecordSpan(first, begin, size)
        return list(spans.values())

    def segments(self) -> list[SegmentInfo]:
        """Return the kept segments."""
        ends = [*self.log.segment_starts[1:], self.log.end]
        return [
            SegmentInfo(start, end)
            for start, end in zip(self.log.segment_starts, ends, strict=True)
            if start >= self.log.first_position
        ]

    def segment_written_ms(self, start: int) -> int:
        """Return the time at which a segment was begun."""
        return self.log.segment_times[self.log.segment_starts.index(start)]

    def read_index(self, callback: Callable[[Exception | None], None]) -> None:
        """Confirm the leader at the end of the turn, or report that this node does not lead."""
        error = None if self.is_ready else NotLeaderError(self.leader_id, self.term)
        self.env.call_soon(partial(callback, error))

    def status(self) -> NodeStatus:
        """Return the status of the node. A test may set `disk_used`, in 1/1000."""
        return NodeStatus(
            node_id=NODE_ID,
            incarnation=MEMBERSHIP.voters[0].incarnation,
            cluster="fake",
            group="fake",
            role="leader" if self.is_ready else "follower",
            term=self.term,
            leader_id=self.leader_id,
            ready=self.is_ready,
            voter=True,
            first_index=0,
            last_index=len(self.log.entries) - 1,
            commit_index=len(self.log.entries) - 1,
            applied_index=self.applied_index,
            first_position=self.first_position,
            last_position=self.log.end,
            durable_position=self.durable_position,
            applied_position=self.applied_position,
            disk_used=self.disk_used,
            syncs=0,
            sync_seconds=0.0,
            elections=0,
            voters=[NODE_ID],
            learners=[],
            peers=[],
            loop_late=self.loop_late,
        )

    def voter_clocks(self) -> list[WallClock | None]:
        """Return the clocks of the voters: this node's own, or what a test has set as `clocks`."""
        now_ms = self.env.wall_ms()
        return [WallClock(now_ms, now_ms)] if self.clocks is None else self.clocks

    # ---------------------------------------------------------------- snapshots and trims

    def snapshot(self) -> int:
        """Begin a segment with a snapshot of the state. Return its position."""
        self.commit()
        self.log.roll(self.env.wall_ms())
        last = self.log.entries[-1]
        meta = SnapshotMeta(self.log.end, last.index, last.term, last.chain_crc, MEMBERSHIP)
        self.log.snapshots[meta.position] = (meta, list(self._machine.snapshot()))
        return meta.position

    def trim_candidates(self) -> list[int]:
        """Return the positions of snapshots to which the log may be trimmed."""
        return sorted(position for position in self.log.snapshots if position > self.log.first_position)

    def trim(self, before_position: int) -> bool:
        """Trim the log at once. Return False if `before_position` is not a candidate."""
        if before_position not in self.trim_candidates():
            return False
        self.log.first_position = before_position
        for position in [position for position in self.log.snapshots if position < before_position]:
            del self.log.snapshots[position]
        for hook in self._trim_hooks:
            hook(before_position)
        return True

    def hand_over(self, node_id: str) -> bool:
        """Return False: there is no other node."""
        _ = node_id
        return False

    def watch_disk(self, watermark: Callable[[], float], kept_free: Callable[[], int]) -> None:
        """Note the arguments. A test sets `disk_used` and `stage_error` instead of filling a disk."""
        self.watched = watermark, kept_free

    def on_trimmed(self, hook: Callable[[int], None]) -> None:
        """Call `hook` after each trim."""
        self._trim_hooks.append(hook)

    def on_handover(self, hook: Callable[[], None]) -> None:
        """Note a hook. A test calls the `handover_hooks` by itself."""
        self.handover_hooks.append(hook)

    def broadcast_commit(self) -> None:
        """Do nothing, because there is no other node."""

    group_identity = ""

    def adopt(self, group_id: str) -> None:
        """Take this identity as that of the group."""
        self.group_identity = group_id

    def request_channel(self, number: int, handler: Handler) -> RequestChannel:
        """Return a channel to other nodes, all of which are unreachable."""
        return RequestChannel(_NoPeers(), number, handler, self.env)

    def _read(self, position: int, size: int) -> bytes:
        if position < self.log.first_position:
            raise TrimmedError(f"position {position} is below the first kept one, {self.log.first_position}")
        invariant(position + size <= self.log.end, "a read stays in the log", position=position, size=size)
        return bytes(self.log.data[position : position + size])

    def _group(self, meta: EntryMeta, contexts: Sequence[object]) -> CommittedEntry:
        body = bytes(self.log.data[meta.position + HEADER_BYTES : meta.end])
        split = len(body) - meta.channel
        return CommittedEntry(
            meta.index, meta.term, meta.position, memoryview(body)[:split], memoryview(body)[split:], contexts
        )
