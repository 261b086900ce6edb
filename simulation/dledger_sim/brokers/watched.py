"""State machine of a broker that shows every step to the truth, before any answer reaches a client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from dledger.statemachine import CommittedEntry, Leadership, Restore
from dledger.types import SnapshotMeta
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.snapshot import encode_state
from dledger_sim.brokers.truth import Truth
from dledger_sim.brokers.waiting import Waiting
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require

SLOW_ENCODING_ENTRIES: Final = 15
"""Number of entries that are applied while a captured state is being encoded, as if the state were large."""


class WatchedMachine:
    """`StateMachine` around a broker's machine. `index` is the last entry that is applied or being applied."""

    def __init__(self, machine: BrokerMachine, life: Life, truth: Truth, waiting: Waiting) -> None:
        self.machine = machine
        self.index = -1
        self._life = life
        self._truth = truth
        self._waiting = waiting
        self.checks: list[Callable[[], None]] = []
        """Further checks after each batch of entries."""
        self._captures: deque[tuple[int, bytes, Iterator[bytes]]] = deque()
        self.rebuild = machine.rebuild
        self.dropped = machine.dropped
        self.digest = machine.digest

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries, and compare the state with the truth."""
        self.index = entries[-1].index
        self.machine.apply(entries)
        for entry in entries:
            self._truth.see(entry)
        self._truth.compare(self._life.node.name, self.index, self.machine.state)
        self._waiting.check()
        for check in self.checks:
            check()
        while self._captures and self._captures[0][0] <= self.index:
            self._check_capture()

    def on_leadership(self, leadership: Leadership) -> None:
        """Pass the leadership on, and check the long polls."""
        self.machine.on_leadership(leadership)
        self._waiting.check()

    def snapshot(self) -> Iterator[bytes]:
        """Return a snapshot. A second encoding of the same state is checked after the state has changed."""
        if not self._captures:
            state, now = self.machine.state, self.machine.env.now()
            encoded = b"".join(encode_state(state, now))
            self._captures.append((self.index + SLOW_ENCODING_ENTRIES, encoded, encode_state(state, now)))
        return self.machine.snapshot()

    def _check_capture(self) -> None:
        _, expected, chunks = self._captures.popleft()
        require(
            b"".join(chunks) == expected,
            "a state that is captured does not change while it is encoded",
            node=self._life.node.name,
            index=self.index,
        )

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        """Return a function that restores a snapshot, and checks the restored state."""
        return partial(self._restore, meta, self.machine.decode(meta, chunks))

    def _restore(self, meta: SnapshotMeta | None, restore: Restore) -> int:
        rebuild_from = restore()
        self.index = -1 if meta is None else meta.last_index
        now = self.machine.env.now()
        self._truth.restored(self._life.node.name, meta, self.machine.state, rebuild_from, now)
        self._waiting.check()
        return rebuild_from
