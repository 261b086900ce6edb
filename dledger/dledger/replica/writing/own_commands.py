"""Proposals of the log's own commands: trims and digests."""

from __future__ import annotations

import msgspec

from dledger.consensus.engine import Engine
from dledger.errors import BusyError, LogFullError
from dledger.format import encode_command
from dledger.net.transport import Transport
from dledger.replica.snapshots.marks import DIGEST, TRIM, Digest, SnapshotMarks, Trim
from dledger.replica.standing import Standing
from dledger.replica.writing.leading import Leading
from dledger.store.log import LogStore
from dledger.types import ReplicaId

DIGEST_CHANNEL = 251


class OwnCommands:
    """Has trims and digests put into the log. A replica that does not lead sends its digest to the leader."""

    def __init__(
        self,
        me: ReplicaId,
        transport: Transport,
        store: LogStore,
        marks: SnapshotMarks,
        leading: Leading,
        standing: Standing,
        engine: Engine,
    ) -> None:
        self._me = me
        self._transport = transport
        self._store = store
        self._marks = marks
        self._leading = leading
        self._standing = standing
        self._engine = engine

    def propose_trim(self, position: int) -> bool:
        """On a leader, have every replica trim the log before a snapshot.

        Returns False if there is none at `position`.
        """
        has_snapshot = any(meta.position == position for meta in self._store.snapshots.list())
        if not has_snapshot or position <= self._store.first_position:
            return False
        command = encode_command(TRIM, msgspec.msgpack.encode(Trim(position)))
        self._leading.stage(0, None, command, None, privileged=True)
        return True

    def offer_digest(self) -> None:
        """Have this replica's digest put into the log, through the leader. Repeated until it is there."""
        digest, leader = self._marks.own_digest, self._engine.leader
        if digest is None:
            return
        if self._standing.is_ready:
            self._propose_digest(digest, msgspec.msgpack.encode(digest))
        elif leader is not None and leader != self._me:
            self._transport.send_data(leader.node_id, DIGEST_CHANNEL, (msgspec.msgpack.encode(digest),))

    def on_data(self, data: bytes) -> None:
        """Take a replica's digest. A leader puts it into the log, unless it is there or is malformed."""
        if self._standing.is_ready:
            try:
                digest = msgspec.msgpack.decode(data, type=Digest)
            except msgspec.MsgspecError:
                return
            self._propose_digest(digest, data)

    def _propose_digest(self, digest: Digest, data: bytes) -> None:
        if not self._marks.is_recorded(digest):
            try:
                self._leading.stage(0, None, encode_command(DIGEST, data), None, own=True)
            except (BusyError, LogFullError):
                pass  # the digest's replica offers it again
