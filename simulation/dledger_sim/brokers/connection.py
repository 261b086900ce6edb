"""A client's connection to a simulated node: an `Origin` without a socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Final, NamedTuple, Protocol, cast

from dledger_broker.frontend.connection import pack_born_host
from dledger_broker.kernel.requests import Buffer, WaitsCounted
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameBounds, FrameDecoder, split_frames
from dledger_remoting.hosts import HostAddress
from dledger_remoting.signatures import Credentials, signed
from dledger_sim.brokers.watched import WatchedMachine
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.invariants import require
from dledger_sim.log.scheduler import Scheduler, Timer

BROKER_GROUP: Final = "broker-a"
"""The one that all simulated nodes belong to."""
FASTEST_S: Final = 0.0001
SPREAD_S: Final = 0.001
FIRST_PUSHED: Final = 1_000_000_000
TURN_S: Final = 0.002
"""A frame travels for `FASTEST_S` and up to `SPREAD_S` more."""


class Seen(NamedTuple):
    """What whoever answered may have known."""

    asked_at: float
    """Simulated seconds."""
    first_index: int
    """The last entry that the node had applied when it was asked."""
    last_index: int
    """And when it answered."""
    passed_on: bool
    """The node has asked another one."""
    steady: bool = False
    """The node has led, without a break, since the frame before this one came over the connection, and that one waited
    for none that it had passed on: what waits so is given up after a while, and a oneway request without a word."""


class Answer(NamedTuple):
    """What a node said."""

    code: int
    ext: dict[str, str]
    body: bytes
    remark: str
    seen: Seen | None = None


Pushed = Callable[[RemotingCommand], None]
"""Told what a node asks of its client."""
Done = Callable[[Answer | None], None]
"""Told once: the answer, or None if there was none in time."""


class Server(Protocol):
    """What answers on a node, as far as a connection knows it."""

    machine: WatchedMachine
    reign: int
    """A number of its own for each time that this node leads and is ready without a break; 0 while it is not."""
    is_deaf: bool
    """It reads nothing more of what comes over its connections."""

    def on_frames(self, origin: SimConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Requests came over a connection."""

    def on_closed(self, origin: SimConnection) -> None:
        """A client has closed its connection."""


_POLLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE})
"""What waits for messages is not answered over a connection that is gone."""


