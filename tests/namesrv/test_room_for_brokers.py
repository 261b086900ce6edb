"""A name server whose port is full of clients has room for brokers, whose topics would otherwise be unknown."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from served_names import PATIENCE_S, A, B, Client, connected, is_alone, serving

from dledger_base.access_keys import access_keys
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.places import within
from dledger_namesrv.server import NameServer
from dledger_remoting.accounts import root_credentials
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.headers import RouteHeader
from tests.access_keys import KEY_FILE

TOPICS, ROUTE = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC


async def filled(server: NameServer, stack: AsyncExitStack, count: int) -> list[Client]:
    """Connect clients, each of which has sent a request, and return them."""
    clients = [await stack.enter_async_context(connected(server)) for _ in range(count)]
    for client in clients:
        assert (await client.call(TOPICS)).code == 0
    return clients


async def is_refused(server: NameServer, code: int = 0, header: RouteHeader | None = None, *, flag: int = 0) -> bool:
    """Return whether a connection is closed that sends a request, or with flag 1 a response that answers nothing."""
    async with connected(server) as client:
        client.send(code, header, flag=flag)
        return await client.is_closed()


async def registers(server: NameServer, stack: AsyncExitStack, number: int, times: int = 1) -> None:
    """Let a broker connect and register."""
    broker = await stack.enter_async_context(connected(server))
    for _ in range(times):
        assert (await broker.register(number, (A, B)[number])).code == 0


async def silent(server: NameServer, stack: AsyncExitStack, host: str = "127.0.0.1") -> Client:
    """Open a connection that has sent no request, only a response that answers nothing."""
    before = server.connection_count
    client = await stack.enter_async_context(connected(server, host=host))
    client.send(0, flag=1)
    async with asyncio.timeout(PATIENCE_S):
        while server.connection_count <= before:  # noqa: ASYNC110 -- there is no event
            await asyncio.sleep(0.001)
    return client


async def test_a_returning_broker_finds_room_although_clients_fill_the_server(tmp_path, logged):
    """The only name server restarts, and more clients than it accepts arrive before a broker."""
    async with serving(tmp_path, max_connections=3) as server, AsyncExitStack() as stack:
        clients = await filled(server, stack, 3)
        for _ in range(5):
            assert await is_refused(server, ROUTE, RouteHeader("T1"))
        await logged("reason='max_connections = 3 are open, and this one is no broker's' refused=1")
        assert server.counters.limits["max_connections"] == 5
        for number in (0, 1):
            await registers(server, stack, number, times=2)
        assert (await clients[0].route()).code == 0
        assert server.connection_count == 5


async def test_silent_connections_make_room_for_brokers_and_brokers_for_no_client(tmp_path, logged):
    async with serving(tmp_path, max_connections=2) as server, AsyncExitStack() as stack:
        await filled(server, stack, 2)
        strangers = [await silent(server, stack) for _ in range(2)]
        for number in (0, 1):
            await registers(server, stack, number)
            assert await strangers[number].is_closed()
        await logged("and this one has not registered, and others want its place' refused=1")
        assert await is_refused(server, flag=1), "all places are taken"
        assert server.connection_count == 4
        assert server.counters.limits["max_connections"] == 3


async def test_a_flooding_host_displaces_only_its_own_connections(tmp_path):
    options = {"max_connections": 3, "max_connections_per_host": 5}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        await filled(server, stack, 3)
        broker = await silent(server, stack, "127.0.0.2")
        flood = [await silent(server, stack) for _ in range(2)]
        assert await is_refused(server, flag=1), "it would be the sixth of its host"
        assert server.counters.limits["max_connections_per_host"] == 1
        assert server.counters.limits["max_connections"] == 0
        async with connected(server, host="127.0.0.3") as another:
            assert (await another.register(2, B)).code == 0
            assert await flood[0].is_closed()
            assert (await broker.register()).code == 0


async def test_a_connection_with_a_refused_registration_gives_way_to_a_broker(tmp_path):
    options = {"max_connections": 1, "access_key_file": KEY_FILE}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        await filled(server, stack, 1)
        stranger = await stack.enter_async_context(connected(server))
        for _ in range(2):
            assert (await stranger.register()).code == ResponseCode.NO_PERMISSION, "it is answered while there is room"
        broker = await stack.enter_async_context(connected(server))
        broker.credentials = root_credentials(access_keys(KEY_FILE))
        assert (await broker.register()).code == 0
        assert await stranger.is_closed()


async def test_unfinished_requests_of_strangers_take_no_memory_from_a_broker(tmp_path):
    """They hold all of theirs for hours."""
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20, "slow_sender_timeout_ms": 3_600_000}
    part = encode_command(RemotingCommand(RequestCode.REGISTER_BROKER, body=bytes(3 << 20)))[: 2 << 20]
    async with serving(tmp_path, access_key_file=KEY_FILE, **options) as server, AsyncExitStack() as stack:
        for _ in range(8):
            stranger = await stack.enter_async_context(connected(server))
            stranger.writer.write(part)
        async with asyncio.timeout(PATIENCE_S):
            while not server.bounds.stranger_memory.is_tight:  # noqa: ASYNC110 -- there is no event
                await asyncio.sleep(0.001)
        broker = await stack.enter_async_context(connected(server))
        broker.credentials = root_credentials(access_keys(KEY_FILE))
        assert (await broker.register()).code == 0
        assert (await broker.call(RequestCode.REGISTER_BROKER, body=bytes(3 << 20))).code == ResponseCode.SYSTEM_ERROR
        assert (server.bounds.request_memory.held_bytes, server.bounds.request_memory.is_tight) == (0, False)
        assert 0 < server.bounds.stranger_memory.held_bytes <= 8 << 20


async def test_a_connection_that_has_signed_keeps_its_place_and_counts_for_no_host(tmp_path):
    options = {"max_connections": 1, "max_connections_per_host": 2, "access_key_file": KEY_FILE}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        await filled(server, stack, 1)
        broker = await stack.enter_async_context(connected(server))
        broker.credentials = root_credentials(access_keys(KEY_FILE))
        await broker.call(RequestCode.QUERY_DATA_VERSION)
        for _ in range(3):
            stranger = await stack.enter_async_context(connected(server))
            stranger.send(0, flag=1)
            assert await stranger.is_closed()
        assert (await broker.register()).code == 0
        limits = server.counters.limits
        assert (limits["max_connections"], limits["max_connections_per_host"]) == (3, 0)


async def test_a_waiting_client_stays_if_another_left_before_its_request(tmp_path):
    async with serving(tmp_path, max_connections=1) as server, AsyncExitStack() as stack:
        (first,) = await filled(server, stack, 1)
        second = await silent(server, stack)
        first.writer.close()
        await is_alone(server)
        for _ in range(2):
            assert (await second.call(TOPICS)).code == 0
        assert await is_refused(server, TOPICS)


@pytest.mark.parametrize(
    ("options", "places"),
    [({}, 1_024), ({"max_connections": 7}, 7), ({"max_nodes": 3}, 3), ({"max_connections": 1_000_000}, 1_024)],
)
def test_brokers_have_as_many_places_as_there_may_be_nodes_within_bounds(options, places):
    assert NameServerConfig(**options).broker_places == places


@pytest.mark.parametrize(
    ("room", "taken"), [(11_024, 10_000), (11_023, 9_999), (2_048, 1_024), (1_000, 500), (2, 1), (1, 1)]
)
def test_all_places_together_are_within_the_room_that_open_files_leave(room, taken):
    config = within(NameServerConfig(data=Path("unused")), room)
    assert config.max_connections == taken
    assert config.max_connections + config.broker_places <= max(room, 2)
