"""Client's connection to a simulated node: an `Origin` without a socket."""

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
"""Broker group of all simulated nodes."""
FASTEST_S: Final = 0.0001
SPREAD_S: Final = 0.001
FIRST_PUSHED: Final = 1_000_000_000
TURN_S: Final = 0.002
"""Interval at which a node reads its connections, in seconds. A frame travels for `FASTEST_S` plus up to `SPREAD_S`."""


class Seen(NamedTuple):
    """The state that the answering node may have known."""

    asked_at: float
    """Simulated time of the question, in seconds."""
    first_index: int
    """Last entry that the node had applied when it was asked."""
    last_index: int
    """Last entry that the node had applied when it answered."""
    passed_on: bool
    """True if the node has asked another node."""
    steady: bool = False
    """True if the node has led without a break since the previous frame of the connection.

    It is False if that frame waited for forwarded requests. A node gives up waiting requests after a while, and drops a
    oneway request without an answer.
    """


class Answer(NamedTuple):
    """Answer of a node."""

    code: int
    ext: dict[str, str]
    body: bytes
    remark: str
    seen: Seen | None = None


Pushed = Callable[[RemotingCommand], None]
"""Callback for a node's request to its client."""
Done = Callable[[Answer | None], None]
"""Callback for the answer, or for None if no answer came in time. It is called once."""


