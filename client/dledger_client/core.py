"""Core that producer, consumer and admin share: connections, routes, leaders, heartbeats, and calls to a group's
leader."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final

from dledger.supervision import supervise
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

from .connection import Connection, ConnectionPool
from .errors import (
    ClientClosedError,
    ClientError,
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    RequestTimeoutError,
    refusal,
)
from .leaders import BrokerGroup
from .nameservers import NameServers, parse_addresses
from .namespaces import NO_NAMESPACE, Namespace
from .routes import RouteTable, TopicRoute
from .tls import Tls

logger = logging.getLogger(__name__)

LEADER_CHANGED_CODE: Final = 20002
"""One-way request of a broker of ours: the group of this connection has a leader, `leaderAddr` in `term`."""

NO_FORWARD: Final = {"noForward": "true"}
"""Ext field: a node that does not lead its group refuses with code 14 and names the leader, instead of forwarding."""

NOTIFY: Final = {"dledgerNotify": "true"}
"""Ext field: tell this connection when the leader changes."""

HEARTBEAT_SECONDS: Final = 30.0
ATTEMPT_SECONDS: Final = 3.0
"""How long one node has to answer an ordinary request before it is taken for dead."""

LAST_ATTEMPT_S: Final = 0.05
"""With less time left no other attempt is begun: cut off, it would make a refusal an unknown outcome."""

FORMER_LEADER_SECONDS: Final = 0.5
"""How long requests under way to a former leader still have for their answer once a successor is known."""

MIN_BUSY_PAUSE_SECONDS: Final = 0.005
MAX_BUSY_PAUSE_SECONDS: Final = 0.2

_NOT_ANSWERED_HERE: Final = frozenset(
    {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)}
)
"""Notices, whether a broker marks them as one-way or not; and replies, which are answered by who takes them."""

_instances = itertools.count(1)


def new_client_id() -> str:
    """An id that no other client of the cluster has: `host@pid#instance-random`."""
    host = socket.gethostname() or "localhost"
    return f"{host}@{os.getpid()}#{next(_instances)}-{secrets.token_hex(4)}"


def busy_pause_seconds(attempt: int) -> float:
    """How long to wait after the `attempt`-th refusal in a row by a busy broker; attempts count from 0."""
    return min(MIN_BUSY_PAUSE_SECONDS * (1 << min(attempt, 10)), MAX_BUSY_PAUSE_SECONDS)


class ClientCore:
    """Started and closed by the object that owns it. Belongs to one event loop.

    `heartbeat` makes the present heartbeat, None for a client that sends none. `on_request` gets requests of brokers
    other than the notice of a new leader, and returns True for one that it answers itself: others are refused here.
    `leader_listeners` are called when a group has found a leader. Messages that are received have their topic's name
    within `namespace`; all other names are those that brokers know. Requests are signed for the account of
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
        self._met: set[str] = set()
        self._refused_beats: dict[str, str] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        self.restarts = 0
        """How often background work that must not end was started again after an unexpected exception."""
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
            self.keep(self._beat_regularly, "heartbeat")

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
        task.add_done_callback(self._finished)
        return task

    def keep(self, run: Callable[[], Coroutine[object, object, None]], name: str) -> asyncio.Task[None]:
        """Like `spawn`, for work that must not end: `run()` is called again after an unexpected exception."""
        return self.spawn(supervise(run, name, self._count_restart), name)

    def _count_restart(self) -> None:
        self.restarts += 1

    async def call(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"", *, deadline: float
    ) -> RemotingCommand:
        """One attempt at one node. Returns an answer of any code; raises what `Connection.call` raises."""
        connection = await self.pool.get(address, deadline)
        return await connection.call(RemotingCommand(code, ext=dict(ext), body=body), deadline)

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
    ) -> RemotingCommand:
        """Ask the leader of a group, whoever that is by then, until it answers success or a code in `accept`.

        Requests that are refused as not stored are repeated until `deadline`; those of unknown outcome too, if
        `idempotent`. `proves_leader`: only a leader answers this request with success. Raises `RefusedError` for other
        codes, `DeadlineError` when the time is up; the outcome of either is unknown if that of any attempt was.
        """
        request_ext = {**ext, **NO_FORWARD}
        last: ClientError | None = None
        by_leader: ClientError | None = None
        busy = 0
        unknown = False
        while True:
            try:
                address = await group.target(deadline)
            except TimeoutError:
                raise _unsure(self._out_of_time(group, last, by_leader), unknown=unknown) from last
            if last is not None and self.loop.time() + LAST_ATTEMPT_S >= deadline:
                raise _unsure(self._out_of_time(group, last, by_leader), unknown=unknown) from last
            attempt_deadline = min(deadline, self.loop.time() + ATTEMPT_SECONDS)
            try:
                response = await self.call(address, code, request_ext, body, deadline=attempt_deadline)
            except (ConnectError, ConnectionLostError, RequestTimeoutError) as error:
                group.doubt(address)
                if error.outcome == "unknown" and not idempotent:
                    raise
                last = error
                if not (isinstance(error, RequestTimeoutError) and attempt_deadline == deadline):
                    by_leader = None  # else it had what was left of the time: that says nothing new of the leader
                unknown = unknown or error.outcome == "unknown"
                if self.loop.time() >= deadline:
                    raise _unsure(self._out_of_time(group, last, by_leader), unknown=unknown) from last
                continue
            if response.code == ResponseCode.SUCCESS or response.code in accept:
                if proves_leader:
                    group.confirm(address)
                return response
            wire_error = error_from_response(response.code, response.remark, response.ext)
            last = refusal(wire_error)
            unknown = unknown or last.outcome == "unknown"
            if not isinstance(wire_error, NotLeader):
                by_leader = None if wire_error.outcome_unknown else last
            elif by_leader is not None:
                last = by_leader  # it was doubted, so others are asked, who only know that they do not lead
            if isinstance(wire_error, SystemBusy):
                pause = busy_pause_seconds(busy)
                busy += 1
                if self.loop.time() + pause >= deadline:
                    raise _unsure(self._out_of_time(group, last, by_leader), unknown=unknown) from last
                await asyncio.sleep(pause)
            elif isinstance(wire_error, ServiceNotAvailable):
                self.note_not_leader(group, address, wire_error)
            elif wire_error.outcome_unknown and idempotent:
                group.doubt(address)
            else:
                raise _unsure(last, unknown=unknown)

    def note_not_leader(self, group: BrokerGroup, address: str, error: RemotingError) -> None:
        """A node refused with code 14; its answer may say who leads."""
        group.doubt(address)
        if isinstance(error, NotLeader):
            group.learn(error.leader_address if error.leader_address != address else None, error.term)

    async def beat_now(self, addresses: Sequence[str] | None = None, *, timeout: float = ATTEMPT_SECONDS) -> None:
        """Send a heartbeat to these nodes, or to all nodes of all groups, and wait for their answers.

        Nodes that do not answer are left out silently: they get the next one.
        """
        if addresses is None:
            addresses = [address for group in self.routes.groups.values() for address in group.addresses]
        await asyncio.gather(*(self._beat(address, timeout) for address in dict.fromkeys(addresses)))

    async def _beat(self, address: str, timeout: float) -> None:
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
            self._refused_beats.pop(address, None)
            return
        reason = f"code {response.code}, {response.remark}"
        known = reason in self._refused_beats.values()
        self._refused_beats[address] = reason
        logger.log(logging.DEBUG if known else logging.WARNING, "heartbeat refused by %s: %s", address, reason)

    async def _beat_regularly(self) -> None:
        while True:
            await self.beat_now()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _on_route(self, route: TopicRoute) -> None:
        """Connect to nodes not met before: a node sends notices only to connections that have asked for them."""
        names = {queue.broker_group for queue in (*route.readable, *route.writable)}
        addresses = {address for name in names for address in self.routes.group(name).addresses} - self._met
        if addresses and not self._closed:
            self._met |= addresses
            self.spawn(self._connect_all(sorted(addresses)), "first connections")

    async def _connect_all(self, addresses: Sequence[str]) -> None:
        deadline = self.loop.time() + ATTEMPT_SECONDS
        await asyncio.gather(*(self.pool.get(address, deadline) for address in addresses), return_exceptions=True)

    def _on_connected(self, connection: Connection) -> None:
        if self._heartbeat is not None and connection.address not in self.name_servers.addresses and not self._closed:
            self.spawn(self._beat(connection.address, ATTEMPT_SECONDS), "first heartbeat")

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
                connection.expire_pending_by(self.loop.time() + FORMER_LEADER_SECONDS)
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
        if not command.is_oneway and connection.is_open and command.code not in _NOT_ANSWERED_HERE:
            remark = f"request code {command.code} is not supported by this client"
            answer = make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            connection.send_frame(encode_command(answer))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s ended unexpectedly", task.get_name(), exc_info=error)

    def _out_of_time(self, group: BrokerGroup, last: ClientError | None, by_leader: ClientError | None) -> ClientError:
        """Why a call ends at its deadline: `last` is what the last attempt brought, `by_leader` a refusal."""
        if self._closed:
            return ClientClosedError("the client is closed")
        if by_leader is not None:
            return DeadlineError(f"{group.name} refused it until the deadline: {by_leader}")
        reason = f": {last}" if last is not None else ""
        what = "no leader of {} answered before the deadline" if group.addresses else "no node of {} is registered"
        return DeadlineError(what.format(group.name) + reason)


def _unsure(error: ClientError, *, unknown: bool) -> ClientError:
    """The error of a call, some attempt of which may have taken effect."""
    if unknown:
        error.outcome = "unknown"
    return error


def check_response(response: RemotingCommand) -> RemotingCommand:
    """The response itself if its code is success. Raises `RefusedError`."""
    if response.code != ResponseCode.SUCCESS:
        raise refusal(error_from_response(response.code, response.remark, response.ext))
    return response
