"""Relay: requests from the broker to a client, through whichever node of the group the client is connected to.

The leader knows from gossip which nodes a client heartbeats to. It asks over its own connection, or has another node
ask. A node without a connection to the client does not pass the request on.

    request   MessagePack array: client id, request code, ext fields, body, ms to wait for the client's answer (0: the
              client gives none)
    outcome   MessagePack array with a tag: 1 `Answer`, 2 `Delivered`, 3 `Gone`, 4 `TimedOut`, 5 `Busy`

A request that a client may have got is not sent again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

import msgspec

from dledger.environment import Cancellable, Environment
from dledger.net.requests import RequestChannel
from dledger.net.transport import PeerError, PeerTimeoutError
from dledger.types import ReplicaId
from dledger_base.telling import Telling
from dledger_broker.clients.tables import ClientChannel, LocalClients, MergedClients
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand

RELAY_CHANNEL: Final = 3
HOP_S: Final = 1.0
"""Additional time in seconds that another node has for its answer, beyond the client's time."""

_logger = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The client's answer."""

    code: int
    remark: str
    ext: Mapping[str, str]
    body: bytes


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The client's connection has taken a oneway request. Its arrival is not confirmed."""


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """No node has the client. If it `may_have_got` the request, its connection was lost before it answered."""

    may_have_got: bool = False


