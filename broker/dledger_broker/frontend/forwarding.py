"""Forwarding of requests that need the leader, from a node that does not lead.

Requests are forwarded to the leader in an envelope, in order per client channel, over one hop. They wait here while the
group has no leader, or while the last leader refuses before proposing. They wait at most `forward_hold_ms` after they
were received; then the answer is 14 with `leaderAddr` and `term`. A request that was sent and not answered is never
sent again. If it could have taken effect, it is answered 1 with `outcome=unknown`. There is one exception: a request
that may be handled twice (`Effect.again`) waits for the next leader. If that leader does not take it, its outcome is
unknown as well.

A leader that refuses one request refuses all, because it does not lead any more, or not yet. After a refusal,
therefore, only one waiting request is tried. Until the leader answers, each further try has twice as many requests.
The first answer lifts this limit.

A refusal must not let later requests of its channel through. The refusing node may be ready a moment later. It would
then handle the later requests before the refused request is sent again. A node that has refused a request therefore
refuses all requests of its channel up to the same epoch. The channel's node begins the next epoch once it has the
results of everything that it sent behind the refused request.

    envelope   MessagePack array: client channel, its address and port, its client ids, age in ms, serialize type,
               header, body, epoch of the channel; and the principal, if the client's address gives the account or
               a node makes the request by itself
    answer     1 byte: 0 answered (a response frame follows), 1 refused before proposing (term as 8 bytes), 2 settled
               (a oneway request is done)
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from dledger.environment import Cancellable, Environment
from dledger.net.requests import MAX_DATA_BYTES, RequestChannel
from dledger.net.transport import PeerError
from dledger.types import ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.features.offsets.recent_commits import MAX_COMMIT_HOLD_S
from dledger_broker.frontend.alias_port import SENDS
from dledger_broker.frontend.connection import pack_born_host
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Buffer, Origin, Principal, Request, WaitsCounted
from dledger_broker.kernel.routes import Route
from dledger_remoting.codes import RequestCode, ResponseCode
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
"""Ext field of this project's client, which wants to learn the leader instead of having its request forwarded."""

RETRY_S: Final = 0.02
"""Interval in seconds at which waiting requests are tried again while nothing changes."""
COMMITTING: Final = frozenset(
    (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
)
"""Codes of requests that may commit an offset."""
ALL_AT_ONCE: Final = 1 << 30
"""Number of requests that are tried at once without a bound: more than can wait."""
REFUSALS_KEPT_S: Final = 60.0
"""Time in seconds for which the last refusal of a channel is remembered. A request sent behind it takes less time."""

_ANSWERED, _REFUSED, _SETTLED = b"\x00", b"\x01", b"\x02"


class SentPrincipal(NamedTuple):
    """Principal in an envelope, with the fields of `Principal` that older nodes know."""

    name: str
    version: int = 0
    by_address: bool = False
    is_node: bool = False


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
    principal: SentPrincipal | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Envelope).decode


class ForwardedOrigin(WaitsCounted):
    """The `Origin` of a request that another node has forwarded."""

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
        "is_trusted",
        "key",
    )

    is_forwarded: Final = True
    is_open: Final = True

    def __init__(self, envelope: Envelope, reply: Callable[[bytes], None]) -> None:
        self.address = HostAddress(envelope.ip, envelope.port)
        self.born_host = pack_born_host(self.address)
        self.key = envelope.channel
        self.client_ids = set(envelope.client_ids)
        self.is_trusted = False
        self.held = self.in_flight = self.forwards = self.forward_epoch = self.forward_refused = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self._reply = reply

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Send one response frame, given in parts, to the forwarding node."""
        self._reply(b"".join((_ANSWERED, *parts)))

    def answer_frame(self, frame: bytes) -> None:
        """Send one response frame to the forwarding node."""
        self._reply(_ANSWERED + frame)

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Send the only response frame, because there is only one request."""
        for frame in frames:
            self.answer_frame(frame)

    def settle(self) -> None:
        """Report to the forwarding node that the request is settled without an answer."""
        self._reply(_SETTLED)

    def refuse(self, term: int) -> None:
        """Report to the forwarding node that this node does not lead and has proposed nothing."""
        self._reply(_REFUSED + term.to_bytes(8, "big"))


class Handling(Protocol):
    """The dispatcher, `frontend.dispatch.Dispatcher`. Its methods raise only the errors that they name."""

    def route(self, code: int) -> Route:
        """Return how a request code is handled."""

    def receive_forwarded(self, origin: Origin, frame: Frame, received: float, principal: Principal | None) -> None:
        """Handle a request that another node forwarded, with the principal that that node found. Raises
        `FrameError`.
        """

    def run(self, request: Request) -> None:
        """Handle a request that waited here until this node became the leader."""

    def require_understood(self, code: int, leader: str) -> None:
        """Raise `SystemBusy` if the leader may be too old for a request of a feature that is not active yet."""


