"""Requests that need the leader, on a node that is not it.

They are passed on to the leader in an envelope, in order per client channel, one hop. While there is no leader, or the
leader of a moment ago refuses before proposing, they wait here, at most `forward_hold_ms` after they were received;
then the answer is 14 with `leaderAddr` and `term`. A request that was sent and not answered is never sent again: what
could have taken effect is answered 1 with `outcome=unknown`. One exception: what may be handled twice (`Effect.again`)
waits for the next leader; if that does not take it, its outcome is unknown as well.

A leader that refuses one request refuses all: it does not lead any more, or not yet. Of what waits, therefore, one is
tried at a time until the leader answers, and twice as many with every try while it says nothing.

A refusal must not let later requests of its channel through: when the refusing node is ready a moment later, those
behind would be handled before the one that comes again. Therefore a node that has refused a request refuses all of its
channel up to the same epoch, and the channel's node begins another one once it knows of everything it sent behind.

    envelope   MessagePack array: client channel, its address and port, its client ids, age in ms, serialize type,
               header, body, epoch of the channel; and, of a client whom its address gives an account, and of a
               node's own requests, whose it is
    answer     1 byte: 0 answered (a response frame follows), 1 refused before proposing (term as 8 bytes), 2 settled
               (a oneway request is done)
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from dledger.environment import Cancellable, Environment
from dledger.net.errors import PeerError
from dledger.net.requests import MAX_DATA_BYTES, RequestChannel
from dledger.types import ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.frontend.alias_port import SENDS
from dledger_broker.frontend.connection import pack_born_host
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.requests import Buffer, Origin, Principal, Request, WaitsCounted
from dledger_broker.kernel.routes import Route
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import decode_command
from dledger_remoting.errors import (
    FrameError,
    MessageIllegal,
    OutcomeUnknown,
    RemotingError,
    SystemBusy,
    error_from_response,
)
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.hosts import HostAddress

_logger = logging.getLogger(__name__)

FORWARD_CHANNEL: Final = 1
NO_FORWARD_FIELD: Final = "noForward"
"""Ext field with which a client of ours asks to be told who leads instead."""

RETRY_S: Final = 0.02
"""How often waiting requests are tried again while nothing changes."""
ALL_AT_ONCE: Final = 1 << 30
"""More requests than can wait: no bound on how many of them are tried."""
REFUSALS_KEPT_S: Final = 60.0
"""How long the last refusal of a channel is remembered: longer than a request that was sent behind it is under way."""

_ANSWERED, _REFUSED, _SETTLED = b"\x00", b"\x01", b"\x02"


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request on its way to the leader."""

    channel: str
    ip: str
    port: int
    client_ids: tuple[str, ...]
    age_ms: int
    serialize_type: int
    header: bytes
    body: bytes
    epoch: int = 0
    principal: Principal | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Envelope).decode


class ForwardedOrigin(WaitsCounted):
    """The `Origin` of a request that another node has passed on."""

    __slots__ = (
        "_reply",
        "address",
        "born_host",
        "client_ids",
        "forward_epoch",
        "forward_refused",
        "forward_target",
        "forwards",
        "forwards_sent",
        "key",
    )

    is_forwarded: Final = True
    is_open: Final = True

    def __init__(self, envelope: Envelope, reply: Callable[[bytes], None]) -> None:
        self.address = HostAddress(envelope.ip, envelope.port)
        self.born_host = pack_born_host(self.address)
        self.key = envelope.channel
        self.client_ids = set(envelope.client_ids)
        self.held = self.in_flight = self.forwards = self.forward_epoch = self.forward_refused = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self._reply = reply

    def answer(self, parts: Sequence[Buffer]) -> None:
        """See `Origin`."""
        self._reply(b"".join((_ANSWERED, *parts)))

    def answer_frame(self, frame: bytes) -> None:
        """See `Origin`."""
        self._reply(_ANSWERED + frame)

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """See `Origin`; there is one request, and so one answer."""
        for frame in frames:
            self.answer_frame(frame)

    def settle(self) -> None:
        """See `Origin`."""
        self._reply(_SETTLED)

    def refuse(self, term: int) -> None:
        """See `Origin`."""
        self._reply(_REFUSED + term.to_bytes(8, "big"))


