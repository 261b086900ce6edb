"""Fetcher of the earlier part of the log, which this node lacks because it joined from a later snapshot.

It asks on the channels of `dledger.replica.upkeep.repair` and `dledger.replica.snapshots.keeping`, whose other ends
serve it. First it asks each peer where its log begins, which a refusal contains. Then it fetches the snapshot at the
earliest beginning, and the segments behind that snapshot. `dledger.store.earlier` collects them, verifies each entry,
and joins them to the log at the next start.

The fetcher runs only while this replica has applied everything committed. It fetches one piece at a time at a bounded
rate, and after a restart continues where it was. The part is dropped once the group trims it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from dledger.consensus.engine import Engine
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogError
from dledger.net.transport import Transport
from dledger.replica.snapshots.keeping import HEAD as COPY_HEAD
from dledger.replica.snapshots.keeping import SNAPSHOT_COPY_CHANNEL
from dledger.replica.snapshots.taking import SnapshotTaker
from dledger.replica.standing import ConnectedPeers, Standing
from dledger.replica.upkeep.repair import BYTES, PIECE_BYTES, REFUSAL, REPAIR_CHANNEL, REQUEST
from dledger.replica.upkeep.repair import HEAD as PIECE_HEAD
from dledger.store.earlier import SNAPSHOT, EarlierPart
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import ReplicaId

BYTES_PER_SECOND = 8 << 20
"""Maximum rate of fetching, in bytes per second."""
ANSWER_S = 2.0
"""Time limit for a peer's answer, in seconds."""
PAUSES_WITHOUT = 20
"""Number of pauses before peers are asked again whose logs began no earlier than this node's."""
_OWN_NUMBERS = 1 << 31
"""First number of this module's requests. Repairs share the channel and count from 1."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Answered(Protocol):
    """Callback for an answer.

    After a refusal `begins` is the position where the sender's log begins, and `piece` is empty.
    """

    def __call__(self, begins: int, piece: bytes, size: int) -> None: ...


class Fetcher:
    """Fetches one thing at a time; `tick` is called a few times a second.

    The first attempt, and each one after a failure,
    begins after `pause_s`. With None nothing is fetched.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: str,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        connected: ConnectedPeers,
        standing: Standing,
        taker: SnapshotTaker,
        engine: Engine,
        *,
        pause_s: float | None,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._environment = environment
        self._transport = transport
        self._store = store
        self._snapshots = snapshots
        self._connected = connected
        self._standing = standing
        self._taker = taker
        self._engine = engine
        self._part: EarlierPart | None = None
        self._peer: ReplicaId | None = None
        self._filled = 0
        self._copy_bytes = 0
        """Size of the snapshot's file, as the peer told it with the first piece."""
        self._found: dict[ReplicaId, int] = {}
        """Positions where the logs of peers begin."""
        self._failed: set[ReplicaId] = set()
        """Peers that could not give what was wanted. Other peers are asked first."""
        self._number = 0
        self._answered: _Answered | None = None
        """Handles the awaited answer."""
        self._deadline = 0.0
        self._working = False
        self._drops = False
        """True if the collected part must be removed."""
        self._whole = -1
        """Position where the log began when everything before it had been fetched."""
        self._pause_s = 0.0 if pause_s is None else pause_s
        self._not_before = environment.now() + self._pause_s
        self._stopped = pause_s is None

    def tick(self) -> None:
        """Begin fetching if something is lacking, and give up a peer that does not answer."""
        if self._stopped or self._working:
            return
        now = self._environment.now()
        if self._answered is not None:
            if now >= self._deadline:
                self._on_silence()
        elif self._drops or self._is_overtaken():
            self._drop()
        elif now >= self._not_before and self._lacks():
            self._found = {}
            self._part = None
            self._probe()

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True

    def on_piece(self, sender: ReplicaId, data: bytes) -> None:
        """Take a message of the repair channel."""
        if len(data) >= PIECE_HEAD.size:
            kind, number, position, size = PIECE_HEAD.unpack_from(data)
            self._on_answer(sender, kind, number, position if kind == REFUSAL else 0, data[PIECE_HEAD.size :], size)

    def on_copy(self, sender: ReplicaId, data: bytes) -> None:
        """Take a message of the channel for snapshot copies."""
        if len(data) >= COPY_HEAD.size:
            kind, number, _, _, size = COPY_HEAD.unpack_from(data)
            self._on_answer(sender, kind, number, 0, data[COPY_HEAD.size :], size)

    def _on_answer(self, sender: ReplicaId, kind: int, number: int, begins: int, piece: bytes, size: int) -> None:
        answered = self._answered
        if self._stopped or answered is None or self._peer != sender or number != self._number or kind == REQUEST:
            return
        self._answered = None
        answered(begins, piece if kind == BYTES else b"", size)

    def _on_silence(self) -> None:
        """Continue with another peer, because the asked peer does not answer."""
        self._answered = None
        if self._part is None and self._peer is not None:
            self._found[self._peer] = self._store.first_position
            self._probe()
        else:
            self._rest("it does not answer")

    def _is_overtaken(self) -> bool:
        """Return whether the group has trimmed the fetched part, or some of it."""
        part = self._part
        return self._whole != -1 and (part is None or not self._still_wanted(part))

    def _drop(self) -> None:
        """Remove the fetched part, with nothing else under way. A removal that fails is tried again later."""
        self._whole, self._part = -1, None
        self._drops = self._working = True

        def dropped(result: object) -> None:
            self._working = False
            self._drops = isinstance(result, BaseException)

        self._environment.run_blocking(BACKGROUND, self._store.drop_earlier, dropped)

    def _lacks(self) -> bool:
        """Return whether peers may keep entries before this log, while this replica has nothing else to do."""
        begins = self._store.first_position
        return (
            max(self._taker.trim_position, 0) < begins != self._whole
            and self._engine.leader is not None
            and self._standing.applied_index >= self._engine.commit_index
            and any(meta.position == begins for meta in self._snapshots.list())
        )

    # ---------------------------------------------------------------- who has it

    def _probe(self) -> None:
        """Ask the next peer for the very first byte.

        When all have answered, begin with the peer whose log begins first.
        """
        for peer in sorted(self._connected):
            if peer not in self._found and self._ask(peer, REPAIR_CHANNEL, partial(self._probed, peer), 0, 1):
                return
        begins, trimmed_to = self._store.first_position, self._taker.trim_position
        earlier = [
            (first, peer in self._failed, peer)
            for peer, first in self._found.items()
            if trimmed_to <= first < begins  # one that begins before that has yet to trim
        ]
        if not earlier:
            self._rest("", PAUSES_WITHOUT)
            return
        first, has_failed, self._peer = min(earlier)
        if has_failed:
            self._failed.clear()
        begin = partial(self._store.earlier_part, self._incarnation, first)
        self._work(begin, self._begun)

    def _probed(self, peer: ReplicaId, begins: int, piece: bytes, size: int) -> None:
        del piece, size
        self._found[peer] = begins
        self._probe()

    # ---------------------------------------------------------------- fetching

    def _begun(self, part: EarlierPart) -> None:
        logger.info(
            "node=%s event=fetching_earlier_log first=%d end=%d from=%d peer=%s",
            self._node_id,
            part.plan.first,
            part.plan.end,
            part.plan.position,
            self._peer,
        )
        self._part = part
        self._next()

    def _next(self) -> None:
        """Fetch the snapshot or the next segment, or finish."""
        part = self._part
        self._filled = 0
        if part is None or self._peer is None or not self._still_wanted(part):
            self._give_up()
        elif part.needs_snapshot:
            self._ask_copy()
        elif part.plan.position < part.plan.end:
            self._ask_piece()
        elif not part.plan.whole:
            base = next((meta for meta in self._snapshots.list() if meta.position == part.plan.end), None)
            if base is None:
                self._rest("the snapshot that the log begins behind is not here")
            else:
                self._work(partial(part.finish, base), self._finished)
        else:
            self._finished(None)

    def _give_up(self) -> None:
        """Drop the part: the group has trimmed it, or the log was replaced."""
        self._drop()
        self._rest("")

    def _still_wanted(self, part: EarlierPart) -> bool:
        begins = self._store.first_position
        return part.plan.end == begins and self._taker.trim_position <= part.plan.first

    def _ask_copy(self) -> None:
        assert self._part is not None
        assert self._peer is not None
        position, offset = self._part.plan.first, self._filled
        head = COPY_HEAD.pack(REQUEST, self._next_number(), position, offset, 0)
        self._send(self._peer, SNAPSHOT_COPY_CHANNEL, head, self._copied)

    def _copied(self, begins: int, piece: bytes, size: int) -> None:
        del begins
        part = self._part
        if part is None or not piece:
            self._rest("it does not have the snapshot")
            return

        filled = self._filled
        if not filled:
            self._copy_bytes = size
        if size != self._copy_bytes or filled + len(piece) > size:
            self._rest("its snapshot has changed meanwhile")
            return

        def work() -> bool:
            self._store.require_room_beside(size - filled)
            part.write(SNAPSHOT, piece, filled)
            if filled + len(piece) < size:
                return False
            part.take_snapshot()
            return True

        self._work(work, partial(self._written, len(piece), self._ask_copy))

    def _ask_piece(self) -> None:
        assert self._part is not None
        assert self._peer is not None
        size = min(PIECE_BYTES, self._store.segment_bytes - self._filled)
        position = self._part.plan.position + self._filled
        if not self._ask(self._peer, REPAIR_CHANNEL, partial(self._got_piece, size), position, size):
            self._rest("it is not connected")

    def _got_piece(self, wanted: int, begins: int, piece: bytes, size: int) -> None:
        del begins, size
        part = self._part
        if part is None or len(piece) != wanted:
            self._rest("it does not have the bytes")
            return

        filled = self._filled

        def work() -> bool:
            self._store.require_room_beside(len(piece))
            part.write(part.segment_path, piece, filled)
            if filled + len(piece) < self._store.segment_bytes:
                return False
            part.take_segment()
            return True

        self._work(work, partial(self._written, len(piece), self._ask_piece))

    def _written(self, size: int, ask_more: Callable[[], None], at_end: bool) -> None:
        """Continue after a piece was written, as the rate allows. `at_end` is True at the end of the piece's file."""
        self._filled += size
        self._working = True

        def go_on() -> None:
            self._working = False
            part = self._part
            if self._stopped:
                return
            if part is None or not self._still_wanted(part):
                self._give_up()
            elif at_end:
                self._next()
            else:
                ask_more()

        self._environment.call_later(size / BYTES_PER_SECOND, go_on)

    def _finished(self, _: None) -> None:
        self._whole = self._store.first_position
        logger.warning(
            "node=%s event=earlier_log_fetched first=%d end=%d consequence=%r",
            self._node_id,
            self._part.plan.first if self._part is not None else -1,
            self._whole,
            "the log begins there after the next start of this node",
        )
        self._rest("")

    # ---------------------------------------------------------------- one thing at a time

    def _ask(self, peer: ReplicaId, channel: int, answered: _Answered, position: int, size: int) -> bool:
        self._peer = peer
        return self._send(peer, channel, PIECE_HEAD.pack(REQUEST, self._next_number(), position, size), answered)

    def _send(self, peer: ReplicaId, channel: int, head: bytes, answered: _Answered) -> bool:
        self._answered = answered
        self._deadline = self._environment.now() + ANSWER_S
        if self._transport.send_data(peer.node_id, channel, (head,)):
            return True
        self._answered = None
        return False

    def _next_number(self) -> int:
        self._number = _OWN_NUMBERS | (self._number + 1) & (_OWN_NUMBERS - 1)
        return self._number

    def _rest(self, why: str, pauses: int = 1) -> None:
        if why and self._peer is not None:
            self._failed.add(self._peer)
        if why:
            logger.info("node=%s event=earlier_log_waits peer=%s why=%r", self._node_id, self._peer, why)
        self._answered = None
        self._not_before = self._environment.now() + pauses * self._pause_s

    def _work(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` on a worker, then `done`. Failed work is tried again later and never ends the replica."""
        self._working = True

        def finished(result: T | BaseException) -> None:
            self._working = False
            if self._stopped:
                return
            if isinstance(result, CorruptionError):
                self._rest(str(result))
                if self._part is None or self._part.is_doubtful():
                    self._drop()  # else another peer goes on behind what has verified
            elif isinstance(result, BusyError | LogError | OSError):
                self._rest(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                done(result)

        self._environment.run_blocking(BACKGROUND, work, finished)
