"""Dispatch of requests: from a frame to the handler of its code, and from an error to an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVarTuple

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger.invariants import InvariantError
from dledger.log import Log
from dledger_broker.errors import NoSuchQueue, wire_error
from dledger_broker.frontend.alias_port import SENDS, answer_of, mark_send
from dledger_broker.frontend.forwarding import Forwarder
from dledger_broker.frontend.pull_turns import PullsOfTurn, PullTurns, SendsUnderWay
from dledger_broker.frontend.refused_codes import refusal_of
from dledger_broker.kernel.access import Access, AccessRefused
from dledger_broker.kernel.activating import Activation
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.requests import Channel, Origin, Principal, Read, Request, request_of
from dledger_broker.kernel.rights import ANY_ACCOUNT
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.codes import ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand, decode_command
from dledger_remoting.errors import (
    FrameError,
    MessageIllegal,
    OutcomeUnknown,
    RemotingError,
    RequestCodeNotSupported,
)
from dledger_remoting.frame import MAX_FRAME_BYTES, Frame, FrameBounds
from dledger_remoting.hotpath import PullFields, decode_pull_json

_logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")

UNSURE_CODES: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
"""Answers that a replica which lags, or a leader that was deposed unknowingly, may give wrongly: only after a majority
has confirmed the leader. So is `NoSuchQueue`."""

_PULL_PREFIX: Final = b'{"code":11,'
_JSON: Final = 0
_RESPONSE: Final = 1
_HEADER_BYTES: Final = 4096
"""Room for the header of an answer."""


class Sends(SendsUnderWay, Protocol):
    """`send.SendRequests`."""

    def take_run(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int]:
        """Take sends in their most common form into the unit of this turn; returns the number of the read, and the
        place in it, of the first frame that is none.
        """

    def flush_gathered(self) -> None:
        """Stage the unit, or let more gather in it."""

    def flush_later(self) -> None:
        """As `flush_gathered`, at the end of this turn of the event loop."""


class Pulls(PullsOfTurn, Protocol):
    """`pull.PullRequests`."""

    def pull(self, request: Request, fields: PullFields) -> None:
        """Answer a pull, or hold it."""


class Answers(Protocol):
    """`clients.relay.Relay`."""

    def take_answer(self, channel: str, command: RemotingCommand) -> None:
        """A client has answered, over this channel, what the broker asked it."""


class Dispatcher:
    """Dispatches all requests of one node. `connect` names the handlers before the first one."""

    def __init__(
        self,
        group: Group,
        counters: BrokerCounters,
        node: Log,
        env: Environment,
        max_frame_bytes: int,
        activation: Activation,
        access: Access,
    ) -> None:
        self._access = access
        self._group = group
        self._counters = counters
        self._node = node
        self._now = env.now
        self._pull_turns = PullTurns(env, counters)
        self._activation = activation
        self._max_frame_bytes = min(max_frame_bytes, MAX_FRAME_BYTES)
        self._table: Mapping[int, Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends: Sends
        self._pulls: Pulls
        self._answers: Answers
        self._forwarder: Forwarder

    def connect(
        self, forwarder: Forwarder, sends: Sends, pulls: Pulls, answers: Answers, table: Mapping[int, Route]
    ) -> None:
        """Name who handles what."""
        self._answers = answers
        self._forwarder = forwarder
        self._sends = sends
        self._pull_turns.attach(sends, pulls)
        self._pulls = pulls
        self._table = table

    async def close(self) -> None:
        """Give up reads in progress."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- in

    def on_reads(self, reads: Sequence[Read]) -> bool:
        """Handle what all connections brought in a turn of the event loop.

        Returns whether answers may be written at once; else the entry of this turn's sends goes first.
        """
        self._handle(reads)
        self._sends.flush_gathered()
        self._pull_turns.take()
        return not self._sends.are_under_way

    def channel_lost(self, channel: str) -> None:
        """Handle what waits of a channel that is gone: nothing of it comes behind that."""
        self._pull_turns.take_of(channel)

    def finish_reads(self) -> None:
        """Handle all that was read and waits for its turn; nothing more is read."""
        self._pull_turns.take_all()

    def on_frames(self, origin: Channel, data: bytes, frames: list[FrameBounds]) -> None:
        """Handle the frames of one read; its sends share a unit with those that follow in this turn at least."""
        self._handle(((origin, data, frames),))
        self._end_of_step()

    def _handle(self, reads: Sequence[Read]) -> None:
        now, number, place, judges = self._now(), 0, 0, self._access.is_on
        while number < len(reads):
            origin, data, frames = reads[number]
            if place == len(frames):
                number, place = number + 1, 0
                continue
            header_start, body_start, frame_end, serialize_type = frames[place]
            if not judges and self._group.ready and not data.startswith(_PULL_PREFIX, header_start):
                begin = number, place
                number, place = self._sends.take_run(reads, number, place, now)
                if (number, place) != begin:
                    continue
            place += 1
            frame = Frame(serialize_type, data[header_start:body_start], data[body_start:frame_end])
            try:
                if origin.alias is not None:
                    self._receive_at_alias(origin.alias, origin, frame, now)
                elif judges or not self._take_pull(origin, frame, now):
                    self._receive(origin, frame, now)
            except FrameError as error:
                origin.break_off(error)
                place = len(frames)

    def receive_forwarded(
        self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None
    ) -> None:
        """Handle a request that another node passed on, with what that knows of its client. Raises `FrameError`."""
        if self._access.is_on or not self._take_pull(origin, frame, received):
            self._receive(origin, frame, received, principal)
        self._end_of_step()

    def _end_of_step(self) -> None:
        self._sends.flush_later()
        self._pull_turns.take()

    def _take_pull(self, origin: Origin, frame: Frame, received: float) -> bool:
        """Handle a pull in the form that most clients use, by a short way; False, and nothing done, of anything else.

        Access control is off: else the account has to be read from fields that this way passes over.
        """
        header = frame.header
        if frame.serialize_type != _JSON or origin.forwards or not header.startswith(_PULL_PREFIX):
            return False
        pull = decode_pull_json(header)
        if pull is None or pull.flag & _RESPONSE:
            return False
        request = Request(origin, pull.code, pull.opaque, pull.flag, _JSON, header, frame.body, received)
        self._begin(request)
        self._pull_turns.add(origin.key, partial(self.guard, request, self._pulls.pull, request, pull.ext))
        return True

    def _receive(self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None) -> None:
        """Handle one request; sends wait for `flush_later`. Raises `FrameError`."""
        general = self._general(origin, frame, received, principal)
        if general is not None:
            self._go_on(general)

    def _receive_at_alias(self, number: int, origin: Channel, frame: Frame, received: float) -> None:
        """Handle one request that came to the alias port. Raises `FrameError`."""
        request = self._general(origin, frame, received)
        if request is None:
            return
        answer = answer_of(request)
        if answer is not None:
            answer(request)
            return
        if request.code in SENDS:
            mark_send(request, number)
        self._go_on(request)

    def _general(
        self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None
    ) -> Request | None:
        """The request in a frame, begun; None if there is nothing more to do: it was an answer of the client, or is
        refused. Raises `FrameError`.
        """
        command = decode_command(frame)
        if command.flag & _RESPONSE:
            self._answers.take_answer(origin.key, command)
            return None
        request = request_of(origin, command, frame.header, frame.body, received)
        request.principal = principal
        self._begin(request)
        return request if self._introduced(request) else None

    def _go_on(self, general: Request) -> None:
        channel = general.origin.key
        if self.route(general.code).behind_sends:
            self._pull_turns.add(channel, partial(self._pass_on_or_dispatch, general))
        elif general.code in SENDS or self._pull_turns.let_pass(channel):
            self._pass_on_or_dispatch(general)
        else:
            self._pull_turns.add_behind(channel, partial(self._pass_on_or_dispatch, general))

    def _pass_on_or_dispatch(self, request: Request) -> None:
        if request.origin.forwards and self.route(request.code).needs is not Needs.NOTHING:
            self._forwarder.pass_on(request)
        else:
            self._dispatch(request)

    def run(self, request: Request) -> None:
        """See `Requests.run`."""
        self._dispatch(request)  # a pull, too: who lets it go on counts what it reads
        self._sends.flush_later()

    def resume(self, request: Request, error: Exception | None) -> None:
        """See `Requests.resume`."""
        if error is None:
            self.run(request)
        else:
            self.fail(request, error)

    def _introduced(self, request: Request) -> bool:
        """Whether a request of this node's own client may be handled, or handed on."""
        if self._access.is_on and not request.origin.is_forwarded:
            try:
                self._access.introduce(request)
            except AccessRefused as refusal:
                self.fail(request, refusal)
                return False
        return True

    def _begin(self, request: Request) -> None:
        self._counters.requests += 1
        request.origin.in_flight += 1

    # ---------------------------------------------------------------- dispatch

    def route(self, code: int) -> Route:
        """How a request code is handled."""
        route = self._table.get(code)
        return (
            route
            if route is not None
            else Route(self._unsupported, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=ANY_ACCOUNT)
        )

    def _dispatch(self, request: Request) -> None:
        route = self.route(request.code)
        if route.needs is not Needs.NOTHING and not self._group.ready:
            self._forwarder.pass_on(request)
        elif self._access.is_on and not self._is_admitted(request, route):
            return
        elif route.needs is Needs.CONFIRMED_LEADER and not request.confirmed:
            self.confirm(request)
        elif route.feature is not None and not self._activation.is_active(route.feature):
            self.guard(request, self._activation.require, route.feature)
        else:
            self.guard(request, route.handler, request)

    def _is_admitted(self, request: Request, route: Route) -> bool:
        """Whether a request's account may have what it asks for; else it is answered."""
        try:
            self._access.admit(request, route.rights)
        except RemotingError as refusal:
            self.fail(request, refusal)
            return False
        return True

    def require_understood(self, code: int, leader: str) -> None:
        """See `forwarding.Handling.require_understood`."""
        feature = self.route(code).feature
        if feature is not None:
            self._activation.require_at(leader, feature)

    def guard(self, request: Request, handle: Callable[[*Ts], None], *what: *Ts) -> None:
        """See `Requests.guard`."""
        try:
            handle(*what)
        except InvariantError:
            raise
        except Exception as error:
            self.fail(request, error)

    def spawn(self, request: Request, work: Coroutine[None, None, None]) -> None:
        """See `Requests.spawn`."""
        task = asyncio.get_running_loop().create_task(self._work(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, request: Request, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except InvariantError:
            raise
        except Exception as error:
            self.fail(request, error)

    def _unsupported(self, request: Request) -> None:
        raise RequestCodeNotSupported(refusal_of(request.code, request_code_name(request.code)))

    # ---------------------------------------------------------------- out

    def confirm(self, request: Request) -> None:
        """See `Requests.confirm`."""
        self.when_confirmed(request, partial(self.run, request))

    def when_confirmed(self, request: Request, go_on: Callable[[], None]) -> None:
        """See `Requests.when_confirmed`."""
        if self._group.ready:
            self._node.read_index(partial(self._confirmed, request, go_on))
        else:
            self._forwarder.pass_on(request)

    def _confirmed(self, request: Request, go_on: Callable[[], None], error: Exception | None) -> None:
        if error is None:
            request.confirmed = True
            go_on()
        else:
            self._forwarder.pass_on(request)

    def pass_on(self, request: Request) -> None:
        """See `Requests.pass_on`."""
        self._forwarder.pass_on(request)

    def fail(self, request: Request, error: Exception) -> None:
        """See `Requests.fail`."""
        if isinstance(error, NotLeaderError):
            self._forwarder.pass_on(request)
            return
        answer = wire_error(error)
        if self._may_be_wrong(request, answer):
            self.confirm(request)
            return
        if isinstance(answer, AccessRefused):
            self._access.note_refusal(request, answer)
        if not isinstance(error, RemotingError | LogError):
            _logger.error(
                "event=request_failed client=%s code=%d error=%r",
                request.origin.address,
                request.code,
                error,
                exc_info=error,
            )
        self._counters.errors += 1
        is_unknown = request.unsure or isinstance(answer, OutcomeUnknown)
        if is_unknown:
            self._counters.outcomes_unknown += 1
        if request.code in SENDS and (is_unknown or isinstance(error, LogError)):
            self._counters.sends_failed += 1
        request.fail(answer)

    def _may_be_wrong(self, request: Request, answer: RemotingError) -> bool:
        """Whether another node, or a confirmed leader, may answer otherwise.

        Accounts of a client that only its own node can speak to are refused by the rules that this has applied.
        """
        if request.confirmed:
            return False
        if isinstance(answer, AccessRefused) and (
            answer.certain or not (self._group.ready or self.route(request.code).forwarded)
        ):
            return False
        return answer.code in UNSURE_CODES or isinstance(answer, NoSuchQueue)

    @property
    def max_body_bytes(self) -> int:
        """See `Requests.max_body_bytes`."""
        return self._max_frame_bytes - _HEADER_BYTES

    def respond(self, request: Request, body: bytes, ext: Mapping[str, str] | None = None) -> None:
        """See `Requests.respond`."""
        if len(body) > self.max_body_bytes:
            raise MessageIllegal(
                f"the answer of {len(body)} bytes is larger than a frame of {self._max_frame_bytes}: ask for less"
            )
        request.respond(ext=ext, body=body)