class SimConnection(WaitsCounted):
    """One connection of a client to one life of a node; frames keep their order in each direction."""

    is_forwarded: Final = False

    def __init__(self, group: SimGroup, life: Life, random: Random, address: HostAddress, number: int) -> None:
        self._scheduler: Scheduler = group.scheduler
        self._group = group
        self._life = life
        self._random = random
        self._pending: dict[int, Done] = {}
        self._asked: dict[int, tuple[float, int, int]] = {}
        """When the requests without an answer were sent, what the node had applied when they came, and its reign when
        the frame before came, if that has gone on until then."""
        self._unanswered: dict[int, int] = {}
        """The codes of requests that have come and were not answered yet, by their numbers."""
        self._reign = 0
        """When the last frame came (see `Server.reign`), 0 if that had to wait for requests that were passed on."""
        self.passed_on: set[int] = set()
        """Requests that the node has passed on, by their numbers."""
        self._opaques = count(1)
        self._there_at = self._back_at = 0.0
        self._decoder = FrameDecoder()
        self.address = address
        self.born_host = pack_born_host(address)
        self.key = f"{life.node.name}/{life.node.lives}/{number}"
        self.in_flight = self.held = self.forwards = self.forward_refused = self.forward_epoch = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self.client_ids: set[str] = set()
        self.serialize_type = 0
        self.wants_leader_notices = False
        self.alias: int | None = None
        self.on_push: Pushed | None = None
        """The client's: it is told what the node asks of it, unless it understands no requests."""
        self.credentials: Credentials | None = None
        """The account that the client signs for."""
        self._numbers = count(FIRST_PUSHED)
        self._open = True
        life.on_killed.append(self._lost)

    @property
    def is_open(self) -> bool:
        """See `Origin`."""
        return self._open

    @property
    def is_usable(self) -> bool:
        """The node still lives the life that this connection belongs to."""
        return self._open and self._life.node.life is self._life

    def close(self) -> None:
        """The client is done with it: what is under way is never answered, and the node hears of it behind that."""
        if self._open and self._life.node.name not in self._group.unreachable:
            self._life.environment.call_at(self._reached(FASTEST_S), lambda: self._broker.on_closed(self))
        self._open = False
        self._pending.clear()

    # ---------------------------------------------------------------- the client's side

    def call(self, command: RemotingCommand, timeout_s: float, done: Done) -> None:
        """Send a request; `done` is told the answer.  Of a oneway request it is told None at once."""
        opaque = command.opaque = next(self._opaques)
        if self.credentials is not None:
            command.ext = signed(command.ext, bytes(command.body), self.credentials)
        frame = encode_command(command)
        if command.flag & FLAG_ONEWAY:
            self._scheduler.after(0.0, lambda: done(None))
        else:
            timer = self._scheduler.after(timeout_s, lambda: self._settle(opaque, None))
            self._pending[opaque] = _cancelling(timer, done)
        if self._life.node.name in self._group.unreachable:
            return
        asked_at, there_at = self._scheduler.now, self._reached(self._delay())
        code = None if command.flag & FLAG_ONEWAY else command.code
        self._life.environment.call_at(there_at, lambda: self._arrive(frame, opaque, code, asked_at))

    def respond(self, command: RemotingCommand) -> None:
        """Tell the node that what it has pushed was taken."""
        frame = encode_command(make_response(command, ResponseCode.SUCCESS))
        if self._open and self._life.node.name not in self._group.unreachable:
            there_at = self._reached(self._delay())
            self._life.environment.call_at(there_at, lambda: self._responded(frame))

    def _responded(self, frame: bytes) -> None:
        if not self._broker.is_deaf:
            self._broker.on_frames(self, frame, split_frames(frame, len(frame))[0])

    def _reached(self, delay_s: float) -> float:
        """When the node reads what is sent now."""
        self._there_at = max(self._there_at, self._turn_after(self._scheduler.now + delay_s))
        return self._there_at

    @staticmethod
    def _turn_after(moment: float) -> float:
        """A node reads what has come from all its clients once a turn of its event loop."""
        return (moment // TURN_S + 1) * TURN_S

    def _delay(self) -> float:
        return FASTEST_S + self._random.random() * SPREAD_S

    def _settle(self, opaque: int, answer: Answer | None) -> None:
        done = self._pending.pop(opaque, None)
        if done is not None:
            done(answer)

    def _lost(self) -> None:
        """The process died: its machine says so, some time later."""
        pending, self._pending = self._pending, {}
        self._open = False
        for done in pending.values():
            self._scheduler.after(self._delay(), lambda done=done: done(None))  # type: ignore[misc]

    # ---------------------------------------------------------------- the node's side, see `Origin`, `ClientChannel`

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """See `ClientChannel`."""
        command = RemotingCommand(
            code,
            opaque=next(self._numbers),
            flag=FLAG_ONEWAY if oneway else 0,
            ext=ext,
            body=body,
            serialize_type=self.serialize_type,
        )
        frame = encode_command(command)
        self._scheduler.at(self._heard(), lambda: self._pushed(frame))
        return command.opaque

    def _heard(self) -> float:
        """When the client reads what the node sends now."""
        self._back_at = max(self._back_at, self._scheduler.now + self._delay())
        return self._back_at

    def _pushed(self, frame: bytes) -> None:
        if self._open and self.on_push is not None and self._life.node.name not in self._group.unreachable:
            decoder = FrameDecoder()
            decoder.receive_data(frame)
            received = decoder.next_frame()
            assert received is not None
            self.on_push(decode_command(received))

    @property
    def _broker(self) -> Server:
        return cast(Server, self._life.service)

    def _arrive(self, frame: bytes, opaque: int, code: int | None, asked_at: float) -> None:
        if self._broker.is_deaf:
            return
        frames, _ = split_frames(frame, len(frame))
        if code is not None:
            self._unanswered[opaque] = code
        before, self._reign = self._reign, 0 if self.forwards else self._broker.reign
        self._asked[opaque] = asked_at, self._broker.machine.index, before if before == self._reign else 0
        self._broker.on_frames(self, frame, frames)

    @property
    def unanswered(self) -> list[int]:
        """The codes of requests that the node owes an answer: not of pulls that waited, once their client has gone."""
        return [code for code in self._unanswered.values() if self._open or code not in _POLLS]

    def answer(self, parts: Sequence[Buffer]) -> None:
        """See `Origin`."""
        self.answer_frame(b"".join(parts))

    def answer_frame(self, frame: bytes) -> None:
        """See `Origin`."""
        self._settled()
        back_at = self._heard()
        self._decoder.receive_data(frame)
        received = self._decoder.next_frame()
        assert received is not None
        command = decode_command(received)
        del self._unanswered[command.opaque]
        answer = Answer(command.code, command.ext, bytes(command.body), command.remark or "")
        index, reign = self._broker.machine.index, self._broker.reign
        self._scheduler.at(back_at, lambda: self._answered(command.opaque, answer, index, reign))

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """See `Origin`."""
        for frame in frames:
            self.answer_frame(frame)

    def settle(self) -> None:
        """See `Origin`."""
        self._settled()

    def _settled(self) -> None:
        self.in_flight -= 1
        require(self.in_flight >= 0, "a request is settled once", node=self._life.node.name)

    def refuse(self, term: int) -> None:
        """See `Origin`: never called, for only forwarded requests are refused."""

    def break_off(self, error: FrameError) -> None:
        """See `Channel`: simulated clients write what can be read."""
        raise error

    def _answered(self, opaque: int, answer: Answer, index: int, reign: int) -> None:
        if not self._open or self._life.node.name in self._group.unreachable:
            return
        asked_at, first_index, before = self._asked.pop(opaque)
        seen = Seen(asked_at, first_index, index, opaque in self.passed_on, steady=before == reign > 0)
        self._settle(opaque, answer._replace(seen=seen))


def _cancelling(timer: Timer, done: Done) -> Done:
    def settled(answer: Answer | None) -> None:
        timer.cancel()
        done(answer)

    return settled
