"""Watches of routes, which a name server answers once there is a change."""

import asyncio
import tracemalloc

from served_names import A, B, C, connected, serving

from dledger_namesrv import server as server_module
from dledger_namesrv import watch
from dledger_namesrv.table import RouteTable
from dledger_remoting.headers import RouteWatchHeader, TopicInClusterHeader


async def test_a_watch_waits_for_its_own_topics_only(server, client):
    await client.register()
    waits = client.watch("T2,T3", server.table.version)
    async with connected(server) as other:
        await other.register(2, B)
        assert (await client.call(206)).code == 0, "the watch is not answered before this"
        await other.register(0, A, topics=("T1", "TBW102", "T3"))
    assert (await client.receive()).opaque == waits


async def test_a_watch_of_too_many_topics_does_not_wait(server, client):
    await client.register()
    version = server.table.version
    for topics in (",".join(f"topic-{number}" for number in range(257)), ",".join(["x" * 200] * 200)):
        code, remark = await client.refusal(20001, RouteWatchHeader(topics, version, 60_000))
        assert (code, "cannot wait here" in remark) == (3, True), "clients of any version poll then"
    assert (await client.call(20001, RouteWatchHeader("T1", version, 60_000), body=bytes(300_000))).code == 29
    assert server.watch_count == 0


async def test_a_change_of_a_group_or_a_deletion_ends_the_watches_of_its_topics_alone(server, client):
    await client.register()
    await client.register(address=B, name="broker-1", topics=("T9", "TBW102"))
    watches = {topic: client.watch(topic, server.table.version) for topic in ("T1", "T9", "unknown")}
    assert (await client.call(206)).code == 0
    async with connected(server) as other:
        await other.register(1, C, name="broker-1", topics=("T9", "TBW102"))
        assert (await client.receive()).opaque == watches["T9"]
        assert server.watch_count == 2
        assert (await other.call(216, TopicInClusterHeader("T1"))).code == 0
    assert (await client.receive()).opaque == watches["T1"]
    assert server.watch_count == 1


async def test_a_change_wakes_all_affected_watches_and_no_others(server, client, monkeypatch):
    monkeypatch.setattr(watch, "WOKEN_PER_TURN", 2)
    monkeypatch.setattr(watch, "LOOKED_AT_PER_TURN", 3)
    await client.register()

    def wait(*topics):
        return asyncio.create_task(server._processors.watches.wait([*topics], server.table.version, 60.0))

    tasks = [wait(f"T{n}", "T1") for n in range(9)]
    twice, other = wait("T7", "T7"), wait("T9", "T8")
    await asyncio.sleep(0)
    await client.register(2, B)
    assert await asyncio.gather(*tasks) == [server.table.version] * 9
    assert (server.watch_count, other.done(), twice.done()) == (2, False, False)
    server._processors.watches.release()
    await asyncio.gather(other, twice)
    assert server.watch_bytes == 0


async def test_the_memory_of_route_watches_is_counted():
    watches = watch.RouteWatches(RouteTable(first_version=1))
    topics = [f"topic-{number}-{'x' * 100}" for number in range(256)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        own = ([*(topic + str(n) for topic in topics)] for n in range(20))
        tasks = [asyncio.create_task(watches.wait(one, 1, 60.0)) for one in own]
        await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.3 * watches.held_bytes < held < watches.held_bytes
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (watches.held_bytes, len(watches)) == (0, 0)


async def test_a_watch_ends_at_its_timeout_with_its_version_and_another_servers_version_at_once(client):
    await client.register()
    seen = (await client.call(20001, RouteWatchHeader("T1", 0, 60_000))).ext["version"]
    assert (await client.call(20001, RouteWatchHeader("T1", int(seen), 10))).ext == {"version": seen}
    assert (await client.call(20001, RouteWatchHeader("T1", 2**62, 60_000))).ext == {"version": seen}


async def test_a_stopping_server_answers_its_watches(tmp_path):
    async with serving(tmp_path) as server, connected(server) as client:
        await client.register()
        waits = client.watch("T1", server.table.version)
        assert (await client.call(206)).code == 0
        await server.stop()
        assert (await client.receive()).opaque == waits
        assert await client.is_closed()


async def test_watches_that_wait_have_a_limit_in_sum(tmp_path):
    async with serving(tmp_path, max_watch_bytes=6144) as server, connected(server) as client:
        await client.register()
        topics = ",".join(f"T{number}" for number in range(3))
        version = server.table.version
        waits = client.watch(topics, version)
        refused = await client.call(20001, RouteWatchHeader(topics, version, 60_000))
        assert (refused.code, "max_watch_bytes is 6144" in refused.remark) == (2, True)
        assert server.counters.limits["max_watch_bytes"] == 1
        async with connected(server) as other:
            await other.register(2, B)
        assert (await client.receive()).opaque == waits
        assert server.watch_bytes == 0
        assert (await client.call(20001, RouteWatchHeader(topics, 0, 60_000))).code == 0


async def test_a_quick_restart_behind_many_changes_takes_no_version_back(tmp_path, monkeypatch):
    """A server makes many versions within a moment, and restarts. Then a client asks with a version from before.

    If the new server had used that version too, the client would not learn of the changes below it.
    """
    moment_ns = 1_800_000_000_000_000_000
    monkeypatch.setattr(server_module.time, "time_ns", lambda: moment_ns)
    async with serving(tmp_path) as server, connected(server) as client:
        await client.register(topics=[f"T{number}" for number in range(5_000)])
        before = server.table.version
    moment_ns += 1_000_000
    async with serving(tmp_path) as server:
        assert server.table.version > before
