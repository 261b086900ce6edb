"""Sends of one message each that are staged together. Each client gets its answers in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dledger_broker.kernel.requests import Origin, Request
from dledger_broker.kernel.units import Place
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
