"""Takes consensus messages in: verifies the entries they carry before the engine sees them."""

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
from dledger.replica.outbox import Outbox
from dledger.replica.reserving import Reserver
from dledger.replica.transfer import Received, SnapshotReceiver
from dledger.store.log import LogStore
from dledger.types import NO_CHAIN, EntryKind, EntryMeta, Lane, ReplicaId, SnapshotMeta

MAX_HELD = 1024
"""Messages that wait while the log is being rewritten; a leader has less than that on its way to one follower."""
FULL_PAUSE_S = 0.25
"""How long appends are ignored after one found no space; the leader probes again later."""


class Inbox:
    """Steps the engine with each message, some later than they arrived."""

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
        self.receiver = SnapshotReceiver(environment, transport, store, feed, driver, taken=outbox.on_snapshot_taken)
        self.corrupt_messages = 0
        """Appends whose bytes did not verify; they were dropped."""
        self._deaf_until = float("-inf")
        self._holding = False
        self._held: deque[Callable[[], None]] = deque()
        self._waits_for_space = False
        self._behind: deque[Callable[[], None]] = deque()
        """What follows an append that waits for space: more of the log, in order."""

    def hold(self) -> None:
        """Step nothing before `release`: the log is being rewritten."""
        self._holding = True

    def release(self) -> None:
        """Step what arrived meanwhile, in its order, until something makes the inbox hold again."""
        self._holding = False
        while self._held and not self._holding:
            self._driver.run(self._held.popleft())

    def _is_held(self, work: Callable[[], None]) -> bool:
        """Whether `work` has to wait, or is dropped as a network may drop it; else it is to be done now."""
        if self._holding and len(self._held) < MAX_HELD:
            self._held.append(work)
        return self._holding

    def on_message(self, sender: ReplicaId, message: Message, payload: bytes) -> None:
        """Take a message in, or drop it if what it carries is of no use."""
        if self._is_held(partial(self.on_message, sender, message, payload)):
            return
        if message.lane is Lane.CONTROL:
            self._step(sender, message)
        elif self._waits_for_space:
            if len(self._behind) < MAX_HELD:
                self._behind.append(partial(self.on_message, sender, message, payload))
        elif (entries := message.entries) is not None:
            self._on_entries(sender, message, entries, payload)
        elif (snapshot := message.snapshot) is not None:
            received = partial(self._on_snapshot_received, sender, message, snapshot)
            self.receiver.finish(sender, snapshot, received)
        else:
            self._step(sender, message)

    def _step(self, sender: ReplicaId, message: Message, metas: Entries = (), payload: bytes = b"") -> None:
        self._engine.wall_ms = self._environment.wall_ms()  # of this moment: a leader takes it for older than it is
        self._engine.step(sender, message, self._environment.now(), metas, payload)

    def _on_entries(self, sender: ReplicaId, message: Message, entries: EntryRange, payload: bytes) -> None:
        metas: list[EntryMeta] = []
        if entries.count:
            if self._environment.now() < self._deaf_until:
                return
            try:
                metas = parse_run(payload, None)
                if len(metas) != entries.count or metas[0].index != entries.prev_index + 1:
                    raise CorruptionError(f"{len(metas)} entries from {metas[0].index} on belie {message}")
                message, metas, payload = self._within_reach(sender, message, entries, metas, payload)
            except CorruptionError:
                self.corrupt_messages += 1
                return
            if not self._has_space(sender, message, metas, payload):
                return
        if message.term >= self._engine.term:
            self._compare(entries.prev_index, entries.prev_term, entries.prev_chain)
            for meta in metas:
                self._compare(meta.index, meta.term, meta.chain_crc)
        self._step(sender, message, metas, payload)

    def _within_reach(
        self, sender: ReplicaId, message: Message, entries: EntryRange, metas: list[EntryMeta], payload: bytes
    ) -> tuple[Message, list[EntryMeta], bytes]:
        """The entries that the log can append in one go, space being reserved up to the end of its next segment.

        Those that lie beyond, behind entries that fill a segment each, follow as a message of their own.
        """
        reach = self._store.reach_from(metas[0].position)
        if metas[-1].end <= reach:
            return message, metas, payload
        count = sum(meta.end <= reach for meta in metas)
        size = sum(meta.size for meta in metas[:count])
        step = partial(self.on_message, sender, entries.behind(count, metas[count - 1]), payload[size:])
        self._environment.call_soon(partial(self._driver.run, step))
        return entries.up_to(count), metas[:count], payload[:size]

    def _compare(self, index: int, term: int, chain: int) -> None:
        """See that an entry of the leader's log has the same bytes here, if there is one of its index and term.

        The engine knows entries by index and term. A node that forgot its vote, or a loss that an operator accepted,
        can bring two leaders into one term: an acknowledgement of the other one's entry would then count for this one.
        The chain crc of an entry stands for all bytes up to it, so that one comparison covers what lies before.
        Raises `ContradictionError` if they differ.
        """
        ours = self._store.held_meta(index)
        if ours is not None and ours.term == term and chain not in (ours.chain_crc, NO_CHAIN):
            raise ContradictionError(
                f"the leader has other bytes than this replica up to index {index} of term {term}:"
                f" its chain crc there is {chain:#010x}, ours is {ours.chain_crc:#010x}"
            )

    def _has_space(self, sender: ReplicaId, message: Message, metas: list[EntryMeta], payload: bytes) -> bool:
        """Whether there is room for those entries that the engine will append; if not, the message waits for it.

        What it does not append may lie anywhere.
        """
        engine = self._engine
        fresh = engine.to_append(message, metas)
        if not fresh:
            return True
        privileged = all(meta.kind != EntryKind.GROUP or meta.channel == meta.size - HEADER_BYTES for meta in fresh)
        if not self._reserver.claim(fresh, privileged=privileged):
            self._waits_for_space = True
            again = partial(self.on_message, sender, message, payload)
            self._reserver.wait(fresh, partial(self._waited, again), privileged=privileged)
            return False
        if not self._reserver.has_room(fresh[-1].end):
            engine.disk_used = DISK_FULL  # the leader learns it with the answer to this append
        return True

    def _waited(self, append: Callable[[], None], error: LogFullError | None) -> None:
        """An append has waited for space; what came behind it follows."""
        self._waits_for_space = False
        if error is None:
            self._driver.run(append)
        else:
            # No answer: what follows would only be rejected for the gap and sent again at once, over and over.
            self._deaf_until = self._environment.now() + FULL_PAUSE_S
            self._engine.disk_used = DISK_FULL
        behind, self._behind = self._behind, deque()
        while behind and not self._waits_for_space:
            self._driver.run(behind.popleft())
        self._behind.extendleft(reversed(behind))

    def _on_snapshot_received(
        self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta, result: Received | BaseException
    ) -> None:
        if isinstance(result, BusyError | CorruptionError | LogFullError | TrimmedError):
            return  # the leader sends it again, unless a trim has just gone beyond it
        if isinstance(result, BaseException):
            self._driver.fail(result)
            return
        install = partial(self._install, sender, message, snapshot, result)
        if not self._is_held(install):
            install()

    def _install(self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta, received: Received) -> None:
        self._feed.offer(received.meta, received.restore)
        self._driver.run(partial(self._step_install, sender, message, snapshot))
        self._feed.withdraw()

    def _step_install(self, sender: ReplicaId, message: Message, snapshot: SnapshotMeta) -> None:
        if message.term >= self._engine.term:
            self._compare(snapshot.last_index, snapshot.last_term, snapshot.chain_crc)
        self._step(sender, message)
