"""Dispatch of requests: from a frame to the handler of its code, and from an error to an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeVarTuple

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger.log import Log
from dledger_base.audit_log import AuditLog
from dledger_base.invariants import InvariantError
from dledger_base.telling import Telling
from dledger_broker.errors import NoSuchQueue, wire_error
from dledger_broker.frontend.alias_port import SENDS, answer_of, mark_send
from dledger_broker.frontend.body_limits import require_bounded
from dledger_broker.frontend.forwarding import Forwarder
from dledger_broker.frontend.pull_turns import PullsOfTurn, PullTurns, SendsUnderWay
from dledger_broker.frontend.refused_codes import refusal_of
from dledger_broker.frontend.task_turns import TaskTurns
from dledger_broker.kernel.access import Access, AccessRefused
from dledger_broker.kernel.activating import Activation
from dledger_broker.kernel.audit import Audit
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.held_memory import HeldMemory, request_bytes
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Channel, Origin, Principal, Read, Request, Waits, request_of
from dledger_broker.kernel.rights import ANY_ACCOUNT
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.codes import ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand, decode_command
from dledger_remoting.errors import (
    BodyError,
    FrameError,
    MessageIllegal,
    OutcomeUnknown,
    RemotingError,
    RequestCodeNotSupported,
    SystemBusy,
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
"""Answers that may be wrong from a lagging replica, or from a leader that does not know that it was deposed.

They are given only after a majority has confirmed the leader. The same holds for `NoSuchQueue`.
"""

_TOO_MUCH_WAITS: Final = "[OVERLOAD]too many large requests wait for their turns: nothing was done, try again later"
_PULL_PREFIX: Final = b'{"code":11,'
_SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":320,')
_JSON: Final = 0
_RESPONSE: Final = 1
LARGE_BYTES: Final = 4 << 10
"""Size in bytes from which on a request counts while it waits for its turn. Requests of usual clients are smaller."""
MAX_WAITING_BYTES: Final = 64 << 20
"""Maximum memory in bytes of all large requests that wait for their turns, or continue in tasks."""
_HEADER_BYTES: Final = 4096
"""Size in bytes of the room for the header of an answer."""


class GatheredSends(Protocol):
    """The sends that are not staged yet."""

    def flush_gathered(self) -> None:
        """Stage them as a unit, or let more sends gather in it."""

    def flush_later(self) -> None:
        """Stage them as `flush_gathered` does, at the end of this turn of the event loop."""


class Sends(SendsUnderWay, Protocol):
    """The handler of sends, `send.SendRequests`."""

    @property
    def gathering(self) -> GatheredSends:
        """The sends that were taken and are not staged yet."""

    def take_run(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int]:
        """Take sends in their most common form into the unit of this turn.

        Return the position of the first other frame: the number of the read, and the place in it.
        """


class Pulls(PullsOfTurn, Protocol):
    """The handler of pulls, `features.pulling.requests.PullRequests`."""

    def pull(self, request: Request, fields: PullFields) -> None:
        """Answer a pull, or hold it."""


class Answers(Protocol):
    """The receiver of clients' answers, `clients.relay.Relay`."""

    def take_answer(self, channel: str, command: RemotingCommand) -> None:
        """Handle a client's answer over this channel to a request of the broker."""