class Handling(Protocol):
    """`frontend.dispatch.Dispatcher`; its methods raise nothing but what they say."""

    def route(self, code: int) -> Route:
        """How a request code is handled."""

    def receive_forwarded(self, origin: Origin, frame: Frame, received: float, principal: Principal | None) -> None:
        """Handle a request that another node passed on, with what that knows of its client. Raises `FrameError`."""

    def run(self, request: Request) -> None:
        """Handle a request that waited here until this node became the leader."""

    def require_understood(self, code: int, leader: str) -> None:
        """Raise `SystemBusy` if the leader may be too old for a request of a feature that is not active yet."""


class Forwarder:
    """Both ends of the forwarding channel of one node."""

    def __init__(
        self, env: Environment, group: Group, limits: BrokerConfig, counters: BrokerCounters, handling: Handling
    ) -> None:
        self._env = env
        self._group = group
        self._limits = limits
        self._counters = counters
        self._handling = handling
        self._channel: RequestChannel | None = None
        self._waiting: list[Request] = []
        self._waiting_bytes = 0
        self._most_at_once = ALL_AT_ONCE
        self._sequence = 0
        self._timer: Cancellable | None = None
        self._closed = self._refuses = False
        self._refusals: OrderedDict[str, tuple[int, float]] = OrderedDict()
        group.resumers.append(self._try_waiting)

    def attach(self, channel: RequestChannel) -> None:
        """Use this channel to the other nodes."""
        self._channel = channel

    @property
    def waiting(self) -> int:
        """Requests that wait for a leader."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer everything that waits: it was not stored."""
        self._closed = True
        self._expire(len(self._waiting), "this node is stopping")
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self) -> None:
        """Take no request from another node any more: it keeps them until another one leads."""
        self._refuses = True

    # ---------------------------------------------------------------- the node that a client is connected to

    def pass_on(self, request: Request) -> None:
        """Hand a request to the leader, now or as soon as there is one. Nothing of it has been proposed."""
        origin = request.origin
        if origin.is_forwarded:
            self._counters.forward_refusals += 1
            origin.refuse(self._group.term)
            return
        try:
            request.decoded()
        except FrameError as error:  # it was read by the short way, which passes over what nobody can read
            self._fail(request, error)
            return
        if self._is_kept(request):
            leader = self._group.leader_address
            self._fail(
                request,
                self._group.not_leader(
                    f"{leader} leads the group, not this node"
                    if leader
                    else "this node does not lead the group and knows of no leader, as while most of its nodes are down"
                ),
            )
            return
        if request.sequence == 0:
            self._sequence += 1
            request.sequence = self._sequence
        leader = self._group.leader_id
        if (
            self._waiting
            or leader is None
            or origin.forward_refused
            or (origin.forwards_sent and origin.forward_target != leader)
            or not self._send(request, leader)
        ):
            self._hold(request)

    def _is_kept(self, request: Request) -> bool:
        if not self._handling.route(request.code).forwarded:
            return True
        if NO_FORWARD_FIELD.encode() not in request.header:
            return False
        return request.ext.get(NO_FORWARD_FIELD) in ("true", "TRUE", "1")

    def _send(self, request: Request, leader: str) -> bool:
        """Hand a request to the leader; False if it has to wait. One that no frame can carry is refused."""
        origin = request.origin
        if self._channel is None or leader == self._group.node_id:
            return False
        try:
            self._handling.require_understood(request.code, leader)
        except SystemBusy as error:
            self._fail(request, error)
            return True
        envelope = Envelope(
            origin.key,
            origin.address.ip,
            origin.address.port,
            tuple(origin.client_ids),
            max(0, int((self._env.now() - request.received) * 1000)),
            request.serialize_type,
            request.header,
            request.body,
            origin.forward_epoch,
            _vouched(request.principal),
        )
        data = _encode_envelope(envelope)
        if len(data) > MAX_DATA_BYTES:
            self._fail(
                request,
                MessageIllegal(
                    f"a request of {len(request.header) + len(request.body)} bytes is too large to be passed on to the "
                    "leader: send it there, or send less at once"
                ),
            )
            return True
        effect = self._handling.route(request.code).effect
        if not self._channel.submit(leader, data, partial(self._answered, request), effect.timeout_s(request)):
            return False
        self._counters.forwarded += 1
        origin.forwards += 1
        if effect.changes:
            origin.forwards_sent.add(request.sequence)
            origin.forward_target = leader
        return True

    def _answered(self, request: Request, answer: bytes | PeerError) -> None:
        origin = request.origin
        origin.forwards -= 1
        origin.forwards_sent.discard(request.sequence)
        kind = b"" if isinstance(answer, PeerError) else answer[:1]
        if kind == _REFUSED and not 0 < origin.forward_refused < request.sequence:
            origin.forward_refused = request.sequence
        if origin.forward_refused and max(origin.forwards_sent, default=0) < origin.forward_refused:
            origin.forward_refused = 0
            origin.forward_epoch += 1
        if isinstance(answer, PeerError):
            self._unanswered(request, answer)
        elif kind == _REFUSED:
            self._most_at_once = 1
            self._hold(request)
        else:
            if self._most_at_once < ALL_AT_ONCE:
                self._most_at_once = ALL_AT_ONCE
                self._env.call_soon(self._try_waiting)
            if kind == _ANSWERED:
                refusal = _refusal_in(answer[1:]) if request.unsure else None
                if refusal is None:
                    origin.answer((memoryview(answer)[1:],))
                else:
                    self._fail(request, refusal)
            else:
                origin.settle()

    def _unanswered(self, request: Request, error: PeerError) -> None:
        effect = self._handling.route(request.code).effect
        if effect.unanswered is not None:
            effect.unanswered(request)
        elif effect.again is not None and effect.again(request):
            request.unsure = True
            self._counters.forward_repeats += 1
            self._hold(request)
        elif effect.changes:
            self._fail(
                request, OutcomeUnknown(f"the leader did not answer, the request may have taken effect: {error}")
            )
        else:
            self._fail(request, self._group.not_leader(f"the leader did not answer: {error}"))

    def _hold(self, request: Request) -> None:
        size = len(request.header) + len(request.body)
        if self._closed:
            self._fail(request, self._group.not_leader("this node is stopping"))
        elif self._waiting_bytes + size > self._limits.max_forward_bytes:
            self._counters.max_forward_bytes += 1
            self._fail(
                request,
                SystemBusy(f"[OVERLOAD]{self._waiting_bytes} bytes of requests wait for a leader, try again later"),
            )
        else:
            self._counters.forward_held += 1
            self._waiting_bytes += size
            request.origin.forwards += 1
            insort(self._waiting, request, key=_sequence_of)
            if self._timer is None:
                self._timer = self._env.call_later(RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._try_waiting()
        if self._waiting:
            self._timer = self._env.call_later(RETRY_S, self._on_timer)

    def _try_waiting(self) -> None:
        """Hand on what can be handed on, in order; answer what has waited too long."""
        now, hold_s = self._env.now(), self._limits.forward_hold_ms / 1000
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        kept: list[Request] = []
        blocked: set[str] = set()
        left = ALL_AT_ONCE if self._group.ready else self._most_at_once
        for request in waiting:
            origin = request.origin
            origin.forwards -= 1
            if now - request.received >= hold_s:
                self._counters.forward_expired += 1
                self._fail(request, self._group.not_leader(f"no leader within {self._limits.forward_hold_ms} ms"))
            elif left and origin.key not in blocked and self._hand_on(request):
                left -= 1
            else:
                blocked.add(origin.key)
                origin.forwards += 1
                kept.append(request)
        if left < self._most_at_once < ALL_AT_ONCE:
            self._most_at_once *= 2
        for request in kept:
            self._waiting_bytes += len(request.header) + len(request.body)
            insort(self._waiting, request, key=_sequence_of)

    def _hand_on(self, request: Request) -> bool:
        """Handle a waiting request here or send it, unless it would pass an earlier one of its channel."""
        origin, leader = request.origin, self._group.leader_id
        if self._group.ready:
            if origin.forwards_sent:
                return False
            self._handling.run(request)
            return True
        if leader is None or origin.forward_refused or (origin.forwards_sent and origin.forward_target != leader):
            return False
        return self._send(request, leader)

    def _expire(self, count: int, why: str) -> None:
        expired, self._waiting = self._waiting[:count], self._waiting[count:]
        for request in expired:
            request.origin.forwards -= 1
            self._fail(request, self._group.not_leader(why))

    def _fail(self, request: Request, error: RemotingError) -> None:
        """Answer with an error; nothing that this node knows of has been stored."""
        if request.unsure or isinstance(error, OutcomeUnknown):
            self._counters.outcomes_unknown += 1
            if request.code in SENDS:
                self._counters.sends_failed += 1
        request.fail(error)

    # ---------------------------------------------------------------- the leader

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Handle a request that `sender` passed on: the handler of the channel."""
        try:
            envelope = _decode(data)
        except msgspec.MsgspecError as error:
            _logger.error("event=envelope_unreadable peer=%s error=%r", sender, str(error))
            raise
        origin = ForwardedOrigin(envelope, partial(self._reply, envelope, reply))
        refused = self._refusals.get(envelope.channel)
        if self._refuses or not self._group.ready or (refused is not None and envelope.epoch <= refused[0]):
            self._counters.forward_refusals += 1
            origin.refuse(self._group.term)
            return
        received = self._env.now() - envelope.age_ms / 1000
        try:
            frame = Frame(envelope.serialize_type, envelope.header, envelope.body)
            self._handling.receive_forwarded(origin, frame, received, envelope.principal)
        except FrameError as error:
            _logger.warning("event=header_unreadable peer=%s error=%r", sender, str(error))
            raise

    def _reply(self, envelope: Envelope, reply: Callable[[bytes], None], answer: bytes) -> None:
        if answer.startswith(_REFUSED):
            refusals, now = self._refusals, self._env.now()
            known = refusals.pop(envelope.channel, (envelope.epoch, now))
            refusals[envelope.channel] = (max(known[0], envelope.epoch), now)
            while now - next(iter(refusals.values()))[1] > REFUSALS_KEPT_S:
                refusals.popitem(last=False)
        reply(answer)


def _vouched(principal: Principal | None) -> Principal | None:
    """Whose request it is, if the leader cannot tell by itself; it looks at signatures anew, by its own rules."""
    return principal if principal is not None and (principal.by_address or principal.is_node) else None


def _encode_envelope(envelope: Envelope) -> bytes:
    """The envelope, as older nodes write it if it says nothing more."""
    fields = msgspec.structs.astuple(envelope)
    return _encode(fields if envelope.principal is not None else fields[:-1])


def _refusal_in(response: bytes) -> RemotingError | None:
    """The error in a response frame; None if it says that the request was handled."""
    decoder = FrameDecoder()
    decoder.receive_data(response)
    frame = decoder.next_frame()
    if frame is None:
        return None
    command = decode_command(frame)
    if command.code == ResponseCode.SUCCESS:
        return None
    return error_from_response(command.code, command.remark, command.ext)


def _sequence_of(request: Request) -> int:
    return request.sequence
