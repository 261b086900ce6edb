"""Routes stay current without waiting for the poll, with name servers that fail."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from client_fakes import FakeNameServer, HandClock, fake_cluster, until

from dledger_client import ClientClosedError, InvalidArgumentError, NoNameServerError, Producer
from dledger_client.cluster import routes as routes_module
from dledger_client.cluster.core import ClientCore
from dledger_client.cluster.nameservers import parse_addresses
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response


@asynccontextmanager
async def core_of(namesrv, *, starts=False, **options):
    core = ClientCore(namesrv, **options)
    if starts:
        core.start()
    try:
        yield core
    finally:
        await core.close()


def soon() -> float:
    return asyncio.get_running_loop().time() + 60


async def test_many_new_topics_are_watched_together():
    names = [f"topic-{number}" for number in range(100)]
    async with fake_cluster(topics=dict.fromkeys(names, 1)) as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        with HandClock() as clock:
            core.start()
            try:
                for name in names:
                    await core.routes.get(name, soon())
                watches = cluster.name_server.requests(RequestCode.DLEDGER_ROUTE_WATCH)
                assert len(watches) <= 2
                clock.advance(0.25)
                await clock.until(
                    lambda: any(one.ext.get("topics", "").count(",") == 99 for one in cluster.name_server.received)
                )
            finally:
                await core.close()


async def test_a_producer_forgets_topics_that_it_no_longer_sends_to(monkeypatch):
    names = [f"topic-{number}" for number in range(20)]
    async with (
        fake_cluster(topics=dict.fromkeys(names, 2)) as cluster,
        Producer(cluster.namesrv, group="PG") as producer,
    ):
        routes = producer._core.routes
        await routes.get("topic-0", soon())

        async def send(name: str) -> None:
            await asyncio.gather(*(producer.send(name, b"x", ordering_key="k") for _ in range(3)))
            await producer.send(name, b"x")

        for name in names[:-1]:
            await send(name)
        lanes = producer._deliveries._lanes
        assert (lanes._queue_lanes, lanes._route_lanes) == ({}, {})
        monkeypatch.setattr(routes_module, "UNUSED_SECONDS", 0.0)
        await send(names[-1])
        routes._last_used[names[-1]] += 60
        routes._forget_unused()
        kept = {names[0], names[-1]}
        assert routes._watched_topics & set(names) == routes._routes.keys() & set(names) == kept
        assert producer._deliveries.sender._next_turns.keys() & set(names) <= kept
        await send(names[5])


async def test_many_topics_are_split_over_several_route_watches():
    names = [f"topic-{number}" for number in range(300)]
    async with fake_cluster(topics=dict.fromkeys(names, 1)) as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        for name in names:
            await core.routes.get(name, soon())
        core.start()
        try:

            def watched():
                asked = (one for one in cluster.name_server.received if one.code == RequestCode.DLEDGER_ROUTE_WATCH)
                return [one.ext["topics"].split(",") for one in asked]

            await until(lambda: len(watched()) >= 3)
            first = watched()[:3]
            assert sorted(topic for topics in first for topic in topics) == sorted(names)
            assert [len(topics) for topics in sorted(first)] == [128, 128, 44]
            cluster.name_server.topics["topic-7"] = 6
            cluster.name_server.changed()
            await until(lambda: len(core.routes.cached("topic-7").readable) == 6)
        finally:
            await core.close()


async def test_a_route_watch_outlives_answers_with_invalid_versions(cluster):
    texts = ["soon", "", "9" * 5000]

    def answer(command):
        response = make_response(command, 0, ext={"version": texts.pop(0)})
        if not texts:
            del cluster.name_server.on[RequestCode.DLEDGER_ROUTE_WATCH]
        return response

    cluster.name_server.on[RequestCode.DLEDGER_ROUTE_WATCH] = answer
    async with core_of(cluster.namesrv, poll_seconds=3600, starts=True) as core:
        await core.routes.get("T", soon())
        await until(lambda: cluster.name_server.codes().count(RequestCode.DLEDGER_ROUTE_WATCH) > 3)


async def test_a_name_server_without_route_watch_is_polled(cluster):
    cluster.name_server.has_watch = False
    async with core_of(cluster.namesrv, poll_seconds=30, starts=True) as core:
        with HandClock() as clock:
            await core.routes.get("T", soon())
            for queues in (6, 7, 8):
                cluster.name_server.topics["T"] = queues
                clock.advance(30)
                await clock.until(lambda queues=queues: len(core.routes.cached("T").readable) == queues)
        assert cluster.name_server.codes().count(RequestCode.DLEDGER_ROUTE_WATCH) <= 4


async def test_a_known_route_outlives_a_name_server_that_has_forgotten_it(cluster):
    async with core_of(cluster.namesrv, poll_seconds=3600) as core:
        known = await core.routes.get("T", soon())
        cluster.name_server.topics.clear()
        assert await core.routes.refresh("T", soon()) == known


async def test_the_next_name_server_is_asked_when_one_fails(cluster):
    dead = FakeNameServer()
    await dead.start()
    await dead.stop()
    async with core_of([dead.address, cluster.namesrv]) as core:
        assert (await core.routes.get("T", soon())).topic == "T"


async def test_a_name_server_is_waited_for_until_the_deadline_of_the_call(cluster):
    await cluster.name_server.stop()
    async with core_of(cluster.namesrv) as core:
        with HandClock() as clock:
            late = asyncio.create_task(core.routes.get("T", soon()))
            until_back = soon() - 50
            while asyncio.get_running_loop().time() < until_back:
                clock.advance(0.05)
                await asyncio.sleep(0)
            assert not late.done()
            in_vain = asyncio.create_task(core.routes.refresh("T", soon() - 59.9))
            clock.advance(0.2)
            with pytest.raises(NoNameServerError, match="answered: none before the call's deadline"):
                await in_vain
        await cluster.name_server.start()
        assert (await late).topic == "T"


async def test_callers_of_one_topic_share_one_look_up(cluster):
    async with core_of(cluster.namesrv) as core:
        await asyncio.gather(*(core.routes.get("T", soon()) for _ in range(50)))
        assert cluster.name_server.codes() == [RequestCode.GET_ROUTEINFO_BY_TOPIC]


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1,b:2", " a:1 ; b:2 ;", ["a:1", "b:2"]])
def test_name_servers_may_be_written_in_every_usual_form(text):
    assert parse_addresses(text) == ("a:1", "b:2")


@pytest.mark.parametrize("text", ["", ";", "a", "a:", ":1", "a:b", "a:0", "a:70000"])
def test_invalid_addresses_are_refused(text):
    with pytest.raises(InvalidArgumentError):
        parse_addresses(text)


async def test_closing_the_client_ends_a_waiting_route_lookup(cluster):
    cluster.name_server.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: asyncio.Event().wait()
    core = ClientCore(cluster.namesrv)
    asking = asyncio.create_task(core.routes.get("T", soon()))
    await until(cluster.name_server.codes)
    await core.close()
    with pytest.raises(ClientClosedError):
        await asking
