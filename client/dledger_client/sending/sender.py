"""Delivery of one message or batch to the leader of a queue's broker group, in as many attempts as its deadline allows.

Each failure has a meaning:

| failure | stored | what follows |
|---|---|---|
| no connection | no | another queue or node |
| code 14 (not the leader, stopping, disk full) | no | the leader that the answer names, or look for it |
| code 2 (busy) | no | a pause of 5 ms, doubled up to 200 ms; an error without `retry_busy` |
| code 17 (no such topic) | no | the route is looked up once more |
| code 29 (no such queue) | no | the route is looked up until it shows the topic's queues, for almost a second |
| code 1 | no | another queue, three times in all |
| code 1 with `outcome=unknown`, connection lost, no answer | perhaps | an error, unless `retry_unknown` or idempotent |
| any other code | no | an error |
| "stored", but the place cannot be read | perhaps | an error |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import (
    InvalidParameter,
    NotLeader,
    OutcomeUnknown,
    RemotingError,
    ServerError,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
    error_from_response,
)
from dledger_remoting.headers import SendMessageResponseHeader, decode_ext

from ..cluster.core import LAST_ATTEMPT_S, ClientCore, busy_pause_seconds
from ..cluster.leader_search import LeaderSearch
from ..cluster.leaders import BrokerGroup
from ..cluster.routes import TopicRoute
from ..errors import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    NoRouteError,
    Outcome,
    RequestTimeoutError,
    SendError,
    refusal,
)
from ..messages import MessageQueue
from .wire import Outgoing, send_frame

STORED_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Codes of stored messages. The last three come only from RocketMQ's brokers: not flushed or replicated in time."""

SERVER_ERROR_ATTEMPTS: Final = 3
MISSING_QUEUE_LOOK_UPS: Final = 8

QueueChoice: TypeAlias = Callable[[TopicRoute], MessageQueue]
"""Picks one of a route's writable queues. It is called anew for every attempt."""


class Delivered(NamedTuple):
    """Result of a delivery: the queue, the place in it, and the answer's code.

    `maybe_stored` says that an earlier attempt may be stored, too.
    """

    queue: MessageQueue
    placement: SendMessageResponseHeader
    code: int
    maybe_stored: bool


class _Attempts(msgspec.Struct):
    """State of the attempts of one delivery.

    `unavailable` says that `last_error` is the reason why a leader stores nothing.
    """

    sent_requests: int = 0
    busy_refusals: int = 0
    server_errors: int = 0
    missing_queue_look_ups: int = 0
    missing_topic_look_ups: int = 0
    maybe_stored: bool = False
    last_error: ClientError | None = None
    unavailable: bool = False


