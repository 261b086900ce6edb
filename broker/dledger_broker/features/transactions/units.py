"""Units of halves on their way into the log: the halves of one turn, with the command that opens them.

The overlay has the halves that the leader is about to open, to end or to reopen.

While many are on their way, the halves of several turns are gathered, as plain sends are. They are answered once they
are applied, or when no majority has had them for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dledger.environment import Environment
from dledger.errors import LogError
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.single_sends import SingleSend, SingleSends, SingleSendUnits
from dledger_broker.features.transactions.table import OPEN_KIND, POSITION, Half, half_row
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.units import FixedRows, NewRecord, UnitOutcome
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.errors import ServiceNotAvailable
from dledger_remoting.topics import HALF_TOPIC


class ProposedEnds:
    """Ends of halves that are staged and not applied yet, with the requests that wait for their outcome.

    An entry ends with its unit, even if its request was answered before. So two ends of one half are never in the log
    together.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __contains__(self, position: int) -> bool:
        return position in self._waiting

    def begin(self, position: int) -> None:
        """Note that the end of a half is staged."""
        self._waiting[position] = []

    def wait(self, position: int, callback: Callable[[], None]) -> None:
        """Call `callback` when a staged end is applied or lost."""
        self._waiting[position].append(callback)

    def finish(self, position: int) -> None:
        """Note that an end is applied or lost. Call this before any request is answered."""
        for callback in self._waiting.pop(position):
            callback()


class ProposedHalves:
    """Changes of halves that this leader has in flight."""

    def __init__(self) -> None:
        self.opening = 0
        """Number of halves that are staged to be opened."""
        self.ends = ProposedEnds()
        self.checked: set[int] = set()
        """Halves whose checks are about to be noted."""


@dataclass(frozen=True, slots=True)
class NewHalf:
    """Record of a new half, with its producer group and the time of its first check."""

    record: NewRecord
    group: str
    next_check_ms: int


@dataclass(frozen=True, slots=True)
class HalfSend:
    """Send of a half. The answer to its sender names the queue of the real topic."""

    send: SingleSend
    half: NewHalf


class HalfUnits:
    """Stager of halves, which also answers their senders."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        units: SingleSendUnits,
        proposed: ProposedHalves,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._proposed = proposed
        self._units = units
        self._gathering = Gathering(env, units.in_flight.gather, self._stage)

    def add(self, send: HalfSend) -> None:
        """Take a half into the unit of this turn."""
        self._proposed.opening += 1
        self._gathering.add(send, send.half.record.size)
        self._gathering.flush_later()

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self._gathering.flush()
        self._units.close()

    def _stage(self, sends: list[HalfSend]) -> None:
        """Stage what was added. Halves that the log refuses are answered, or passed on."""
        unit = self._units.begin([send.send for send in sends])
        queue = self._machine.queue(HALF_TOPIC, 0)
        if queue is None:
            self._refuse(unit, ServiceNotAvailable(f"topic {HALF_TOPIC} is gone, nothing was stored: try again later"))
            return
        halves = [send.half for send in sends]
        try:
            self._writer.write(
                [half.record for half in halves], [opened(halves, queue)], done=partial(self._done, unit)
            )
        except LogError as error:
            self._refuse(unit, error)
            return
        self._units.staged(unit, sum(half.record.size for half in halves))

    def _refuse(self, unit: SingleSends, error: Exception) -> None:
        """Answer halves of which nothing was proposed."""
        self._proposed.opening -= unit.requests
        unit.fail(error)

    def _done(self, unit: SingleSends, outcome: UnitOutcome) -> None:
        """Count and answer a unit that is applied or lost. Its senders may have been answered before."""
        self._proposed.opening -= unit.requests
        self._units.settle(unit, outcome)
        self._gathering.flush_later()


def opened(halves: Sequence[NewHalf], queue: QueueState) -> FixedRows:
    """Return the `OpenHalf` of a unit's first records.

    The unit is staged in this turn, and `queue` is the half topic's.
    """
    rows, places = bytearray(), list[int]()
    for queue_offset, half in enumerate(halves, queue.staged_offset):
        places.append(len(rows))
        rows += half_row(Half(0, queue_offset, half.record.size, half.next_check_ms, 0, half.group))

    def write(payload: memoryview, positions: Sequence[int | None]) -> None:
        payload[:] = rows
        for place, position in zip(places, positions, strict=True):
            POSITION.pack_into(payload, place, position)

    return FixedRows(OPEN_KIND, len(rows), write)
