"""A name server that clients fill has room for brokers, whose topics nobody finds otherwise."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from served_names import PATIENCE_S, A, B, Client, connected, is_alone, serving

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.places import within
from dledger_namesrv.server import NameServer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers import RouteHeader
from dledger_remoting.root_account import root_credentials
from tests.access_keys import KEY_FILE

TOPICS, ROUTE = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC


async def filled(server: NameServer, stack: AsyncExitStack, count: int) -> list[Client]:
    """So many clients, each of which has asked for something."""
    clients = [await stack.enter_async_context(connected(server)) for _ in range(count)]
    for client in clients:
        assert (await client.call(TOPICS)).code == 0
    return clients


async def silent(server: NameServer, stack: AsyncExitStack, host: str = "127.0.0.1") -> Client:
    """A connection that the server has, and that says nothing."""
    before = server.connection_count
    client = await stack.enter_async_context(connected(server, host=host))
    async with asyncio.timeout(PATIENCE_S):
        while server.connection_count <= before:  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.001)
    return client


async def test_a_broker_that_comes_back_finds_room_among_clients_that_were_faster(tmp_path, logged):
    """The only name server starts again, and more clients than it takes are there before a broker."""
    async with serving(tmp_path, max_connections=3) as server, AsyncExitStack() as stack:
        clients = await filled(server, stack, 3)
        for _ in range(5):
            refused = await stack.enter_async_context(connected(server))
            refused.send(ROUTE, RouteHeader("T1"))
            assert await refused.is_closed()
        await logged("reason='max_connections = 3 are open, and this one is no broker's' refused=1")
        assert server.counters.limits["max_connections"] == 5
        for number, address in enumerate((A, B)):
            broker = await stack.enter_async_context(connected(server))
            assert (await broker.register(number, address)).code == 0
            assert (await broker.register(number, address)).code == 0, "it stays"
        assert (await clients[0].call(ROUTE, RouteHeader("T1"))).code == 0
        assert server.connection_count == 5


async def test_who_says_nothing_makes_room_for_a_broker_and_brokers_for_nobody(tmp_path, logged):
    async with serving(tmp_path, max_connections=2) as server, AsyncExitStack() as stack:
        await filled(server, stack, 2)
        strangers = [await silent(server, stack) for _ in range(2)]
        for number, address in enumerate((A, B)):
            broker = await stack.enter_async_context(connected(server))
            assert (await broker.register(number, address)).code == 0
            assert await strangers[number].is_closed()
        await logged("and this one has not registered, and others want its place' refused=1")
        async with connected(server) as one_more:
            assert await one_more.is_closed(), "all places are taken"
        assert server.connection_count == 4
        assert server.counters.limits["max_connections"] == 3


async def test_a_host_that_floods_displaces_its_own_and_none_beyond_its_limit_displaces_anybody(tmp_path):
    options = {"max_connections": 3, "max_connections_per_host": 5}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        await filled(server, stack, 3)
        broker = await silent(server, stack, "127.0.0.2")
        flood = [await silent(server, stack) for _ in range(2)]
        async with connected(server) as beyond:
            assert await beyond.is_closed(), "it would be the sixth of its host"
        assert server.counters.limits["max_connections_per_host"] == 1
        assert server.counters.limits["max_connections"] == 0
        async with connected(server, host="127.0.0.3") as another:
            assert (await another.register(2, B)).code == 0
            assert await flood[0].is_closed()
            assert (await broker.register()).code == 0


async def test_a_registration_that_is_refused_keeps_no_place(tmp_path):
    options = {"max_connections": 1, "access_key_file": KEY_FILE}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        await filled(server, stack, 1)
        stranger = await stack.enter_async_context(connected(server))
        for _ in range(2):
            assert (await stranger.register()).code == ResponseCode.NO_PERMISSION, "it is answered while there is room"
        broker = await stack.enter_async_context(connected(server))
        broker.credentials = root_credentials(KEY_FILE)
        assert (await broker.register()).code == 0
        assert await stranger.is_closed()


async def test_a_client_stays_if_somebody_has_left_before_it_asks(tmp_path):
    async with serving(tmp_path, max_connections=1) as server, AsyncExitStack() as stack:
        (first,) = await filled(server, stack, 1)
        second = await silent(server, stack)
        first.writer.close()
        await is_alone(server)
        for _ in range(2):
            assert (await second.call(TOPICS)).code == 0
        async with connected(server) as third:
            third.send(TOPICS)
            assert await third.is_closed()


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