class TimedOut(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The client did not answer in time. Many clients understand no requests of the broker."""


class Busy(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The request was not sent: `max_relayed_calls` requests to clients already wait for answers."""


Outcome: TypeAlias = Answer | Delivered | Gone | TimedOut | Busy
OutcomeCallback: TypeAlias = Callable[[Outcome], None]


class _Call(msgspec.Struct, frozen=True, array_like=True):
    client_id: str
    code: int
    ext: Mapping[str, str]
    body: bytes
    timeout_ms: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_call: Final = msgspec.msgpack.Decoder(_Call).decode
_decode_outcome: Final = msgspec.msgpack.Decoder(Outcome).decode

_Place: TypeAlias = tuple[str, str]
"""A node, and a client that is connected to it."""


class Relay:
    """One node's part in the relay. Every `done` is called exactly once, later and on the event loop."""

    def __init__(
        self,
        env: Environment,
        node_id: str,
        local: LocalClients,
        merged: MergedClients,
        limits: BrokerConfig,
        counters: BrokerCounters,
        access: Access,
    ) -> None:
        self._access = access
        self._env = env
        self._telling = Telling(env.now)
        self._node_id = node_id
        self._local = local
        self._merged = merged
        self._limits = limits
        self._counters = counters
        self._channel: RequestChannel | None = None
        self._pending_calls: dict[str, dict[int, _Waiting]] = {}
        """Requests that wait for an answer of a client of this node, by connection and request number."""
        self._waiting = 0
        self._producer_turn = 0

    @property
    def waiting(self) -> int:
        """Number of unanswered requests to clients that this node has made or passed on."""
        return self._waiting

    def attach(self, channel: RequestChannel) -> None:
        """Use this channel to the other nodes."""
        self._channel = channel

    def call(
        self, client_id: str, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: OutcomeCallback
    ) -> None:
        """Ask a client, and wait `timeout_s` for its answer. A `timeout_s` of 0 makes the request oneway."""
        places = [(node_id, client_id) for node_id in self._merged.nodes_of(client_id)]
        self._start_call(places, code, ext, body, timeout_s, done)

    def call_producer(
        self, group: str, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: OutcomeCallback
    ) -> None:
        """Ask one client of a producer group, as `call` does. Each call begins with another client, if there are
        several.
        """
        places = sorted(self._merged.producers(group))
        if places:
            self._producer_turn += 1
            first = self._producer_turn % len(places)
            places = places[first:] + places[:first]
        self._start_call(places, code, ext, body, timeout_s, done)

    def take_answer(self, channel: str, command: RemotingCommand) -> None:
        """Handle an answer from a connection. An answer that nobody waits for is ignored."""
        waiting = self._pending_calls.get(channel, {}).get(command.opaque)
        if waiting is not None:
            answer = Answer(command.code, command.remark or "", dict(command.ext), bytes(command.body))
            self._settle(channel, command.opaque, answer)

    def channel_lost(self, channel: ClientChannel) -> None:
        """End the requests that wait for answers over a closed connection, as `Gone`."""
        for opaque in list(self._pending_calls.get(channel.key, ())):
            self._settle(channel.key, opaque, Gone(may_have_got=True))

    def close(self) -> None:
        """End all waiting requests, because the node stops."""
        for channel, calls in list(self._pending_calls.items()):
            for opaque in list(calls):
                self._settle(channel, opaque, Gone(may_have_got=True))

    # ---------------------------------------------------------------- the node that sends the request

    def _start_call(
        self,
        places: Iterable[_Place],
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        done: OutcomeCallback,
    ) -> None:
        if self._is_full():
            self._env.call_soon(partial(done, Busy()))
            return
        self._waiting += 1

        def on_settled(outcome: Outcome) -> None:
            self._waiting -= 1
            done(outcome)

        call = _Call("", code, ext, body, round(timeout_s * 1000))
        self._env.call_soon(partial(self._try_places, deque(places), call, on_settled))

    def _is_full(self) -> bool:
        if self._waiting < self._limits.max_relayed_calls:
            return False
        self._counters.max_relayed_calls += 1
        return True

    def _try_places(self, places: deque[_Place], call: _Call, done: OutcomeCallback) -> None:
        """Ask the client at the first place that can be reached."""
        while places:
            node_id, client_id = places.popleft()
            place_call = msgspec.structs.replace(call, client_id=client_id)

            def on_settled(outcome: Outcome) -> None:
                if isinstance(outcome, Gone) and not outcome.may_have_got:
                    self._try_places(places, call, done)
                else:
                    done(outcome)

            try:
                is_sent = self._send_to_node(node_id, place_call, on_settled)
            except Exception as error:
                # For example, the call cannot be encoded. Without an outcome it would count as waiting for ever.
                self._log_failure(place_call, error)
                break
            if is_sent:
                return
        done(Gone())

    def _log_failure(self, call: _Call, error: Exception) -> None:
        kind, line = f"{call.code} {type(error).__name__}", "event=relay_failed code=%d client=%r"
        self._telling.log(_logger, logging.ERROR, call.client_id, kind, line, call.code, call.client_id, exc_info=error)

    def _send_to_node(self, node_id: str, call: _Call, done: OutcomeCallback) -> bool:
        if node_id == self._node_id:
            return self._send_to_client(call, done)
        return self._channel is not None and self._channel.submit(
            node_id, _encode(call), partial(_on_node_answer, done), call.timeout_ms / 1000 + HOP_S
        )

    # ---------------------------------------------------------------- the node that the client is connected to

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Ask a client of this node on behalf of another node. This is the handler of the request channel."""
        _ = sender
        call = _decode_call(data)
        if self._is_full():
            reply(_encode(Busy()))
            return
        self._waiting += 1

        def on_settled(outcome: Outcome) -> None:
            self._waiting -= 1
            reply(_encode(outcome))

        try:
            is_sent = self._send_to_client(call, on_settled)
        except Exception as error:
            self._log_failure(call, error)
            is_sent = False
        if not is_sent:
            on_settled(Gone())

    def _send_to_client(self, call: _Call, done: OutcomeCallback) -> bool:
        """Ask over a connection of this node. Return False, with nothing sent, if the client has no connection here or
        may not get the request.
        """
        channel = self._local.channel_of(call.client_id)
        if channel is None or not self._may_receive(channel, call):
            return False
        opaque = channel.push(call.code, dict(call.ext), call.body, oneway=call.timeout_ms == 0)
        if call.timeout_ms == 0:
            self._env.call_soon(partial(done, Delivered()))
            return True
        expire = partial(self._settle, channel.key, opaque, TimedOut())
        timer = self._env.call_later(call.timeout_ms / 1000, expire)
        self._pending_calls.setdefault(channel.key, {})[opaque] = _Waiting(done, timer)
        return True

    def _may_receive(self, channel: ClientChannel, call: _Call) -> bool:
        """Return whether a client may get the request. The check of a transaction contains the message.

        It goes to any client that claims to be in the producer group, so the client's account needs the right to send
        to the topic.
        """
        if call.code != RequestCode.CHECK_TRANSACTION_STATE:
            return True
        demand = Demand((Action.PUB,), ResourceKind.TOPIC, call.ext.get("topic", ""))
        return self._access.may(self._local.principal_of(call.client_id), channel.address.ip, demand)

    def _settle(self, channel: str, opaque: int, outcome: Outcome) -> None:
        calls = self._pending_calls[channel]
        waiting = calls.pop(opaque)
        if not calls:
            del self._pending_calls[channel]
        waiting.timer.cancel()
        waiting.done(outcome)


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    done: OutcomeCallback
    timer: Cancellable


def _on_node_answer(done: OutcomeCallback, answer: bytes | PeerError) -> None:
    """Hand on another node's outcome. If that node fails or is lost, it may have passed the request on."""
    if isinstance(answer, PeerTimeoutError):
        done(TimedOut())
    elif isinstance(answer, PeerError):
        done(Gone(may_have_got=True))
    else:
        done(_decode_outcome(answer))
