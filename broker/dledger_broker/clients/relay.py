"""Relay: what the broker asks of a client, through whichever node of the group the client is connected to.

The leader knows from gossip which nodes a client heartbeats to. It asks over its own connection, or has another node
ask over its; a node that has not got the client passes nothing on.

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
from dledger.net.errors import PeerError, PeerTimeoutError
from dledger.net.requests import RequestChannel
from dledger.types import ReplicaId
from dledger_broker.clients.tables import ClientChannel, LocalClients, MergedClients
from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand

RELAY_CHANNEL: Final = 3
HOP_S: Final = 1.0
"""Another node has so much longer than the client to answer."""

_logger = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What the client answered."""

    code: int
    remark: str
    ext: Mapping[str, str]
    body: bytes


class Delivered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The client's connection has taken a request that is not answered; whether it arrives is not known."""


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """No node has the client; if it `may_have_got` the request, it went before it answered."""

    may_have_got: bool = False


class TimedOut(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The client did not answer in time: many understand no requests."""


class Busy(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """As many requests to clients as `max_relayed_calls` allows wait for an answer: this one was not sent."""


Outcome: TypeAlias = Answer | Delivered | Gone | TimedOut | Busy
Told: TypeAlias = Callable[[Outcome], None]


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
    """One node's part in it. Every `done` is called exactly once, later and on the event loop."""

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
        self._node_id = node_id
        self._local = local
        self._merged = merged
        self._limits = limits
        self._counters = counters
        self._channel: RequestChannel | None = None
        self._asked: dict[str, dict[int, _Waiting]] = {}
        """Requests that wait for an answer of a client of this node, by connection and number."""
        self._waiting = 0
        self._turn = 0

    @property
    def waiting(self) -> int:
        """Requests to clients without an answer that this node has made or passed on."""
        return self._waiting

    def attach(self, channel: RequestChannel) -> None:
        """Use this channel to the other nodes."""
        self._channel = channel

    def call(
        self, client_id: str, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: Told
    ) -> None:
        """Ask a client, and wait `timeout_s` for its answer; 0 if the request has none."""
        places = [(node_id, client_id) for node_id in self._merged.nodes_of(client_id)]
        self._begin(places, code, ext, body, timeout_s, done)

    def call_producer(
        self, group: str, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: Told
    ) -> None:
        """As `call`, of any client of a producer group: of another one each time, if there are several."""
        places = sorted(self._merged.producers(group))
        if places:
            self._turn += 1
            first = self._turn % len(places)
            places = places[first:] + places[:first]
        self._begin(places, code, ext, body, timeout_s, done)

    def take_answer(self, channel: str, command: RemotingCommand) -> None:
        """A client has answered over a connection; an answer that nobody waits for means nothing."""
        waiting = self._asked.get(channel, {}).get(command.opaque)
        if waiting is not None:
            answer = Answer(command.code, command.remark or "", dict(command.ext), bytes(command.body))
            self._settle(channel, command.opaque, answer)

    def channel_lost(self, channel: ClientChannel) -> None:
        """A connection has closed: who is connected over it answers nothing more."""
        for opaque in list(self._asked.get(channel.key, ())):
            self._settle(channel.key, opaque, Gone(may_have_got=True))

    def close(self) -> None:
        """The node stops: nobody waits any longer."""
        for channel, numbers in list(self._asked.items()):
            for opaque in list(numbers):
                self._settle(channel, opaque, Gone(may_have_got=True))

    # ---------------------------------------------------------------- the node that asks

    def _begin(
        self, places: Iterable[_Place], code: int, ext: Mapping[str, str], body: bytes, timeout_s: float, done: Told
    ) -> None:
        if self._is_full():
            self._env.call_soon(partial(done, Busy()))
            return
        self._waiting += 1

        def settled(outcome: Outcome) -> None:
            self._waiting -= 1
            done(outcome)

        call = _Call("", code, ext, body, round(timeout_s * 1000))
        self._env.call_soon(partial(self._try, deque(places), call, settled))

    def _is_full(self) -> bool:
        if self._waiting < self._limits.max_relayed_calls:
            return False
        self._counters.max_relayed_calls += 1
        return True

    def _try(self, places: deque[_Place], call: _Call, done: Told) -> None:
        """Ask at the first of the places that is reached."""
        while places:
            node_id, client_id = places.popleft()
            there = msgspec.structs.replace(call, client_id=client_id)

            def settled(outcome: Outcome) -> None:
                if isinstance(outcome, Gone) and not outcome.may_have_got:
                    self._try(places, call, done)
                else:
                    done(outcome)

            try:
                is_asked = self._ask_at(node_id, there, settled)
            except Exception:
                # What cannot be encoded would count as waiting for ever, and be answered never.
                _logger.exception("event=relay_failed code=%d client=%r", call.code, client_id)
                break
            if is_asked:
                return
        done(Gone())

    def _ask_at(self, node_id: str, call: _Call, done: Told) -> bool:
        if node_id == self._node_id:
            return self._ask(call, done)
        return self._channel is not None and self._channel.submit(
            node_id, _encode(call), partial(_answered, done), call.timeout_ms / 1000 + HOP_S
        )

    # ---------------------------------------------------------------- the node that the client is connected to

    def on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Ask a client of this node for another one: the handler of the channel."""
        _ = sender
        call = _decode_call(data)
        if self._is_full():
            reply(_encode(Busy()))
            return
        self._waiting += 1

        def settled(outcome: Outcome) -> None:
            self._waiting -= 1
            reply(_encode(outcome))

        try:
            is_asked = self._ask(call, settled)
        except Exception:
            _logger.exception("event=relay_failed code=%d client=%r", call.code, call.client_id)
            is_asked = False
        if not is_asked:
            settled(Gone())

    def _ask(self, call: _Call, done: Told) -> bool:
        """Ask over a connection of this node; False, and nothing was sent, if the client has none."""
        channel = self._local.channel_of(call.client_id)
        if channel is None or not self._may_hear(channel, call):
            return False
        opaque = channel.push(call.code, dict(call.ext), call.body, oneway=call.timeout_ms == 0)
        if call.timeout_ms == 0:
            self._env.call_soon(partial(done, Delivered()))
            return True
        late = partial(self._settle, channel.key, opaque, TimedOut())
        timer = self._env.call_later(call.timeout_ms / 1000, late)
        self._asked.setdefault(channel.key, {})[opaque] = _Waiting(done, timer)
        return True

    def _may_hear(self, channel: ClientChannel, call: _Call) -> bool:
        """Whether a client may be asked: a check of a transaction has the message, and goes to any client that says it
        is of the producer group.
        """
        if call.code != RequestCode.CHECK_TRANSACTION_STATE:
            return True
        demand = Demand((Action.PUB,), ResourceKind.TOPIC, call.ext.get("topic", ""))
        return self._access.may(self._local.account_of(call.client_id) or "", channel.address.ip, demand)

    def _settle(self, channel: str, opaque: int, outcome: Outcome) -> None:
        numbers = self._asked[channel]
        waiting = numbers.pop(opaque)
        if not numbers:
            del self._asked[channel]
        waiting.timer.cancel()
        waiting.done(outcome)


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    done: Told
    timer: Cancellable


def _answered(done: Told, answer: bytes | PeerError) -> None:
    """What another node says; one that fails or goes may have passed the request on."""
    if isinstance(answer, PeerTimeoutError):
        done(TimedOut())
    elif isinstance(answer, PeerError):
        done(Gone(may_have_got=True))
    else:
        done(_decode_outcome(answer))