class Forwarder(EventListener):
    """Both ends of the forwarding channel of one node."""

    def __init__(
        self,
        env: Environment,
        group: LeadershipView,
        limits: BrokerConfig,
        counters: BrokerCounters,
        handling: Handling,
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

    def attach(self, channel: RequestChannel) -> None:
        """Use this channel to the other nodes."""
        self._channel = channel

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a leader."""
        return len(self._waiting)

    def close(self) -> None:
        """Answer all waiting requests: they were not stored."""
        self._closed = True
        self._expire(len(self._waiting), "this node is stopping")
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self) -> None:
        """Take no more requests from other nodes. Those nodes keep them until another node leads."""
        self._refuses = True

    # ---------------------------------------------------------------- the node that a client is connected to

    def pass_on(self, request: Request) -> None:
        """Forward a request to the leader, now or as soon as a leader is known. Nothing of it has been proposed."""
        origin = request.origin
        if origin.is_forwarded:
            self._counters.forward_refusals += 1
            origin.refuse(self._group.term)
            return
        try:
            request.decoded()
        except FrameError as error:  # the short way of decoding skipped an unreadable field
            self._fail(request, error)
            return
        if self._is_not_forwarded(request):
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

    def _is_not_forwarded(self, request: Request) -> bool:
        """Return whether a request is answered with the leader's address instead, by its code or by `noForward`."""
        if not self._handling.route(request.code).forwarded:
            return True
        if NO_FORWARD_FIELD.encode() not in request.header:
            return False
        return request.ext.get(NO_FORWARD_FIELD) in ("true", "TRUE", "1")

    def _send(self, request: Request, leader: str) -> bool:
        """Send a request to the leader. Return False if it has to wait. A request that no frame can carry is
        refused.
        """
        origin = request.origin
        if self._channel is None or leader == self._group.node_id:
            return False
        try:
            self._handling.require_understood(request.code, leader)
        except SystemBusy as error:
            self._fail(request, error)
            return True
        effect = self._handling.route(request.code).effect
        if effect.held_s is not None and not origin.is_open:
            origin.settle()  # the client is gone, and messages that the leader takes for it would be lost
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
            _principal_to_send(request.principal),
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
                self._env.call_soon(self.resume_waiting)
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
        self.resume_waiting()
        if self._waiting:
            self._timer = self._env.call_later(RETRY_S, self._on_timer)

    def _hold_s(self, code: int) -> float:
        hold_s = self._limits.forward_hold_ms / 1000
        return min(hold_s, MAX_COMMIT_HOLD_S) if code in COMMITTING else hold_s

    def resume_waiting(self) -> None:
        """Forward the waiting requests that can go, in order. Answer requests that have waited too long."""
        now = self._env.now()
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        still_waiting: list[Request] = []
        blocked: set[str] = set()
        remaining = ALL_AT_ONCE if self._group.ready else self._most_at_once
        for request in waiting:
            origin = request.origin
            origin.forwards -= 1
            if now - request.received >= (hold_s := self._hold_s(request.code)):
                self._counters.forward_expired += 1
                self._fail(request, self._group.not_leader(f"no leader within {hold_s * 1000:.0f} ms"))
            elif remaining and origin.key not in blocked and self._hand_on(request):
                remaining -= 1
            else:
                blocked.add(origin.key)
                origin.forwards += 1
                still_waiting.append(request)
        if remaining < self._most_at_once < ALL_AT_ONCE:
            self._most_at_once *= 2
        for request in still_waiting:
            self._waiting_bytes += len(request.header) + len(request.body)
            insort(self._waiting, request, key=_sequence_of)

    def _hand_on(self, request: Request) -> bool:
        """Handle a waiting request here or send it, unless it would pass an earlier request of its channel."""
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
        """Answer with an error. As far as this node knows, nothing has been stored."""
        if request.unsure or isinstance(error, OutcomeUnknown):
            self._counters.outcomes_unknown += 1
            if request.code in SENDS:
                self._counters.sends_failed += 1
        request.fail(error)

    # ---------------------------------------------------------------- the leader

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Handle a request that `sender` forwarded. This is the handler of the channel."""
        _ = sender
        envelope = _decode(data)
        origin = ForwardedOrigin(envelope, partial(self._reply, envelope, reply))
        refused = self._refusals.get(envelope.channel)
        if self._refuses or not self._group.ready or (refused is not None and envelope.epoch <= refused[0]):
            self._counters.forward_refusals += 1
            origin.refuse(self._group.term)
            return
        received = self._env.now() - envelope.age_ms / 1000
        frame = Frame(envelope.serialize_type, envelope.header, envelope.body)
        principal = None if envelope.principal is None else Principal(*envelope.principal)
        self._handling.receive_forwarded(origin, frame, received, principal)

    def _reply(self, envelope: Envelope, reply: Callable[[bytes], None], answer: bytes) -> None:
        if answer.startswith(_REFUSED):
            refusals, now = self._refusals, self._env.now()
            last_refusal = refusals.pop(envelope.channel, (envelope.epoch, now))
            refusals[envelope.channel] = (max(last_refusal[0], envelope.epoch), now)
            while now - next(iter(refusals.values()))[1] > REFUSALS_KEPT_S:
                refusals.popitem(last=False)
        reply(answer)


def _principal_to_send(principal: Principal | None) -> SentPrincipal | None:
    """Return the principal of a request if the leader cannot find it by itself. The leader checks signatures by its own
    rules, also those of a proxy.
    """
    if principal is None or principal.speaker or not (principal.by_address or principal.is_node):
        return None
    return SentPrincipal(*principal[:4])


def _encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope. Without a principal it is encoded as older nodes do."""
    fields = msgspec.structs.astuple(envelope)
    return _encode(fields if envelope.principal is not None else fields[:-1])


def _refusal_in(response: bytes) -> RemotingError | None:
    """Return the error in a response frame, None if the request was handled."""
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
