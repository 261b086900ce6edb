"""Questions and answers over a data channel.

    offset  size  field
         0     1  kind  0 request, 1 reply, 2 the handler failed
         1     8  id    chosen by the asker, repeated in the answer; big-endian
         9     n  body

Requests of one node arrive in the order in which they were submitted, and handlers start in that order. Answers arrive
in any order. `submit` makes no task, future or timer for a request.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from dledger.environment import Environment
from dledger.net.frames import MAX_PAYLOAD_BYTES
from dledger.net.links import ChannelListener
from dledger.net.transport import (
    Buffer,
    PeerError,
    PeerFailedError,
    PeerGoneError,
    PeerProtocolError,
    PeerTimeoutError,
    PeerUnavailableError,
)
from dledger.types import ReplicaId
from dledger_base.invariants import InvariantError
from dledger_base.telling import Telling

MAX_IN_FLIGHT = 16_384
"""Maximum number of unanswered requests of one channel, over all peers."""
SWEEP_INTERVAL_S = 0.05
"""Maximum delay in seconds until a timeout is noticed. One scan over all requests costs less than a timer for each."""

_REQUEST, _REPLY, _FAILURE = 0, 1, 2
_HEAD = struct.Struct(">BQ")
MAX_DATA_BYTES = MAX_PAYLOAD_BYTES - _HEAD.size
"""Maximum size in bytes of a request or answer."""
_ID_BITS = 62

_log = logging.getLogger(__name__)

Reply = Callable[[bytes], None]
"""Answers one request. Only the first call counts, and it may come after the handler has returned."""
Handler = Callable[[ReplicaId, bytes, Reply], None]
OnReply = Callable[[bytes | PeerError], None]


class ChannelTransport(Protocol):
    """The part of the links that a request channel needs."""

    def open_channel(self, number: int, listener: ChannelListener) -> None:
        """Give the data of a channel to `listener`."""

    def can_exchange(self, node_id: str) -> bool:
        """Return whether data can be sent to the node and it can send data back."""

    def send_data(self, to: str, channel: int, data: Sequence[Buffer]) -> bool:
        """Queue opaque bytes for a node on the bulk lane. Returns False if they were dropped."""


class _Pending(NamedTuple):
    to: str
    deadline: float
    on_reply: OnReply


class RequestChannel:
    """One numbered channel on which this node asks its peers and answers them.

    `handler(sender, data, reply)` runs on the event loop for every request and must not block. If it raises an
    exception other than `InvariantError`, that is logged, and the asker gets a `PeerFailedError`.
    """

    def __init__(self, links: ChannelTransport, number: int, handler: Handler, environment: Environment) -> None:
        self._links = links
        self._number = number
        self._handler = handler
        self._environment = environment
        self._pending: dict[int, _Pending] = {}
        # A random start keeps a late answer to an earlier process of this node from matching.
        self._next_id = environment.random().getrandbits(_ID_BITS)
        self._sweeping = False
        self._telling = Telling(environment.now)
        links.open_channel(number, self)

    @property
    def in_flight(self) -> int:
        """Number of requests that were sent and not answered yet."""
        return len(self._pending)

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        """Send a request. Returns False, without effect, if the node cannot be reached or a bound is reached.

        `data` has at most `MAX_DATA_BYTES`. After True, `on_reply` is called exactly once, later and on the event loop.
        Its argument is the answer, or `PeerGoneError`, `PeerTimeoutError` or `PeerFailedError`; then the outcome is
        unknown.
        """
        if len(data) > MAX_DATA_BYTES or len(self._pending) >= MAX_IN_FLIGHT or not self._links.can_exchange(to):
            return False
        request_id = self._next_id
        if not self._links.send_data(to, self._number, (_HEAD.pack(_REQUEST, request_id), data)):
            return False
        self._next_id += 1
        self._pending[request_id] = _Pending(to, self._environment.now() + timeout_s, on_reply)
        if not self._sweeping:
            self._sweeping = True
            self._environment.call_later(SWEEP_INTERVAL_S, self._sweep)
        return True

    async def request(self, to: str, data: bytes, timeout_s: float) -> bytes:
        """Send a request and wait for its answer.

        Raises the errors that `submit` reports, and `PeerUnavailableError` if the request was not sent.
        """
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_reply(answer: bytes | PeerError) -> None:
            if future.done():
                return
            if isinstance(answer, bytes):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        if not self.submit(to, data, on_reply, timeout_s):
            raise PeerUnavailableError(f"{to} cannot be reached or too much is waiting for it; nothing was sent")
        return await future

    def close(self) -> None:
        """Fail all requests in flight. The links must be stopped."""
        self._fail(list(self._pending), "this node is stopping")

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Answer a request, or pass an answer to the asker."""
        if len(data) < _HEAD.size:
            raise PeerProtocolError(f"a request of {len(data)} bytes found, at least {_HEAD.size} expected")
        kind, request_id = _HEAD.unpack_from(data)
        if kind == _REQUEST:
            self._run_handler(sender, request_id, data[_HEAD.size :])
            return
        if kind not in {_REPLY, _FAILURE}:
            raise PeerProtocolError(f"request kind {kind} found, {_REQUEST} to {_FAILURE} expected")
        pending = self._pending.get(request_id)
        if pending is None or pending.to != sender.node_id:
            return  # the request was given up before
        del self._pending[request_id]
        if kind == _REPLY:
            pending.on_reply(data[_HEAD.size :])
        else:
            pending.on_reply(PeerFailedError(f"{sender} failed on a request; its log says why"))

    def on_lost(self, node_id: str) -> None:
        """Fail the requests to a node whose link was lost."""
        lost = [request_id for request_id, pending in self._pending.items() if pending.to == node_id]
        self._fail(lost, f"the link with {node_id} was lost")

    def _fail(self, request_ids: Sequence[int], reason: str) -> None:
        for request_id in request_ids:
            pending = self._pending.pop(request_id, None)
            if pending is not None:
                pending.on_reply(PeerGoneError(f"{reason}; whether the request had an effect is unknown"))

    def _run_handler(self, sender: ReplicaId, request_id: int, data: bytes) -> None:
        try:
            self._handler(sender, data, partial(self._reply, sender.node_id, request_id))
        except InvariantError:
            raise
        except Exception as error:
            kind = f"request_failed {type(error).__name__}"
            line = "event=request_failed peer=%s error=%r"
            self._telling.log(_log, logging.ERROR, sender.node_id, kind, line, sender, str(error), exc_info=error)
            self._links.send_data(sender.node_id, self._number, (_HEAD.pack(_FAILURE, request_id),))

    def _reply(self, to: str, request_id: int, data: bytes) -> None:
        if len(data) > MAX_DATA_BYTES:
            line = "event=answer_too_large bytes=%d peer=%s limit=%d"
            self._telling.log(_log, logging.ERROR, to, "answer_too_large", line, len(data), to, MAX_DATA_BYTES)
            self._links.send_data(to, self._number, (_HEAD.pack(_FAILURE, request_id),))
            return
        # Without a link the asker is notified of the loss; with a full queue its request times out.
        self._links.send_data(to, self._number, (_HEAD.pack(_REPLY, request_id), data))

    def _sweep(self) -> None:
        now = self._environment.now()
        expired = [request_id for request_id, pending in self._pending.items() if pending.deadline <= now]
        try:
            for request_id in expired:
                pending = self._pending.pop(request_id, None)
                if pending is not None:
                    pending.on_reply(PeerTimeoutError(f"{pending.to} did not answer in time; the outcome is unknown"))
        finally:  # one asker's exception must not leave other requests without a result
            self._sweeping = bool(self._pending)
            if self._sweeping:
                self._environment.call_later(SWEEP_INTERVAL_S, self._sweep)
