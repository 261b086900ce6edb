"""Sends of one message each that are staged together. Each client gets its answers in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from dledger.environment import Environment
from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.on_their_way import UnitsInFlight
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.requests import Origin, Request, Requests
from dledger_broker.kernel.units import Place, Stored, UnitOutcome, failure
from dledger_remoting.errors import OutcomeUnknown
from dledger_remoting.hotpath import send_response_frame


@dataclass(frozen=True, slots=True)
class SingleSend:
    """Send that was checked, with the data for its answer beside the place of its message."""

    request: Request
    queue_id: int
    unique_key: bytes
    recall_handle: bytes = b""
    remembered: bool | None = None


class SingleSends:
    """Sends that were staged together; implements `UnitInFlight`."""

    def __init__(
        self, sends: Sequence[SingleSend], deadline: float, failed: Callable[[Request, Exception], None]
    ) -> None:
        self.requests = len(sends)
        self.deadline = deadline
        self.settled = False
        self._sends = sends
        self._failed = failed

    def stored(self, places: Sequence[Place], id_prefix: bytes) -> None:
        """Answer each sender with the place of its message, unless they were answered.

        `id_prefix` begins the message ids.
        """
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
        """Answer all sends with an error, unless they were answered."""
        if not self.settled:
            self.settled = True
            for send in self._sends:
                self._failed(send.request, error)
            self._sends = ()


class SingleSendUnits:
    """Units of single sends on their way to a majority: counts them and has them answered.

    `id_prefix` begins the message ids.
    """

    def __init__(
        self,
        env: Environment,
        config: BrokerConfig,
        counters: BrokerCounters,
        requests: Requests,
        id_prefix: bytes,
    ) -> None:
        self.in_flight = UnitsInFlight(env, config.quorum_timeout_ms)
        """The units that are staged and not answered."""
        self._counters = counters
        self._requests = requests
        self._id_prefix = id_prefix

    def begin(self, sends: Sequence[SingleSend]) -> SingleSends:
        """Return a unit that is about to be staged."""
        return SingleSends(sends, self.in_flight.deadline(), self._requests.fail)

    def staged(self, unit: SingleSends, size: int) -> None:
        """Note that a unit of this size in bytes is on its way."""
        self._counters.bytes_in += size
        self.in_flight.add(unit)

    def settle(self, unit: SingleSends, outcome: UnitOutcome) -> None:
        """Count and answer a unit that is applied or lost. Its senders may have been answered before.

        The topic of the messages was there in the turn that staged them, so each has a place.
        """
        if isinstance(outcome, Stored):
            unit.stored(cast(Sequence[Place], outcome.places), self._id_prefix)
        else:
            unit.fail(failure(outcome, "leadership was lost before a majority had the message: it may be stored"))
        waited_s = self.in_flight.drop_settled(unit.deadline)
        if isinstance(outcome, Stored):
            self._counters.count_sends(unit.requests, waited_s)

    def close(self) -> None:
        """Answer all sends under way, because this node will not learn their outcome."""
        self.in_flight.fail_all(OutcomeUnknown("this node is stopping: the message may be stored"))


def _origin(answered: tuple[SingleSend, Place]) -> Origin:
    return answered[0].request.origin


def _answer(send: SingleSend, place: Place, id_prefix: bytes) -> bytes:
    return send_response_frame(
        send.request.opaque,
        id_prefix + b"%016X" % place.position,
        send.queue_id,
        place.queue_offset,
        send.unique_key,
        serialize_type=send.request.serialize_type,
        recall_handle=send.recall_handle,
        remembered=send.remembered,
        with_trace_switch=send.request.is_from_go,
    )
