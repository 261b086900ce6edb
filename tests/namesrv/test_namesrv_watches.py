"""Watches of routes, which a name server answers once there is something to see."""

from served_names import A, B, connected, serving

from dledger_remoting.headers import RouteWatchHeader


async def test_a_watch_waits_for_its_own_topics_only(server, client):
    await client.register()
    seen = int((await client.call(20001, RouteWatchHeader("T2", 0, 60_000))).ext["version"])
    watch = client.send(20001, RouteWatchHeader("T2,T3", seen, 60_000))
    async with connected(server) as other:
        await other.register(2, B)
        assert (await client.call(206)).code == 0, "the watch is not answered before this"
        await other.register(0, A, topics=("T1", "TBW102", "T3"))
    assert (await client.receive()).opaque == watch


async def test_a_watch_of_too_many_topics_does_not_wait(server, client):
    await client.register()
    version = server.table.version
    for topics, body in ((",".join(["topic"] * 50_000), b""), ("T1", bytes(300_000))):
        answer = await client.call(20001, RouteWatchHeader(topics, version, 60_000), body=body)
        assert (answer.code, "cannot wait here" in answer.remark) == (29, True)
    assert server.watch_count == 0


async def test_a_watch_ends_at_its_time_with_the_version_it_had(client):
    await client.register()
    seen = (await client.call(20001, RouteWatchHeader("T1", 0, 60_000))).ext["version"]
    assert (await client.call(20001, RouteWatchHeader("T1", int(seen), 10))).ext == {"version": seen}


async def test_a_version_of_another_server_is_answered_at_once(client):
    await client.register()
    answer = await client.call(20001, RouteWatchHeader("T1", 2**62, 60_000))
    assert int(answer.ext["version"]) < 2**62


async def test_a_stopping_server_answers_its_watches(tmp_path):
    async with serving(tmp_path) as server, connected(server) as client:
        await client.register()
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        watch = client.send(20001, RouteWatchHeader("T1", seen, 60_000))
        assert (await client.call(206)).code == 0
        await server.stop()
        assert (await client.receive()).opaque == watch
        assert await client.is_closed()


async def test_watches_that_wait_have_a_limit_in_sum(tmp_path):
    async with serving(tmp_path, max_watch_bytes=1024) as server, connected(server) as client:
        await client.register()
        topics = ",".join(["T1"] * 200)
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        watch = client.send(20001, RouteWatchHeader(topics, seen, 60_000))
        refused = await client.call(20001, RouteWatchHeader(topics, seen, 60_000))
        assert (refused.code, "max_watch_bytes is 1024" in refused.remark) == (2, True)
        assert server.counters.limits["max_watch_bytes"] == 1
        async with connected(server) as other:
            await other.register(2, B)
        assert (await client.receive()).opaque == watch
        assert server.watch_bytes == 0
        assert (await client.call(20001, RouteWatchHeader(topics, 0, 60_000))).code == 0
