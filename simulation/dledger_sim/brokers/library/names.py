"""Name server of simulated client processes. It handles frames with requests for routes, watches and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.header_codec import decode_ext
from dledger_remoting.headers import RouteHeader, RouteWatchHeader
from dledger_remoting.route import encode_cluster_info, encode_route
from dledger_sim.brokers.library.wires import Pipe
from dledger_sim.brokers.name_server import NameServer
from dledger_sim.log.group import SimGroup

PORT: Final = 9876
LOOK_S: Final = 0.1
"""Interval at which the name server hears the nodes and checks watched routes, in seconds."""


class NameDesk:
    """Handler of the requests of all connections. All use one table of routes."""

    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self._names = NameServer(LOOK_S)
        self._watches: list[_Watch] = []
        self._is_check_scheduled = False

    def take(self, connection: NameConnection, command: RemotingCommand) -> None:
        """Answer a request, at once or when a watched route changes."""
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = self._names.route(self._group, decode_ext(RouteHeader, command.ext).topic)
            if route.queue_datas:
                connection.answer(make_response(command, ResponseCode.SUCCESS, body=encode_route(route, standard=True)))
            else:
                connection.answer(make_response(command, ResponseCode.TOPIC_NOT_EXIST, "no route"))
        elif command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            body = encode_cluster_info(self._names.cluster(self._group), standard=True)
            connection.answer(make_response(command, ResponseCode.SUCCESS, body=body))
        elif command.code == RequestCode.DLEDGER_ROUTE_WATCH:
            header = decode_ext(RouteWatchHeader, command.ext)
            until = self._group.scheduler.now + header.timeout_millis / 1000
            topics = header.topics.split(",")
            self._watches.append(_Watch(connection, command, topics, header.version, until))
            self._check_watches()
        else:
            connection.answer(make_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not simulated"))

    def _check_watches(self) -> None:
        version, now = self._names.version(self._group), self._group.scheduler.now
        for watch in list(self._watches):
            is_over = now >= watch.until or self._names.changed_since(watch.topics, watch.version)
            if is_over and watch.connection.is_open:
                answer = make_response(watch.command, ResponseCode.SUCCESS, ext={"version": str(version)})
                watch.connection.answer(answer)
            if is_over or not watch.connection.is_open:
                self._watches.remove(watch)
        if self._watches and not self._is_check_scheduled:
            self._is_check_scheduled = True
            self._group.scheduler.after(LOOK_S, self._check_again)

    def _check_again(self) -> None:
        self._is_check_scheduled = False
        self._check_watches()


class _Watch:
    """Request of a client that waits for a change of routes."""

    __slots__ = ("command", "connection", "topics", "until", "version")

    def __init__(
        self, connection: NameConnection, command: RemotingCommand, topics: list[str], version: int, until: float
    ) -> None:
        self.connection = connection
        self.command = command
        self.topics = topics
        self.version = version
        self.until = until


class NameConnection:
    """Connection to the name server. It implements `dledger_sim.brokers.library.wires.Peer`."""

    def __init__(
        self,
        group: SimGroup,
        desk: NameDesk,
        random: Random,
        deliver: Callable[[bytes | None], None],
        is_cut: Callable[[], bool],
    ) -> None:
        self._desk = desk
        self._decoder = FrameDecoder()
        self.is_open = True
        at = group.scheduler.at
        self._to_server = Pipe(group.scheduler, random, at, self._read_piece, is_cut)
        self._to_client = Pipe(group.scheduler, random, at, deliver, is_cut)

    def feed(self, data: bytes) -> None:
        """Send bytes to the name server."""
        self._to_server.send(data)

    def leave(self) -> None:
        """Hang up."""
        self._to_server.hang_up()

    def answer(self, command: RemotingCommand) -> None:
        """Send an answer."""
        self._to_client.send(encode_command(command))

    def _read_piece(self, piece: bytes | None) -> None:
        if piece is None:
            self.is_open = False
            return
        self._decoder.receive_data(piece)
        while (frame := self._decoder.next_frame()) is not None:
            self._desk.take(self, decode_command(frame))