class Dispatcher:
    """Dispatcher of all requests of one node. `connect` sets the handlers before the first request."""

    def __init__(
        self,
        group: LeadershipView,
        counters: BrokerCounters,
        node: Log,
        env: Environment,
        max_frame_bytes: int,
        activation: Activation,
        access: Access,
    ) -> None:
        self.held: Waits = HeldMemory()
        self._access = access
        self.audit = Audit(AuditLog(env.now))
        self._group = group
        self._counters = counters
        self._node = node
        self._now = env.now
        self._telling = Telling(env.now)
        self._pull_turns = PullTurns(env, counters)
        self._task_turns = TaskTurns(env)
        self._waiting_bytes = 0
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
        """Set the handlers of requests."""
        self._answers = answers
        self._forwarder = forwarder
        self._sends = sends
        self._pull_turns.attach(sends, pulls)
        self._pulls = pulls
        self._table = table

    @property
    def flow(self) -> PullTurns:
        """The turns of pulls. The port notifies them of clients that do not read."""
        return self._pull_turns

    async def close(self) -> None:
        """Give up reads in progress."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- in

    def on_reads(self, reads: Sequence[Read]) -> bool:
        """Handle the frames that all connections received in a turn of the event loop.

        Return whether answers may be written at once. Otherwise the entry of this turn's sends goes first.
        """
        self._handle(reads)
        self._sends.gathering.flush_gathered()
        self._pull_turns.take()
        return not self._sends.has_sends_in_flight

    def channel_lost(self, channel: str) -> None:
        """Handle the waiting requests of a channel that is gone. No more requests of it will arrive."""
        self._pull_turns.take_of(channel)

    def finish_reads(self) -> None:
        """Handle all requests that were read and wait for their turn. Nothing more is read."""
        self._pull_turns.take_all()

    def on_frames(self, origin: Channel, data: bytes, frames: list[FrameBounds]) -> None:
        """Handle the frames of one read. Its sends share a unit at least with later sends of this turn."""
        self._handle(((origin, data, frames),))
        self._end_of_step()

    def _handle(self, reads: Sequence[Read]) -> None:
        now, number, place, judges = self._now(), 0, 0, self._access.judges
        while number < len(reads):
            origin, data, frames = reads[number]
            if place == len(frames):
                number, place = number + 1, 0
                continue
            header_start, body_start, frame_end, serialize_type = frames[place]
            if not judges and self._group.ready and data.startswith(_SEND_PREFIXES, header_start):
                begin = number, place
                number, place = self._sends.take_run(reads, number, place, now)
                if (number, place) != begin:
                    continue
            place += 1
            is_pull = not judges and data.startswith(_PULL_PREFIX, header_start)
            frame = Frame(serialize_type, data[header_start:body_start], data[body_start:frame_end])
            try:
                if origin.alias is not None:
                    self._receive_at_alias(origin.alias, origin, frame, now)
                elif not is_pull or not self._take_pull(origin, frame, now):
                    self._receive(origin, frame, now)
            except FrameError as error:
                origin.break_off(error)
                place = len(frames)

    def receive_forwarded(
        self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None
    ) -> None:
        """Handle a request that another node forwarded, with the principal that that node found. Raises
        `FrameError`.
        """
        if self._access.judges or not self._take_pull(origin, frame, received):
            self._receive(origin, frame, received, principal)
        self._end_of_step()

    def _end_of_step(self) -> None:
        self._sends.gathering.flush_later()
        self._pull_turns.take()

    def _take_pull(self, origin: Origin, frame: Frame, received: float) -> bool:
        """Handle a pull in the form that most clients use, by a short way. Return False, with nothing done, for all
        other requests.

        Access control must be off, because this way skips the fields that name the account.
        """
        header = frame.header
        if frame.serialize_type != _JSON or origin.forwards or not header.startswith(_PULL_PREFIX):
            return False
        pull = decode_pull_json(header)
        if pull is None or pull.flag & _RESPONSE:
            return False
        request = Request(origin, pull.code, pull.opaque, pull.flag, _JSON, header, frame.body, received)
        self._begin(request)
        handle = self._counted(request, partial(self.guard, request, self._pulls.pull, request, pull.ext))
        if handle is not None:
            self._pull_turns.add(origin.key, handle)
        return True

    def _receive(self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None) -> None:
        """Handle one request. Sends wait for `flush_later`. Raises `FrameError`."""
        general = self._general(origin, frame, received, principal)
        if general is not None:
            self._queue_or_dispatch(general)

    def _receive_at_alias(self, number: int, origin: Channel, frame: Frame, received: float) -> None:
        """Handle one request that arrived at the alias port. Raises `FrameError`."""
        request = self._general(origin, frame, received)
        if request is None:
            return
        answer = answer_of(request)
        if answer is not None:
            answer(request)
            return
        if request.code in SENDS:
            mark_send(request, number)
        self._queue_or_dispatch(request)

    def _general(
        self, origin: Origin, frame: Frame, received: float, principal: Principal | None = None
    ) -> Request | None:
        """Return the request in a frame, begun. Return None if it is done: it was a client's answer, or was refused.

        Raises `FrameError`.
        """
        command = decode_command(frame)
        if command.flag & _RESPONSE:
            self._answers.take_answer(origin.key, command)
            return None
        request = request_of(origin, command, frame.header, frame.body, received)
        request.principal = principal
        self._begin(request)
        if not self._introduced(request):
            return None
        try:
            require_bounded(request.code, frame.body)
        except BodyError as error:
            self._refuse_body(request, error)
            return None
        return request

    def _refuse_body(self, request: Request, error: BodyError) -> None:
        """Answer a request whose body breaks a limit and is not decoded. Strangers get the refusal of access control
        instead.
        """
        try:
            self._access.admit(request, ANY_ACCOUNT)
        except RemotingError as refusal:
            self.fail(request, refusal)
        else:
            self.fail(request, error)

    def _queue_or_dispatch(self, general: Request) -> None:
        """Handle a request now, or queue it: behind sends, or behind earlier requests of its channel."""
        channel = general.origin.key
        if general.code in SENDS:
            self._pass_on_or_dispatch(general)
            return
        handle = self._counted(general, partial(self._pass_on_or_dispatch, general))
        if handle is None:
            return
        if self.route(general.code).behind_sends:
            self._pull_turns.add(channel, handle)
        else:
            self._in_time(channel, handle)

    def _counted(self, request: Request, handle: Callable[[], None]) -> Callable[[], None] | None:
        """Return what handles a request, and counts it until then if it is large. Return None if it was refused.

        A connection has thousands of requests in flight, and each may have 300 KiB.
        """
        if len(request.header) + len(request.body) < LARGE_BYTES:
            return handle
        size = request_bytes(request)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.fail(request, SystemBusy(_TOO_MUCH_WAITS))
            return None
        self._waiting_bytes += size

        def counted() -> None:
            self._waiting_bytes -= size
            handle()

        return counted

    def _in_time(self, channel: str, handle: Callable[[], None]) -> None:
        """Handle a request now, or after the waiting requests of its channel."""
        if self._pull_turns.let_pass(channel):
            began = self._now()
            handle()
            self._pull_turns.spend(self._now() - began)
        else:
            self._pull_turns.add_behind(channel, handle)

    def _pass_on_or_dispatch(self, request: Request) -> None:
        if not request.origin.is_open and self.route(request.code).effect.for_client:
            self.fail(request, SystemBusy("its client is gone"))
        elif request.origin.forwards and self.route(request.code).needs is not Needs.NOTHING:
            self._forwarder.pass_on(request)
        else:
            self._dispatch(request)

    def run(self, request: Request) -> None:
        """Handle a request that has waited for something."""
        self._dispatch(request)  # also a pull: the code that resumes it counts what it reads
        self._sends.gathering.flush_later()

    def resume(self, request: Request, error: Exception | None) -> None:
        """Handle a request that has waited for a change of the state, or fail it with the error of that change."""
        if error is None:
            self.run(request)
        else:
            self.fail(request, error)

    def _introduced(self, request: Request) -> bool:
        """Return whether a request of this node's own client may be handled, or forwarded."""
        if self._access.judges and not request.origin.is_forwarded:
            try:
                self._access.introduce(request)
            except AccessRefused as refusal:
                self.fail(request, refusal)
                return False
            if not request.origin.is_trusted:
                request.origin.is_trusted = request.is_proven
        return True

    def _begin(self, request: Request) -> None:
        self._counters.requests += 1
        request.origin.in_flight += 1

    # ---------------------------------------------------------------- dispatch

    def route(self, code: int) -> Route:
        """Return how a request code is handled."""
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
        elif self._access.judges and not self._is_admitted(request, route):
            return
        elif route.needs is Needs.CONFIRMED_LEADER and not request.confirmed:
            self.confirm(request)
        elif route.feature is not None and not self._activation.is_active(route.feature):
            self.guard(request, self._activation.require, route.feature)
        else:
            if request.code in self.audit.subject_states:
                self.audit.watch(request)
            self.guard(request, route.handler, request)

    def _is_admitted(self, request: Request, route: Route) -> bool:
        """Return whether a request's account has the rights that it needs. If not, the request is answered."""
        try:
            self._access.admit(request, route.rights)
        except RemotingError as refusal:
            self.fail(request, refusal)
            return False
        return True

    def require_understood(self, code: int, leader: str) -> None:
        """Raise `SystemBusy` if the leader may be too old for a request of a feature that is not active yet."""
        feature = self.route(code).feature
        if feature is not None:
            self._activation.require_at(leader, feature)

    def guard(self, request: Request, handle: Callable[[*Ts], None], *what: *Ts) -> None:
        """Call the handler of a request. An error that it raises is the answer, except an `InvariantError`."""
        try:
            handle(*what)
        except InvariantError:
            raise
        except Exception as error:
            self.fail(request, error)

    def spawn(self, request: Request, work: Coroutine[None, None, None]) -> None:
        """Continue a request in a task, because its answer may need the disk."""
        task = asyncio.get_running_loop().create_task(self._work(request, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, request: Request, work: Coroutine[None, None, None]) -> None:
        size = _counted_bytes(request)
        if size and self._waiting_bytes + size > MAX_WAITING_BYTES:
            work.close()
            self.fail(request, SystemBusy(_TOO_MUCH_WAITS))
            return
        self._waiting_bytes += size
        try:
            await self._task_turns.run(work)
        except InvariantError:
            raise
        except Exception as error:
            self.fail(request, error)
        finally:
            self._waiting_bytes -= size

    async def give_way(self) -> None:
        """Wait for a later turn if the tasks of this turn have had their time."""
        await self._task_turns.give_way()

    def _unsupported(self, request: Request) -> None:
        raise RequestCodeNotSupported(refusal_of(request.code, request_code_name(request.code)))

    # ---------------------------------------------------------------- out

    def confirm(self, request: Request) -> None:
        """Handle the request again once a majority has confirmed the leader, on this node or on the leader."""
        self.when_confirmed(request, partial(self.run, request))

    def when_confirmed(self, request: Request, go_on: Callable[[], None]) -> None:
        """Call `go_on` once a majority has confirmed that this node leads. If it does not lead, the request is
        forwarded.
        """
        if self._group.ready:
            self._node.read_index(partial(self._confirmed, request, go_on))
        else:
            self._forwarder.pass_on(request)

    def _confirmed(self, request: Request, go_on: Callable[[], None], error: Exception | None) -> None:
        if error is None:
            request.confirmed = True
            self._in_time(request.origin.key, go_on)  # a majority confirms all waiting requests at once
            self._pull_turns.take()
        else:
            self._forwarder.pass_on(request)

    def pass_on(self, request: Request) -> None:
        """Forward a request to the leader, now or as soon as a leader is known. Nothing of it has been proposed."""
        self._forwarder.pass_on(request)

    def fail(self, request: Request, error: Exception) -> None:
        """Answer with an error, unless another node or a confirmation may know better."""
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
            origin, kind = request.origin.address, f"{request.code} {type(error).__name__} {request.account}"
            line = "event=request_failed client=%s code=%d error=%r"
            self._telling.log(
                *(_logger, logging.ERROR, origin.ip, kind, line), origin, request.code, error, exc_info=error
            )
        self._counters.errors += 1
        is_unknown = request.unsure or isinstance(answer, OutcomeUnknown)
        if is_unknown:
            self._counters.outcomes_unknown += 1
        if request.code in SENDS and (is_unknown or isinstance(error, LogError)):
            self._counters.sends_failed += 1
        request.fail(answer)

    def _may_be_wrong(self, request: Request, answer: RemotingError) -> bool:
        """Return whether another node, or a confirmed leader, may answer otherwise.

        If only the client's own node can answer a request, its rules decide a refusal by access control.
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
        """Maximum size in bytes of an answer's body: what a frame holds beside its header."""
        return self._max_frame_bytes - _HEADER_BYTES

    def respond(self, request: Request, body: bytes, ext: Mapping[str, str] | None = None) -> None:
        """Answer with a body that may be larger than a frame allows. Raises `MessageIllegal` if it is."""
        if len(body) > self.max_body_bytes:
            raise MessageIllegal(
                f"the answer of {len(body)} bytes is larger than a frame of {self._max_frame_bytes}: ask for less"
            )
        request.respond(ext=ext, body=body)


def _counted_bytes(request: Request) -> int:
    """Return how much memory of a waiting request counts, in bytes; 0 for the requests of usual clients."""
    return request_bytes(request) if len(request.header) + len(request.body) >= LARGE_BYTES else 0
