"""Inbox: takes consensus messages in, and verifies the entries they carry before the engine sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.consensus.engine import Engine, Entries
from dledger.consensus.messages import EntryRange, Message
from dledger.consensus.peers import DISK_FULL
from dledger.environment import Environment
from dledger.errors import BusyError, ContradictionError, CorruptionError, LogFullError, TrimmedError
from dledger.format import HEADER_BYTES, parse_run
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.peers.outbox import Outbox
from dledger.replica.snapshots.sending import Received, SnapshotReceiver
from dledger.replica.writing.space import Reserver
from dledger.store.log import LogStore
from dledger.types import NO_CHAIN, EntryKind, EntryMeta, Lane, ReplicaId, SnapshotMeta

MAX_HELD = 1024
"""Maximum number of messages that wait while the log is being rewritten.

A leader has fewer on the way to one follower.
"""
FULL_PAUSE_S = 0.25
"""Seconds for which appends are ignored after one found no space. The leader probes again later."""


class Inbox:
    """Steps the engine with each message, some of them later than they arrived."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        reserver: Reserver,
        feed: MachineFeed,
        outbox: Outbox,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._environment = environment
        self._store = store
        self._reserver = reserver
        self._feed = feed
        self._engine = engine
        self._driver = driver
        self.receiver = SnapshotReceiver(environment, transport, store, feed, driver, on_taken=outbox.on_snapshot_taken)
        self.corrupt_messages = 0
        """Number of appends that were dropped because their bytes did not verify."""
        self._ignore_appends_until = float("-inf")
        self._is_holding = False
        self._held_messages: deque[Callable[[], None]] = deque()
        self._waits_for_space = False
        self._messages_behind_append: deque[Callable[[], None]] = deque()
        """Messages behind an append that waits for space: they continue the log, so their order must stay."""

    def hold(self) -> None:
        """Step nothing until `release`, because the log is being rewritten."""
        self._is_holding = True

    def release(self) -> None:
        """Step the messages that arrived meanwhile, in order, until something makes the inbox hold again."""
        self._is_holding = False
        while self._held_messages and not self._is_holding:
            self._driver.run(self._held_messages.popleft())

    def _defer_while_held(self, work: Callable[[], None]) -> bool:
        """Return whether the inbox holds; then `work` waits, or is dropped as a network may drop it.

        Otherwise do it now.
        """
        if self._is_holding and len(self._held_messages) < MAX_HELD:
            self._held_messages.append(work)
        return self._is_holding

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """Take a message in, or drop it if the entries or snapshot that it carries are of no use."""
        if self._defer_while_held(partial(self.on_message, sender, message, payload)):
            return
        if message.lane is Lane.CONTROL:
            self._step(sender, message)
        elif self._waits_for_space:
            if len(self._messages_behind_append) < MAX_HELD:
                self._messages_behind_append.append(partial(self.on_message, sender, message, payload))
        elif (entries := message.entries) is not None:
            self._on_entries(sender, message, entries, payload)
        elif (snapshot := message.snapshot) is not None:
            received = partial(self._on_snapshot_received, sender, message, snapshot)
            self.receiver.finish(sender, snapshot, received)
        else:
            self._step(sender, message)

    def _step(self, sender: ReplicaId, message: Message, metas: Entries = (), payload: bytes = b"") -> None:
        # the clock of this moment; on arrival the leader counts it as older, which is safe
        self._engine.wall_ms = self._environment.wall_ms()
        self._engine.step(sender, message, self._environment.now(), metas, payload)

    def _on_entries(self, sender: ReplicaId, message: Message, entries: EntryRange, payload: bytes) -> None:
        metas: list[EntryMeta] = []
        if entries.count:
            if self._environment.now() < self._ignore_appends_until:
                return
            try:
                metas = parse_run(payload, None)
                if len(metas) != entries.count or metas[0].index != entries.prev_index + 1:
                    raise CorruptionError(f"{len(metas)} entries from {metas[0].index} on belie {message}")
                message, metas, payload = self._appendable_part(sender, message, entries, metas, payload)
            except CorruptionError:
                self.corrupt_messages += 1
                return
            if not self._has_space(sender, message, metas, payload):
                return
        if message.term >= self._engine.term:
            self._require_same_log(entries.prev_index, entries.prev_term, entries.prev_chain)
            for meta in metas:
                self._require_same_log(meta.index, meta.term, meta.chain_crc)
        self._step(sender, message, metas, payload)

    def _appendable_part(
        self, sender: ReplicaId, message: Message, entries: EntryRange, metas: list[EntryMeta], payload: bytes
    ) -> tuple[Message, list[EntryMeta], bytes]:
        """Return the part of a message whose entries the log can append in one go.

        Space is reserved up to the end of the next segment only. Entries beyond that, behind entries that fill a
        segment each, follow as a message of their own.
        """
        reach_end = self._store.reach_from(metas[0].position)
        if metas[-1].end <= reach_end:
            return message, metas, payload
        count = sum(meta.end <= reach_end for meta in metas)
        size = sum(meta.size for meta in metas[:count])
        step = partial(self.on_message, sender, entries.behind(count, metas[count - 1]), payload[size:])
        self._environment.call_soon(partial(self._driver.run, step))
        return entries.up_to(count), metas[:count], payload[:size]

    def _require_same_log(self, index: int, term: int, chain: int) -> None:
        """Raise `ContradictionError` if this log differs from the leader's up to an entry of the same index and term.

        The engine identifies entries by index and term only. But a node that forgot its vote, or a loss that an
        operator accepted, can bring two leaders into one term. An acknowledgement of one leader's entry would then
        count for the other's. The chain crc of an entry covers all bytes up to it, so one comparison also covers all
        earlier entries.
        """
        own_meta = self._store.held_meta(index)
        if own_meta is not None and own_meta.term == term and chain not in (own_meta.chain_crc, NO_CHAIN):
            raise ContradictionError(
                f"the leader has other bytes than this replica up to index {index} of term {term}:"
                f" its chain crc there is {chain:#010x}, ours is {own_meta.chain_crc:#010x}"
            )

    def _has_space(self, sender: ReplicaId, message: Message, metas: list[EntryMeta], payload: bytes) -> bool:
        """Return whether there is room for the entries that the engine will append. If not, the message waits for room.

        Entries that the engine will not append do not matter, whatever their positions.
        """
        engine = self._engine
        new_metas = engine.to_append(message, metas)
        if not new_metas:
            return True
        privileged = all(meta.kind != EntryKind.GROUP or meta.channel == meta.size - HEADER_BYTES for meta in new_metas)
        if not self._store.claim(new_metas, privileged=privileged):
            self._waits_for_space = True
            step_again = partial(self.on_message, sender, message, payload)
            self._reserver.wait(new_metas, partial(self._on_space, step_again), privileged=privileged)
            return False
        if not self._reserver.has_room(new_metas[-1].end):
            engine.disk_used = DISK_FULL  # the answer to this append tells the leader
        return True

    def _on_space(self, append: Callable[[], None], error: LogFullError | None) -> None:
        """Step an append that has waited for space, then the messages behind it."""
        self._waits_for_space = False
        if error is None:
            self._driver.run(append)
        else:
            # Do not answer. The leader would send what follows at once, it would be rejected for the gap, and so on
            # without end.
            self._ignore_appends_until = self._environment.now() + FULL_PAUSE_S
            self._engine.disk_used = DISK_FULL
        waiting, self._messages_behind_append = self._messages_behind_append, deque()
        while waiting and not self._waits_for_space:
            self._driver.run(waiting.popleft())
        self._messages_behind_append.extendleft(reversed(waiting))

    def _on_snapshot_received(
        self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta, result: Received | BaseException
    ) -> None:
        if isinstance(result, BusyError | CorruptionError | LogFullError | TrimmedError):
            return  # the leader sends it again, unless a trim has just gone beyond it
        if isinstance(result, BaseException):
            self._driver.fail(result)
            return
        install = partial(self._install, sender, message, snapshot, result)
        if not self._defer_while_held(install):
            install()

    def _install(self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta, received: Received) -> None:
        self._feed.offer(received.meta, received.restore)
        self._driver.run(partial(self._step_install, sender, message, snapshot))
        self._feed.withdraw()

    def _step_install(self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta) -> None:
        if message.term >= self._engine.term:
            self._require_same_log(snapshot.last_index, snapshot.last_term, snapshot.chain_crc)
        self._step(sender, message)
