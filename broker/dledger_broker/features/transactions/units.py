"""Halves on their way into the log: those of one turn are one unit, with the command that opens them.

While many are on their way those of several turns gather, as plain sends do. They are answered once they are applied,
or when no majority has had them for too long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import cast

from dledger.environment import Cancellable, Environment
from dledger.errors import LogError
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.on_their_way import MAX_GATHER_S, UnitsOnTheirWay
from dledger_broker.features.sending.send import MAX_UNIT_BYTES
from dledger_broker.features.transactions.proposed import ProposedHalves
from dledger_broker.features.transactions.table import OPEN_KIND, POSITION, Half, half_row
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Origin, Request, Requests
from dledger_broker.kernel.units import FixedRows, NewRecord, Place, Stored, UnitOutcome, failure
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.errors import OutcomeUnknown, ServiceNotAvailable
from dledger_remoting.hosts import HostAddress
from dledger_remoting.hotpath import send_response_frame
from dledger_remoting.ids import offset_message_id_prefix
from dledger_remoting.topics import HALF_TOPIC


@dataclass(frozen=True, slots=True)
class NewHalf:
    """The record of a half, whose it is, and when it is checked first."""

    record: NewRecord
    group: str
    next_check_ms: int


@dataclass(frozen=True, slots=True)
class HalfSend:
    """A send of a half that was checked, and what its sender is told: the queue of the real topic, the unique key."""

    request: Request
    half: NewHalf
    queue_id: int
    unique_key: bytes


class HalfUnits:
    """Stages halves, and answers their senders."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        config: BrokerConfig,
        counters: BrokerCounters,
        requests: Requests,
        proposed: ProposedHalves,
        store_host: HostAddress,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._env = env
        self._counters = counters
        self._fail = requests.fail
        self._proposed = proposed
        self._id_prefix = offset_message_id_prefix(store_host)
        self._on_their_way = UnitsOnTheirWay(env, config.quorum_timeout_ms)
        self._pending: list[HalfSend] = []
        self._pending_bytes = 0
        self._turn_ends = False
        self._gathering: Cancellable | None = None

    def add(self, send: HalfSend) -> None:
        """Take a half into the unit of this turn."""
        if self._pending_bytes + send.half.record.size > MAX_UNIT_BYTES:
            self._flush()
        self._pending.append(send)
        self._pending_bytes += send.half.record.size
        self._proposed.opening += 1
        self._flush_later()

    def close(self) -> None:
        """Answer what is under way: this node will not learn its outcome."""
        self._flush()
        self._on_their_way.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))

    def _flush_later(self) -> None:
        if self._pending and not self._turn_ends:
            self._turn_ends = True
            self._env.call_soon(self._on_turn_end)

    def _on_turn_end(self) -> None:
        self._turn_ends = False
        if not self._on_their_way.gather(len(self._pending), self._pending_bytes):
            self._flush()
        elif self._gathering is None:
            self._gathering = self._env.call_later(MAX_GATHER_S, self._flush)

    def _flush(self) -> None:
        """Stage what was added. What the log refuses is answered, or passed on."""
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        sends, self._pending, self._pending_bytes = self._pending, [], 0
        if not sends:
            return
        queue = self._machine.queue(HALF_TOPIC, 0)
        if queue is None:
            self._refuse(sends, ServiceNotAvailable(f"topic {HALF_TOPIC} is gone, nothing was stored: try again later"))
            return
        unit = HalfUnit(sends, self._on_their_way.deadline(), self._fail)
        halves = [send.half for send in sends]
        try:
            self._writer.write(
                [half.record for half in halves], [opened(halves, queue)], done=partial(self._done, unit)
            )
        except LogError as error:
            self._refuse(sends, error)
            return
        self._counters.bytes_in += sum(half.record.size for half in halves)
        self._on_their_way.add(unit)

    def _refuse(self, sends: Sequence[HalfSend], error: Exception) -> None:
        """Answer halves of which nothing was proposed."""
        self._proposed.opening -= len(sends)
        for send in sends:
            self._fail(send.request, error)

    def _done(self, unit: HalfUnit, outcome: UnitOutcome) -> None:
        """A unit is applied or lost, whatever its senders were told meanwhile."""
        self._proposed.opening -= unit.requests
        if isinstance(outcome, Stored):
            self._counters.messages_in += unit.requests
            places = cast(Sequence[Place], outcome.places)  # the topic was there in the turn that staged them
            unit.stored(places, self._id_prefix)
        else:
            unit.fail(failure(outcome, "leadership was lost before a majority had the message: it may be stored"))
        self._on_their_way.let_go()
        self._flush_later()


class HalfUnit:
    """Halves that were staged together; see `UnitOnItsWay`."""

    def __init__(
        self, sends: Sequence[HalfSend], deadline: float, failed: Callable[[Request, Exception], None]
    ) -> None:
        self.requests = len(sends)
        self.deadline = deadline
        self.settled = False
        self._sends = sends
        self._failed = failed

    def stored(self, places: Sequence[Place], id_prefix: bytes) -> None:
        """Tell each sender where its half stands, each client in one call."""
        if self.settled:
            return
        self.settled = True
        for origin, answered in groupby(zip(self._sends, places, strict=True), key=_origin):
            frames: list[bytes] = []
            for send, place in answered:
                if send.request.is_oneway:
                    origin.settle()
                else:
                    frames.append(_answer(send, place, id_prefix))
            if frames:
                origin.answer_frames(frames)
        self._sends = ()

    def fail(self, error: Exception) -> None:
        """See `UnitOnItsWay.fail`."""
        if not self.settled:
            self.settled = True
            for send in self._sends:
                self._failed(send.request, error)
            self._sends = ()


def opened(halves: Sequence[NewHalf], queue: QueueState) -> FixedRows:
    """The `OpenHalf` of the first records of a unit that is staged in this turn; `queue` is that of the half topic."""
    rows, places = bytearray(), list[int]()
    for queue_offset, half in enumerate(halves, queue.staged_offset):
        places.append(len(rows))
        rows += half_row(Half(0, queue_offset, half.record.size, half.next_check_ms, 0, half.group))

    def write(payload: memoryview, positions: Sequence[int | None]) -> None:
        payload[:] = rows
        for place, position in zip(places, positions, strict=True):
            POSITION.pack_into(payload, place, position)

    return FixedRows(OPEN_KIND, len(rows), write)


def _origin(answered: tuple[HalfSend, Place]) -> Origin:
    return answered[0].request.origin


def _answer(send: HalfSend, place: Place, id_prefix: bytes) -> bytes:
    return send_response_frame(
        send.request.opaque,
        id_prefix + b"%016X" % place.position,
        send.queue_id,
        place.queue_offset,
        send.unique_key,
        serialize_type=send.request.serialize_type,
    )