class Server(Protocol):
    """Answering part of a node, as far as a connection knows it."""

    machine: WatchedMachine
    reign: int
    """Number of the present reign, 0 while the node does not lead or is not ready.

    It is unique for each time that the node leads and is ready without a break.
    """
    is_deaf: bool
    """True if the node reads nothing more from its connections."""

    def on_frames(self, origin: SimConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Handle requests that came over a connection."""

    def on_closed(self, origin: SimConnection) -> None:
        """Handle a connection that its client has closed."""


_POLLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE})
"""Codes of requests that wait for messages. They are not answered over a lost connection."""


class SimConnection(WaitsCounted):
    """Connection of a client to one life of a node. Frames keep their order in each direction."""

    is_forwarded: Final = False

    def __init__(self, group: SimGroup, life: Life, random: Random, address: HostAddress, number: int) -> None:
        self._scheduler: Scheduler = group.scheduler
        self._group = group
        self._life = life
        self._random = random
        self._pending: dict[int, Done] = {}
        self._request_facts: dict[int, tuple[float, int, int]] = {}
        """Facts about each unanswered request: the time of its send, the last entry applied at its arrival, and the
        reign.

        The reign is 0 unless it is unbroken since the previous frame.
        """
        self._unanswered: dict[int, int] = {}
        """Codes of requests that have come and are not answered yet, by request number."""
        self._reign = 0
        """Reign at the last frame (see `Server.reign`), or 0 if that frame had to wait for forwarded requests."""
        self.passed_on: set[int] = set()
        """Numbers of the requests that the node has passed on."""
        self._opaques = count(1)
        self._last_arrival_at = self._last_return_at = 0.0
        self._decoder = FrameDecoder()
        self.address = address
        self.born_host = pack_born_host(address)
        self.key = f"{life.node.name}/{life.node.lives}/{number}"
        self.in_flight = self.held = self.forwards = self.forward_refused = self.forward_epoch = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self.client_ids: set[str] = set()
        self.is_trusted = False
        self.serialize_type = 0
        self.wants_leader_notices = False
        self.alias: int | None = None
        self.on_push: Pushed | None = None
        """Client's callback for requests of the node. None if the client understands no requests."""
        self.credentials: Credentials | None = None
        """Account for which the client signs."""
        self._numbers = count(FIRST_PUSHED)
        self.dropped_last = False
        """True if the last request was lost on its way."""
        self._is_open = True
        life.on_killed.append(self._handle_death)

    @property
    def is_open(self) -> bool:
        """True while the connection is open."""
        return self._is_open

    @property
    def is_usable(self) -> bool:
        """True if the node still lives the life to which this connection belongs."""
        return self._is_open and self._life.node.life is self._life

    def close(self) -> None:
        """Close the connection as its client.

        Pending requests are never answered, and the node learns of the close after them.
        """
        if self._is_open and self._life.node.name not in self._group.unreachable:
            self._life.environment.call_at(self._get_arrival_time(FASTEST_S), lambda: self._broker.on_closed(self))
        self._is_open = False
        self._pending.clear()

    # ---------------------------------------------------------------- the client's side

    def call(self, command: RemotingCommand, timeout_s: float, done: Done) -> None:
        """Send a request. `done` gets the answer; for a oneway request it gets None at once."""
        opaque = command.opaque = next(self._opaques)
        if self.credentials is not None:
            command.ext = signed(command.ext, bytes(command.body), self.credentials)
        frame = encode_command(command)
        if command.flag & FLAG_ONEWAY:
            self._scheduler.after(0.0, lambda: done(None))
        else:
            timer = self._scheduler.after(timeout_s, lambda: self._finish_request(opaque, None))
            self._pending[opaque] = _cancel_timer_then(timer, done)
        self.dropped_last = self._life.node.name in self._group.unreachable
        if self.dropped_last:
            return
        asked_at, there_at = self._scheduler.now, self._get_arrival_time(self._draw_delay())
        code = None if command.flag & FLAG_ONEWAY else command.code
        self._life.environment.call_at(there_at, lambda: self._arrive(frame, opaque, code, asked_at))

    def respond(self, command: RemotingCommand) -> None:
        """Acknowledge a push to the node."""
        frame = encode_command(make_response(command, ResponseCode.SUCCESS))
        if self._is_open and self._life.node.name not in self._group.unreachable:
            there_at = self._get_arrival_time(self._draw_delay())
            self._life.environment.call_at(there_at, lambda: self._receive_response(frame))

    def _receive_response(self, frame: bytes) -> None:
        if not self._broker.is_deaf:
            self._broker.on_frames(self, frame, split_frames(frame, len(frame))[0])

    def _get_arrival_time(self, delay_s: float) -> float:
        """Return the time at which the node reads data that is sent now."""
        self._last_arrival_at = max(self._last_arrival_at, self._find_turn_after(self._scheduler.now + delay_s))
        return self._last_arrival_at

    @staticmethod
    def _find_turn_after(moment: float) -> float:
        """Return the next moment at which the node reads.

        Each turn of its event loop reads all its clients' data.
        """
        return (moment // TURN_S + 1) * TURN_S

    def _draw_delay(self) -> float:
        return FASTEST_S + self._random.random() * SPREAD_S

    def _finish_request(self, opaque: int, answer: Answer | None) -> None:
        done = self._pending.pop(opaque, None)
        if done is not None:
            done(answer)

    def _handle_death(self) -> None:
        """Handle the death of the process. The client learns of it some time later."""
        pending, self._pending = self._pending, {}
        self._is_open = False
        for done in pending.values():
            self._scheduler.after(self._draw_delay(), lambda done=done: done(None))  # type: ignore[misc]

    # ---------------------------------------------------------------- the node's side, see `Origin`, `ClientChannel`

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Send a request to the client, and return its number."""
        command = RemotingCommand(
            code,
            opaque=next(self._numbers),
            flag=FLAG_ONEWAY if oneway else 0,
            ext=ext,
            body=body,
            serialize_type=self.serialize_type,
        )
        frame = encode_command(command)
        self._scheduler.at(self._get_return_time(), lambda: self._receive_push(frame))
        return command.opaque

    def _get_return_time(self) -> float:
        """Return the time at which the client reads data that the node sends now."""
        self._last_return_at = max(self._last_return_at, self._scheduler.now + self._draw_delay())
        return self._last_return_at

    def _receive_push(self, frame: bytes) -> None:
        if self._is_open and self.on_push is not None and self._life.node.name not in self._group.unreachable:
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
        self._request_facts[opaque] = asked_at, self._broker.machine.index, before if before == self._reign else 0
        self._broker.on_frames(self, frame, frames)

    @property
    def unanswered(self) -> list[int]:
        """Codes of requests that the node still has to answer.

        Pulls that waited do not count once their client has gone.
        """
        return [code for code in self._unanswered.values() if self._is_open or code not in _POLLS]

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Answer a request with the parts of a frame."""
        self.answer_frame(b"".join(parts))

    def answer_frame(self, frame: bytes) -> None:
        """Answer a request with a frame."""
        self._count_settled()
        back_at = self._get_return_time()
        self._decoder.receive_data(frame)
        received = self._decoder.next_frame()
        assert received is not None
        command = decode_command(received)
        del self._unanswered[command.opaque]
        answer = Answer(command.code, command.ext, bytes(command.body), command.remark or "")
        index, reign = self._broker.machine.index, self._broker.reign
        self._scheduler.at(back_at, lambda: self._receive_answer(command.opaque, answer, index, reign))

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Answer requests with frames."""
        for frame in frames:
            self.answer_frame(frame)

    def settle(self) -> None:
        """Note that a request is settled without an answer."""
        self._count_settled()

    def _count_settled(self) -> None:
        self.in_flight -= 1
        require(self.in_flight >= 0, "a request is settled once", node=self._life.node.name)

    def refuse(self, term: int) -> None:
        """Do nothing. This is never called: only forwarded requests are refused."""

    def break_off(self, error: FrameError) -> None:
        """Raise the error: simulated clients send valid frames only."""
        raise error

    def _receive_answer(self, opaque: int, answer: Answer, index: int, reign: int) -> None:
        if not self._is_open or self._life.node.name in self._group.unreachable:
            return
        asked_at, first_index, before = self._request_facts.pop(opaque)
        seen = Seen(asked_at, first_index, index, opaque in self.passed_on, steady=before == reign > 0)
        self._finish_request(opaque, answer._replace(seen=seen))


def _cancel_timer_then(timer: Timer, done: Done) -> Done:
    def settled(answer: Answer | None) -> None:
        timer.cancel()
        done(answer)

    return settled
