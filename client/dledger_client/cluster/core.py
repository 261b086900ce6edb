"""Core that producer, consumer and admin share.

It has connections, routes, leaders and heartbeats, and calls a broker group's leader.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final

from dledger_base.supervision import supervise
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.errors import (
    LEADER_ADDRESS_FIELD,
    TERM_FIELD,
    NotLeader,
    RemotingError,
    ServiceNotAvailable,
    SystemBusy,
    error_from_response,
)
from dledger_remoting.heartbeat import HeartbeatData, encode_heartbeat
from dledger_remoting.signatures import Credentials

from ..errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    RequestTimeoutError,
    refusal,
)
from ..namespaces import NO_NAMESPACE, Namespace
from ..tls import Tls
from .connection import Connection
from .leaders import BrokerGroup
from .nameservers import NameServers, parse_addresses
from .pool import ConnectionPool
from .routes import RouteTable, TopicRoute
from .surroundings import random_bits
from .under_way import Late

logger = logging.getLogger(__name__)

LEADER_CHANGED_CODE: Final = 20002
"""One-way request of our brokers: the group of this connection has a leader, `leaderAddr` in `term`."""

NO_FORWARD: Final = {"noForward": "true"}
"""Ext field: a node that does not lead its group refuses with code 14 and names the leader, instead of forwarding."""

NOTIFY: Final = {"dledgerNotify": "true"}
"""Ext field: asks the node to notify this connection when the leader changes."""

HEARTBEAT_SECONDS: Final = 30.0
ATTEMPT_SECONDS: Final = 3.0
"""Time limit in seconds for a node's answer to an ordinary request. After that another node is asked."""

LAST_ATTEMPT_S: Final = 0.05
"""Minimum time in seconds that must be left for another attempt.

An attempt that is cut off would turn a refusal into an unknown outcome.
"""

FORMER_LEADER_SECONDS: Final = 0.5
"""Time limit in seconds for requests that other nodes of a group got as its leader, once the leader is known.

Others, such as long polls at followers, wait on.
"""

MIN_BUSY_PAUSE_SECONDS: Final = 0.005
MAX_BUSY_PAUSE_SECONDS: Final = 0.2

_CODES_WITHOUT_ANSWER: Final = frozenset(
    {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)}
)
"""Requests that get no answer here.

Notices get no answer, whether a broker marks them as one-way or not. Replies are answered by the code that takes them.
"""

_instances = itertools.count(1)


def new_client_id() -> str:
    """Return an id that no other client of the cluster has: `host@pid#instance-random`."""
    host = socket.gethostname() or "localhost"
    return f"{host}@{os.getpid()}#{next(_instances)}-{random_bits(32):08x}"


def busy_pause_seconds(attempt: int) -> float:
    """Return the pause after the `attempt`-th refusal in a row by a busy broker, in seconds; attempts count from 0."""
    return min(MIN_BUSY_PAUSE_SECONDS * (1 << min(attempt, 10)), MAX_BUSY_PAUSE_SECONDS)


