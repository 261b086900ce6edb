"""Routes stay true without waiting for the poll, over name servers that fail."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import FakeNameServer, HandClock, fake_cluster, until

from dledger_client import ClientClosedError, InvalidArgumentError, NoNameServerError, NoRouteError
from dledger_client.core import ClientCore
from dledger_client.nameservers import parse_addresses
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import make_response


def soon() -> float:
    return asyncio.get_running_loop().time() + 60


async def test_a_route_change_arrives_by_the_watch_long_before_the_poll():
    async with fake_cluster() as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        core.start()
        try:
            assert len((await core.routes.get("T", soon())).readable) == 4
            await until(lambda: cluster.name_server.codes().count(RequestCode.DLEDGER_ROUTE_WATCH) >= 2)
            cluster.name_server.topics["T"] = 6
            cluster.name_server.changed()
            await until(lambda: len(core.routes.cached("T").readable) == 6)
        finally:
            await core.close()


async def test_many_new_topics_are_watched_together():
    names = [f"topic-{number}" for number in range(100)]
    async with fake_cluster(topics=dict.fromkeys(names, 1)) as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        with HandClock() as clock:
            core.start()
            try:
                for name in names:
                    await core.routes.get(name, soon())
                watches = [one for one in cluster.name_server.received if one.code == RequestCode.DLEDGER_ROUTE_WATCH]
                assert len(watches) <= 2
                clock.advance(0.25)
                await clock.until(
                    lambda: any(one.ext.get("topics", "").count(",") == 99 for one in cluster.name_server.received)
                )
            finally:
                await core.close()


async def test_a_watch_outlives_answers_that_no_number_can_be_read_from():
    async with fake_cluster() as cluster:
        texts = ["soon", "", "9" * 5000]

        def answer(command):
            response = make_response(command, 0, ext={"version": texts.pop(0)})
            if not texts:
                del cluster.name_server.on[RequestCode.DLEDGER_ROUTE_WATCH]
            return response

        cluster.name_server.on[RequestCode.DLEDGER_ROUTE_WATCH] = answer
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        core.start()
        try:
            await core.routes.get("T", soon())
            await until(lambda: cluster.name_server.codes().count(RequestCode.DLEDGER_ROUTE_WATCH) > 3)
        finally:
            await core.close()


async def test_a_name_server_without_route_watch_is_polled():
    async with fake_cluster() as cluster:
        cluster.name_server.has_watch = False
        core = ClientCore(cluster.namesrv, poll_seconds=30)
        core.start()
        try:
            with HandClock() as clock:
                await core.routes.get("T", soon())
                for queues in (6, 7, 8):
                    cluster.name_server.topics["T"] = queues
                    clock.advance(30)
                    await clock.until(lambda queues=queues: len(core.routes.cached("T").readable) == queues)
            assert cluster.name_server.codes().count(RequestCode.DLEDGER_ROUTE_WATCH) <= 4
        finally:
            await core.close()


async def test_a_topic_that_appears_later_is_found_by_the_watch():
    async with fake_cluster() as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        core.start()
        try:
            with pytest.raises(NoRouteError):
                await core.routes.get("later", soon())
            cluster.name_server.topics["later"] = 1
            cluster.name_server.changed()
            await until(lambda: core.routes.cached("later") is not None)
        finally:
            await core.close()


async def test_a_known_route_outlives_a_name_server_that_has_forgotten_it():
    async with fake_cluster() as cluster:
        core = ClientCore(cluster.namesrv, poll_seconds=3600)
        try:
            known = await core.routes.get("T", soon())
            cluster.name_server.topics.clear()
            assert await core.routes.refresh("T", soon()) == known
        finally:
            await core.close()


async def test_the_next_name_server_is_asked_when_one_fails():
    dead = FakeNameServer()
    await dead.start()
    await dead.stop()
    async with fake_cluster() as cluster:
        core = ClientCore([dead.address, cluster.namesrv])
        try:
            assert (await core.routes.get("T", soon())).topic == "T"
        finally:
            await core.close()


async def test_a_name_server_is_waited_for_until_the_deadline_of_the_call():
    async with fake_cluster() as cluster:
        await cluster.name_server.stop()
        core = ClientCore(cluster.namesrv)
        try:
            with HandClock() as clock:
                late = asyncio.create_task(core.routes.get("T", soon()))
                until_back = soon() - 50
                while asyncio.get_running_loop().time() < until_back:
                    clock.advance(0.05)
                    await asyncio.sleep(0)
                assert not late.done()
                in_vain = asyncio.create_task(core.routes.refresh("T", soon() - 59.9))
                clock.advance(0.2)
                with pytest.raises((NoNameServerError, NoRouteError)):
                    await in_vain
            await cluster.name_server.start()
            assert (await late).topic == "T"
        finally:
            await core.close()


async def test_callers_of_one_topic_share_one_look_up():
    async with fake_cluster() as cluster:
        core = ClientCore(cluster.namesrv)
        try:
            await asyncio.gather(*(core.routes.get("T", soon()) for _ in range(50)))
            assert cluster.name_server.codes() == [RequestCode.GET_ROUTEINFO_BY_TOPIC]
        finally:
            await core.close()


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1,b:2", " a:1 ; b:2 ;", ["a:1", "b:2"]])
def test_name_servers_may_be_written_in_every_usual_form(text):
    assert parse_addresses(text) == ("a:1", "b:2")


@pytest.mark.parametrize("text", ["", ";", "a", "a:", ":1", "a:b", "a:0", "a:70000"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidArgumentError):
        parse_addresses(text)


async def test_who_waits_for_a_route_is_told_that_the_client_is_closed():
    async with fake_cluster() as cluster:
        cluster.name_server.on[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: asyncio.Event().wait()
        core = ClientCore(cluster.namesrv)
        asking = asyncio.create_task(core.routes.get("T", soon()))
        await until(cluster.name_server.codes)
        await core.close()
        with pytest.raises(ClientClosedError):
            await asking