class Sender:
    """Delivers to leaders. Each `deliver` is independent; the caller takes care of the order."""

    def __init__(
        self,
        core: ClientCore,
        producer_group: str,
        *,
        attempt_timeout: float,
        retry_unknown: bool,
        retry_busy: bool = True,
    ) -> None:
        self._core = core
        self._producer_group = producer_group
        self._attempt_timeout = attempt_timeout
        self._retry_unknown = retry_unknown
        self._retry_busy = retry_busy
        self._next_turns: dict[str, int] = {}
        self._leader_search = LeaderSearch(core)
        core.routes.forgotten.append(self._forget_topic)

    def _forget_topic(self, topic: str) -> None:
        self._next_turns.pop(topic, None)

    def next_queue(self, route: TopicRoute) -> MessageQueue:
        """Return the next writable queue in turn, if possible on a broker group whose leader is known.

        Skipped groups get a search for their leaders.
        """
        queues = route.writable or route.absent_writable
        turn = self._next_turns.get(route.topic, 0)
        groups = self._core.routes.groups
        for step in range(len(queues)):
            queue = queues[(turn + step) % len(queues)]
            if groups[queue.broker_group].leader is not None:
                self._next_turns[route.topic] = turn + step + 1
                return queue
            self._leader_search.begin(queue)
        self._next_turns[route.topic] = turn + 1
        return queues[turn % len(queues)]

    async def route(self, topic: str, deadline: float) -> TopicRoute:
        """Return a route with writable queues, even of absent broker groups. Raises `NoRouteError`."""
        route = self._core.routes.used(topic)
        if route is None or not route.all_writable:
            route = await self._core.routes.refresh(topic, deadline, auto_create=True)
            if not route.all_writable:
                raise NoRouteError(topic, "none of its queues can be written")
        return route

    async def deliver(self, outgoing: Outgoing, choose: QueueChoice, deadline: float) -> Delivered:
        """Return where the message is stored. Raises `SendError`.

        Once an idempotent send may be stored, it stays with its queue: only that broker group can recognise it.
        """
        attempts = _Attempts()
        try:
            while True:
                if self._core.loop.time() >= deadline:
                    raise attempts.last_error or DeadlineError("its deadline had passed before it was sent")
                route = await self.route(outgoing.topic, deadline)
                queue = choose(route)
                response = await self._attempt(outgoing, route, queue, deadline, attempts)
                if response is None:
                    if outgoing.idempotent and attempts.maybe_stored:
                        choose = partial(_choose_same, queue)
                    continue
                if response.code in STORED_CODES:
                    if route.provisional:
                        self._core.routes.refresh_soon(outgoing.topic)
                    return Delivered(queue, _decode_placement(response), response.code, attempts.maybe_stored)
        except ClientError as error:
            outcome: Outcome = "unknown" if attempts.maybe_stored or error.outcome == "unknown" else "not_sent"
            raise SendError(outgoing.topic, attempts.sent_requests, outcome, error) from error

    def send_oneway(self, outgoing: Outgoing, queue: MessageQueue, address: str) -> None:
        """Send the message without an answer. Raises `ConnectError` if there is no open connection."""
        connection = self._core.pool.peek(address)
        if connection is None:
            raise ConnectError(address, "not connected")
        frame = send_frame(
            outgoing,
            self._producer_group,
            queue.queue_id,
            connection.next_opaque(),
            oneway=True,
            credentials=connection.credentials,
        )
        connection.send_frame(frame)

    async def _attempt(
        self, outgoing: Outgoing, route: TopicRoute, queue: MessageQueue, deadline: float, attempts: _Attempts
    ) -> RemotingCommand | None:
        """Send one request to one node. Returns its answer if the message is stored, None to try again. Raises
        `ClientError`.

        `route` is the route by which `queue` was chosen.
        """
        group = self._core.routes.group(queue.broker_group)
        address = group.leader or await self._find_leader(queue, group, deadline, attempts)
        try:
            connection = self._core.pool.peek(address) or await self._core.pool.get(address, deadline)
            opaque = connection.next_opaque()
            frame = send_frame(
                outgoing, self._producer_group, queue.queue_id, opaque, credentials=connection.credentials
            )
            attempts.sent_requests += 1
            response = await connection.submit(
                opaque, frame, deadline, attempt_seconds=self._attempt_timeout, to_leader=True
            )
        except ConnectError as error:
            group.doubt(address)
            self._prepare_retry(error, deadline, attempts)
            return None
        except (ConnectionLostError, RequestTimeoutError) as error:
            group.doubt(address)
            self._prepare_unknown_retry(error, outgoing, deadline, attempts)
            return None
        if response.code in STORED_CODES:
            group.confirm(address)
            return response
        wire_error = error_from_response(response.code, response.remark, response.ext)
        if isinstance(wire_error, ServiceNotAvailable):
            self._core.note_not_leader(group, address, wire_error)
        if isinstance(wire_error, InvalidParameter) and queue in route.all_writable:
            await self._on_missing_queue(refusal(wire_error), outgoing.topic, deadline, attempts)
        else:
            await self._on_refusal(wire_error, outgoing, deadline, attempts)
        return None

    async def _find_leader(self, queue: MessageQueue, group: BrokerGroup, deadline: float, attempts: _Attempts) -> str:
        if not group.addresses:
            route = await self._core.routes.refresh(queue.topic, deadline, auto_create=True)
            if not group.addresses and queue not in route.absent_writable:
                raise NoRouteError(queue.topic, f"no broker group {queue.broker_group!r} has it")
        try:
            return await group.target(deadline)
        except TimeoutError:
            text = "no leader of {} was found before the deadline" if group.addresses else "no node of {} is registered"
            raise attempts.last_error or DeadlineError(text.format(group.name)) from None

    async def _on_refusal(
        self, wire_error: RemotingError, outgoing: Outgoing, deadline: float, attempts: _Attempts
    ) -> None:
        """Prepare the next attempt after an answer that does not say "stored", or raise."""
        error: ClientError = refusal(wire_error)
        if isinstance(wire_error, OutcomeUnknown):
            self._prepare_unknown_retry(error, outgoing, deadline, attempts)
            return
        if isinstance(wire_error, SystemBusy):
            pause = busy_pause_seconds(attempts.busy_refusals)
            attempts.busy_refusals += 1
            if not self._retry_busy or self._core.loop.time() + pause >= deadline:
                raise error
            await asyncio.sleep(pause)
        elif isinstance(wire_error, TopicNotExist) and not attempts.missing_topic_look_ups:
            attempts.missing_topic_look_ups += 1
            await self._core.routes.refresh(outgoing.topic, deadline, auto_create=True)
        elif isinstance(wire_error, ServerError) and attempts.server_errors + 1 < SERVER_ERROR_ATTEMPTS:
            attempts.server_errors += 1
        elif not isinstance(wire_error, ServiceNotAvailable):
            raise error
        unavailable = isinstance(wire_error, ServiceNotAvailable)
        if isinstance(wire_error, NotLeader):
            # A leader with a full disk is doubted, and other nodes are asked. They only know that they do not lead.
            unavailable = attempts.unavailable
            error = attempts.last_error if unavailable and attempts.last_error is not None else error
        self._prepare_retry(error, deadline, attempts, unavailable=unavailable)

    async def _on_missing_queue(self, error: ClientError, topic: str, deadline: float, attempts: _Attempts) -> None:
        """Look the route up again, because a name server shows a change a little later than the broker makes it.

        Raises `error` after `MISSING_QUEUE_LOOK_UPS` look-ups, or shortly before the deadline.
        """
        if attempts.missing_queue_look_ups == MISSING_QUEUE_LOOK_UPS:
            raise error
        await asyncio.sleep(busy_pause_seconds(attempts.missing_queue_look_ups))
        attempts.missing_queue_look_ups += 1
        await self._core.routes.refresh(topic, deadline)
        self._prepare_retry(error, deadline, attempts)

    def _prepare_retry(
        self, error: ClientError, deadline: float, attempts: _Attempts, *, unavailable: bool = False
    ) -> None:
        """Record the error of an attempt. Raises it if too little time is left for another attempt."""
        attempts.last_error, attempts.unavailable = error, unavailable
        if self._core.loop.time() + LAST_ATTEMPT_S >= deadline:
            raise error

    def _prepare_unknown_retry(
        self, error: ClientError, outgoing: Outgoing, deadline: float, attempts: _Attempts
    ) -> None:
        """Do the same for an attempt of unknown outcome. Raises its error if it must not be repeated."""
        attempts.maybe_stored = True
        if not (self._retry_unknown or outgoing.idempotent):
            raise error
        self._prepare_retry(error, deadline, attempts)


def _decode_placement(response: RemotingCommand) -> SendMessageResponseHeader:
    """Return the place of a stored message. Raises `RefusedError` of unknown outcome if the answer cannot be read."""
    try:
        return decode_ext(SendMessageResponseHeader, response.ext)
    except RemotingError as error:
        unreadable = refusal(error)
        unreadable.outcome = "unknown"
        raise unreadable from error


def _choose_same(queue: MessageQueue, _route: TopicRoute) -> MessageQueue:
    """Choose the same queue on every route."""
    return queue
