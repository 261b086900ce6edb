"""Lookups of topic routes: the first name server that answers is used, and waiting requests are answered soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dledger.environment import AsyncioEnvironment
from dledger_broker.addresses import Address
from dledger_broker.frontend import route_lookups
from dledger_broker.frontend.route_lookups import RouteLookups
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.route import QueueData, TopicRouteData, encode_route

ROUTE = TopicRouteData([QueueData("broker-a", 4, 4, 6), QueueData("broker-b", 2, 2, 6)])


class NameServer:
    """Name server that answers 105 with `answer`, a code and a body, or says nothing while `answer` is None."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: tuple[int, bytes] | None = (ResponseCode.SUCCESS, encode_route(ROUTE, standard=True))
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address("127.0.0.1", self.server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            decoder.receive_data(data)
            while (frame := decoder.next_frame()) is not None:
                request = decode_command(frame)
                assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
                self.asked.append(request.ext["topic"])
                if self.answer is not None:
                    code, body = self.answer
                    writer.write(encode_command(make_response(request, code, "", body=body)))


Servers = list[NameServer]


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    servers = [NameServer(), NameServer()]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        server.stop()


@pytest_asyncio.fixture
async def lookups(servers: Servers) -> AsyncIterator[RouteLookups]:
    lookups = RouteLookups(AsyncioEnvironment(asyncio.get_running_loop()), [server.address for server in servers])
    yield lookups
    await lookups.stop()


async def find(lookups: RouteLookups, topic: str = "T1") -> TopicRouteData | None:
    found: asyncio.Future[TopicRouteData | None] = asyncio.get_running_loop().create_future()
    lookups.find(topic, found.set_result)
    async with asyncio.timeout(10):
        return await found


async def test_concurrent_lookups_ask_once_and_the_route_is_reused(lookups: RouteLookups, servers: Servers) -> None:
    assert await asyncio.gather(*(find(lookups) for _ in range(5))) == [ROUTE] * 5
    assert await find(lookups) == ROUTE
    assert [server.asked for server in servers] == [["T1"], []]


async def test_an_expired_route_is_asked_for_again_and_an_unavailable_one_is_the_last_known_or_unknown(
    lookups: RouteLookups, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_lookups, "REUSE_S", 0.0)
    assert await find(lookups) == ROUTE
    answers = servers[0].answer
    servers[0].answer = (ResponseCode.TOPIC_NOT_EXIST, b"")
    assert await find(lookups) == TopicRouteData()
    servers[0].answer = answers
    assert await find(lookups) == ROUTE
    servers[0].answer = (ResponseCode.SUCCESS, b"no route")
    servers[1].stop()
    assert await asyncio.gather(find(lookups), find(lookups, "T2")) == [ROUTE, None]


async def test_a_hanging_or_refusing_name_server_is_skipped(lookups: RouteLookups, servers: Servers) -> None:
    servers[0].answer = None
    assert await find(lookups) == ROUTE
    servers[1].answer = (ResponseCode.SYSTEM_ERROR, b"")
    servers[0].answer = (ResponseCode.SUCCESS, encode_route(TopicRouteData(), standard=True))
    assert await find(lookups, "T2") == TopicRouteData()


async def test_route_lookups_end_before_clients_give_up(
    lookups: RouteLookups, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_lookups, "ANSWER_S", 3_600.0)
    for server in servers:
        server.answer = None
    assert await asyncio.gather(*(find(lookups, f"T{number}") for number in range(3))) == [None] * 3
    assert route_lookups.FIND_S < 1


async def test_waiting_route_lookups_are_answered_when_the_node_stops(lookups: RouteLookups, servers: Servers) -> None:
    servers[0].answer = None
    waiting = asyncio.ensure_future(find(lookups))
    await asyncio.sleep(0)
    await lookups.stop()
    assert await waiting is None


async def test_the_least_recently_used_routes_are_forgotten(
    lookups: RouteLookups, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_lookups, "MAX_KEPT", 1)
    for topic in ("T1", "T2", "T2", "T1"):
        await find(lookups, topic)
    assert servers[0].asked == ["T1", "T2", "T1"]


async def test_without_name_servers_there_are_no_other_groups() -> None:
    lookups = RouteLookups(AsyncioEnvironment(asyncio.get_running_loop()), [])
    assert await find(lookups) == TopicRouteData()
    await lookups.stop()