class ClientCore:
    """Core of one client. Its owner starts and closes it. Belongs to one event loop.

    `heartbeat` returns the present heartbeat; it is None for a client that sends none. `on_request` gets requests of
    brokers other than the notice of a new leader. It returns True for a request that it answers itself; others are
    refused here. `leader_listeners` are called when a group has found a leader. Received messages have their topic's
    name within `namespace`; all other names are those that brokers know. Requests are signed for the account of
    `credentials`, and sent over TLS with `tls`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        client_id: str | None = None,
        heartbeat: Callable[[], HeartbeatData] | None = None,
        on_request: Callable[[Connection, RemotingCommand], bool | None] | None = None,
        namespace: Namespace = NO_NAMESPACE,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        poll_seconds: float = 30.0,
    ) -> None:
        addresses = parse_addresses(name_servers)
        self.client_id = client_id or new_client_id()
        self.namespace = namespace
        self.loop = asyncio.get_running_loop()
        self.pool = ConnectionPool(
            self._on_request, on_connected=self._on_connected, on_lost=self._on_lost, credentials=credentials, tls=tls
        )
        self.name_servers = NameServers(addresses, self.pool)
        self.routes = RouteTable(self.name_servers, self._on_leader, poll_seconds=poll_seconds)
        self.leader_listeners: list[Callable[[BrokerGroup], None]] = []
        self._heartbeat = heartbeat
        self._request_handler = on_request
        self._contacted_addresses: set[str] = set()
        self._heartbeat_refusals: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self.restarts = 0
        """Number of times that background work which must not end was started again after an unexpected exception."""
        if heartbeat is not None:
            self.routes.listeners.append(self._on_route)

    @property
    def is_closed(self) -> bool:
        """True from the beginning of `close` on."""
        return self._closed

    def start(self) -> None:
        """Begin to keep routes and heartbeats up to date."""
        self.keep(self.routes.poll, "route poll")
        self.keep(self.routes.watch, "route watch")
        if self._heartbeat is not None:
            self.keep(self._send_heartbeats_regularly, "heartbeat")

    async def close(self) -> None:
        """Stop all background work and close all connections."""
        self._closed = True
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.routes.close()
        await self.pool.close()

    def spawn(self, work: asyncio._CoroutineLike[None], name: str) -> asyncio.Task[None]:
        """Run `work` in the background until it ends or the core is closed; unexpected errors are logged."""
        task = self.loop.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def keep(self, run: Callable[[], Coroutine[object, object, None]], name: str) -> asyncio.Task[None]:
        """Run work that must not end: `run()` is called again after an unexpected exception."""
        return self.spawn(supervise(run, name, self._count_restart), name)

    def _count_restart(self) -> None:
        self.restarts += 1

    async def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        deadline: float,
        attempt_seconds: float = math.inf,
        on_late: Late | None = None,
        to_leader: bool = False,
    ) -> RemotingCommand:
        """Make one attempt at one node. Returns an answer of any code. Raises the errors of `Connection.call`.

        `attempt_seconds` start anew when the request is written. `on_late` is called with an answer that comes later.
        `to_leader` says that the node is asked as the leader: the request soon expires if another node turns out to
        lead.
        """
        connection = await self.pool.get(address, min(deadline, self.loop.time() + attempt_seconds))
        command = RemotingCommand(code, ext=dict(ext), body=body)
        return await connection.call(
            command, deadline, attempt_seconds=attempt_seconds, on_late=on_late, to_leader=to_leader
        )

    async def call_leader(
        self,
        group: BrokerGroup,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        deadline: float,
        accept: frozenset[int] = frozenset(),
        idempotent: bool = True,
        proves_leader: bool = False,
        on_late: Late | None = None,
    ) -> RemotingCommand:
        """Ask the leader of a group until it answers success or a code in `accept`. The leader may change during the
        call.

        Requests that are refused with code 2 (busy) or 14 (not the leader, stopping, disk full) are repeated until
        `deadline`. With `idempotent`, so are requests of unknown outcome. `proves_leader` says that only a leader
        answers this request with success. `on_late` is called with the answer to an attempt that was given up.

        Raises `RefusedError` for other codes, and `DeadlineError` after the deadline. Their outcome is unknown if that
        of any attempt was. Without `idempotent`, a lost connection or a time-out raises its own error.
        """
        request_ext = {**ext, **NO_FORWARD}
        last_error: ClientError | None = None
        leader_refusal: ClientError | None = None
        busy_refusals = 0
        outcome_unknown = False
        while True:
            try:
                address = await group.target(deadline)
            except TimeoutError:
                raise _mark_outcome(
                    self._make_deadline_error(group, last_error, leader_refusal), unknown=outcome_unknown
                ) from last_error
            if last_error is not None and self.loop.time() + LAST_ATTEMPT_S >= deadline:
                raise _mark_outcome(
                    self._make_deadline_error(group, last_error, leader_refusal), unknown=outcome_unknown
                ) from last_error
            is_last = self.loop.time() + ATTEMPT_SECONDS >= deadline
            try:
                response = await self.call(
                    *(address, code, request_ext, body),
                    deadline=deadline,
                    attempt_seconds=ATTEMPT_SECONDS,
                    on_late=on_late,
                    to_leader=True,
                )
            except (ConnectError, ConnectionLostError, RequestTimeoutError) as error:
                group.doubt(address)
                if error.outcome == "unknown" and not idempotent:
                    raise
                last_error = error
                if not (isinstance(error, RequestTimeoutError) and is_last):
                    # a last attempt had only the rest of the time, so its timeout says nothing new about the leader
                    leader_refusal = None
                outcome_unknown = outcome_unknown or error.outcome == "unknown"
                if self.loop.time() >= deadline:
                    raise _mark_outcome(
                        self._make_deadline_error(group, last_error, leader_refusal), unknown=outcome_unknown
                    ) from last_error
                continue
            if response.code == ResponseCode.SUCCESS or response.code in accept:
                if proves_leader:
                    group.confirm(address)
                return response
            wire_error = error_from_response(response.code, response.remark, response.ext)
            last_error = refusal(wire_error)
            outcome_unknown = outcome_unknown or last_error.outcome == "unknown"
            if not isinstance(wire_error, NotLeader):
                leader_refusal = None if wire_error.outcome_unknown else last_error
            elif leader_refusal is not None:
                last_error = leader_refusal  # The doubted leader said why. Other nodes only know that they do not lead.
            if isinstance(wire_error, SystemBusy):
                pause = busy_pause_seconds(busy_refusals)
                busy_refusals += 1
                if self.loop.time() + pause >= deadline:
                    raise _mark_outcome(
                        self._make_deadline_error(group, last_error, leader_refusal), unknown=outcome_unknown
                    ) from last_error
                await asyncio.sleep(pause)
            elif isinstance(wire_error, ServiceNotAvailable):
                self.note_not_leader(group, address, wire_error)
            elif wire_error.outcome_unknown and idempotent:
                group.doubt(address)
            else:
                raise _mark_outcome(last_error, unknown=outcome_unknown)

    def note_not_leader(self, group: BrokerGroup, address: str, error: RemotingError) -> None:
        """Handle a refusal with code 14. The answer may name the leader."""
        group.doubt(address)
        if isinstance(error, NotLeader):
            group.learn(error.leader_address if error.leader_address != address else None, error.term)

    async def beat_now(self, addresses: Sequence[str] | None = None, *, timeout: float = ATTEMPT_SECONDS) -> None:
        """Send a heartbeat to these nodes, or to all nodes of all groups, and wait for their answers.

        Nodes that do not answer are ignored: they get the next heartbeat.
        """
        if addresses is None:
            addresses = [address for group in self.routes.groups.values() for address in group.addresses]
        await asyncio.gather(*(self._send_heartbeat(address, timeout) for address in dict.fromkeys(addresses)))

    async def _send_heartbeat(self, address: str, timeout: float) -> None:
        if self._heartbeat is None:
            return
        deadline = self.loop.time() + timeout
        body = encode_heartbeat(self._heartbeat())
        try:
            response = await self.call(address, RequestCode.HEART_BEAT, NOTIFY, body, deadline=deadline)
        except ClientError as error:
            logger.debug("heartbeat to %s failed: %s", address, error)
            return
        if response.code == ResponseCode.SUCCESS:
            self._heartbeat_refusals.pop(address, None)
            return
        reason = f"code {response.code}, {response.remark}"
        is_repeated = reason in self._heartbeat_refusals.values()
        self._heartbeat_refusals[address] = reason
        logger.log(logging.DEBUG if is_repeated else logging.WARNING, "heartbeat refused by %s: %s", address, reason)

    async def _send_heartbeats_regularly(self) -> None:
        while True:
            await self.beat_now()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _on_route(self, route: TopicRoute) -> None:
        """Connect to new nodes. A node sends notices only to connections on which a heartbeat has asked for them."""
        names = {queue.broker_group for queue in (*route.readable, *route.writable)}
        addresses = {
            address for name in names for address in self.routes.group(name).addresses
        } - self._contacted_addresses
        if addresses and not self._closed:
            self._contacted_addresses |= addresses
            self.spawn(self._connect_all(sorted(addresses)), "first connections")

    async def _connect_all(self, addresses: Sequence[str]) -> None:
        deadline = self.loop.time() + ATTEMPT_SECONDS
        await asyncio.gather(*(self.pool.get(address, deadline) for address in addresses), return_exceptions=True)

    def _on_connected(self, connection: Connection) -> None:
        if self._heartbeat is not None and connection.address not in self.name_servers.addresses and not self._closed:
            self.spawn(self._send_heartbeat(connection.address, ATTEMPT_SECONDS), "first heartbeat")

    def _on_lost(self, connection: Connection) -> None:
        group = self.routes.group_at(connection.address)
        if group is not None and not self._closed:
            group.doubt(connection.address)

    def _on_leader(self, group: BrokerGroup, _previous: str | None) -> None:
        if group.leader is None or self._closed:
            return
        for address in group.addresses:
            if address == group.leader:
                continue
            connection = self.pool.peek(address)
            if connection is not None and connection.pending:
                connection.expire_leader_requests_by(self.loop.time() + FORMER_LEADER_SECONDS)
        for listener in self.leader_listeners:
            listener(group)

    def _on_request(self, connection: Connection, command: RemotingCommand) -> None:
        if command.code == LEADER_CHANGED_CODE:
            group = self.routes.group_at(connection.address)
            term = command.ext.get(TERM_FIELD, "")
            if group is not None and term.isascii() and term.isdecimal() and len(term) < 20:
                group.learn(command.ext.get(LEADER_ADDRESS_FIELD), int(term))
            return
        if self._request_handler is not None and self._request_handler(connection, command):
            return
        if not command.is_oneway and connection.is_open and command.code not in _CODES_WITHOUT_ANSWER:
            remark = f"request code {command.code} is not supported by this client"
            answer = make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            connection.send_frame(encode_command(answer))

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s ended unexpectedly", task.get_name(), exc_info=error)

    def _make_deadline_error(
        self, group: BrokerGroup, last_error: ClientError | None, leader_refusal: ClientError | None
    ) -> ClientError:
        """Return the error of a call at its deadline.

        `last_error` is the last attempt's error, `leader_refusal` a refusal by a leader.
        """
        if self._closed:
            return ClientClosedError("the client is closed")
        if leader_refusal is not None:
            return DeadlineError(f"{group.name} refused it until the deadline: {leader_refusal}")
        reason = f": {last_error}" if last_error is not None else ""
        text = "no leader of {} answered before the deadline" if group.addresses else "no node of {} is registered"
        return DeadlineError(text.format(group.name) + reason)


def _mark_outcome(error: ClientError, *, unknown: bool) -> ClientError:
    """Return the error of a call. Its outcome is unknown if some attempt may have taken effect."""
    if unknown:
        error.outcome = "unknown"
    return error


def check_response(response: RemotingCommand) -> RemotingCommand:
    """Return the response if its code is success. Raises `RefusedError`."""
    if response.code != ResponseCode.SUCCESS:
        raise refusal(error_from_response(response.code, response.remark, response.ext))
    return response
