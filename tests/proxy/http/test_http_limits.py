"""Each limit of the front is reached, says what to do, is counted, and leaves the others their service."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import aiohttp
from http_fronts import JSON, Started, raw_connection, serving
from waiting import until

from dledger_proxy.http import HttpKeys

SEND, RECEIVE, TAIL = "/v1/topics/T/messages", "/v1/topics/T/receive", "/v1/topics/T/tail"
HEAD = b"POST /v1/topics/T/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def refused(started: Started, limit: str) -> float:
    return started.metric("dledger_proxy_http_refusals_total", limit=limit)


async def test_requests_beyond_their_number_are_busy_and_none_is_later():
    async with serving(HttpKeys(http_max_requests=2)) as started:
        started.backend.gate = asyncio.Event()
        waiting = [asyncio.create_task(started.caller.post(SEND, {"text": "x"})) for _ in range(2)]
        await until(lambda: started.backend.waiting == 2)
        assert started.metric("dledger_proxy_http_requests_under_way") == 2
        answer = await started.caller.post(SEND, {"text": "x"})
        assert (answer.status, answer.headers["Retry-After"], answer.json["outcome"]) == (429, "1", "not_stored")
        assert answer.json["detail"].startswith("http_max_requests = 2 requests are under way")
        assert refused(started, "http_max_requests") == 1
        started.backend.gate.set()
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200, 200]
        assert (await started.caller.post(SEND, {"text": "x"})).status == 200
        assert started.metric("dledger_proxy_http_requests_under_way") == 0


async def test_tails_beyond_their_number_are_busy_and_take_no_places_of_requests():
    async with serving(HttpKeys(http_max_tails=1, http_max_requests=1)) as started:
        async with started.caller.session.get(started.caller.url + TAIL) as tail:
            assert tail.status == 200
            assert (await started.caller.get(TAIL)).status == 429
            assert refused(started, "http_max_tails") == 1
            assert (await started.caller.get("/v1/topics")).status == 200
        await until(lambda: started.metric("dledger_proxy_http_tails") == 0)


async def test_a_body_that_is_too_large_is_refused_by_its_length_or_when_it_comes():
    async with serving(HttpKeys(http_max_body_bytes=2_000)) as started:
        large = json.dumps({"text": "x" * 3_000}).encode()
        assert (await started.caller.post(SEND, large)).status == 413

        async def pieces():
            yield large[:1_500]
            yield large[1_500:]

        async with started.caller.session.post(started.caller.url + SEND, data=pieces(), headers=JSON) as response:
            assert response.status == 413
            assert "at most 2000 bytes" in (await response.json(content_type=None))["detail"]
        async with raw_connection(started.front) as (reader, writer), asyncio.timeout(10):
            writer.write(HEAD + b"Content-Length: 10000000000\r\n\r\n")
            assert (await reader.readline()).split()[1] == b"413", "before any of it has come"
        assert started.backend.sent == []
        assert (await started.caller.post(SEND, {"text": "x" * 1_900})).status == 200


async def test_bodies_beyond_the_memory_for_all_are_busy():
    config = HttpKeys(http_max_body_bytes=2_000, http_max_bodies_bytes=3_000)
    async with serving(config) as started, raw_connection(started.front) as (_, slow):
        slow.write(HEAD + b"Content-Length: 1600\r\n\r\n" + b" " * 1_500)
        await until(lambda: started.metric("dledger_proxy_http_body_bytes") == 1_500)
        answer = await started.caller.post(SEND, {"text": "x" * 1_600})
        assert (answer.status, refused(started, "http_max_bodies_bytes")) == (429, 1)
        assert (await started.caller.post(SEND, {"text": "x" * 1_400})).status == 200
        slow.close()
        await until(lambda: started.metric("dledger_proxy_http_body_bytes") == 0)


async def test_a_body_that_comes_too_slowly_is_given_up():
    async with serving(HttpKeys(http_body_timeout_s=0.05)) as started:
        async with raw_connection(started.front) as (reader, writer), asyncio.timeout(10):
            writer.write(HEAD + b'Content-Length: 30\r\n\r\n{"text"')
            assert (await reader.readline()).split()[1] == b"408"
        assert started.backend.sent == []


async def test_a_head_that_comes_too_slowly_ends_its_connection():
    async with serving(HttpKeys(http_head_timeout_s=0.05)) as started, asyncio.timeout(10):
        async with raw_connection(started.front) as (reader, writer):
            writer.write(HEAD)
            assert await reader.read() == b""
        await until(lambda: started.metric("dledger_proxy_http_connections") == 0)


async def test_the_second_request_of_a_connection_has_the_same_time_limits():
    config = HttpKeys(http_head_timeout_s=0.05, http_idle_timeout_s=30)
    async with serving(config) as started, asyncio.timeout(10):
        async with raw_connection(started.front) as (reader, writer):
            writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"GET /v1/to")
            assert await reader.read() == b""


async def test_an_idle_connection_ends_and_one_with_a_request_does_not():
    async with serving(HttpKeys(http_idle_timeout_s=0.05)) as started, asyncio.timeout(10):
        async with raw_connection(started.front) as (reader, writer):
            started.backend.gate = asyncio.Event()
            writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: started.backend.waiting)
            await asyncio.sleep(0.15)  # the time limit passes while the request is under way
            started.backend.gate.set()
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"topics":["T"]}\n')


async def test_a_client_that_does_not_read_its_answer_ends_its_connection():
    async with serving(HttpKeys(http_reader_timeout_s=0.05)) as started, asyncio.timeout(20):
        for _ in range(4):
            started.backend.store(b"x" * 4_000_000)
        async with raw_connection(started.front) as (reader, writer):
            reader._transport.pause_reading()
            body = b'{"group": "G", "max": 4}'
            head = HEAD.replace(b"messages", b"receive")
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: started.backend.put_back)
        assert len(started.backend.put_back) == 4, "nobody has got them"
        await until(lambda: started.metric("dledger_proxy_http_connections") == 0)
        assert started.metric("dledger_proxy_http_requests_total", operation="receive", status="200") == 0


async def test_a_connection_whose_body_is_slow_gives_way_to_a_newer_one():
    async with serving(HttpKeys(http_max_connections=1)) as started, asyncio.timeout(10):
        async with raw_connection(started.front) as (reader, slow):
            slow.write(HEAD + b"Content-Length: 1600\r\n\r\n" + b" " * 1_500)
            await until(lambda: started.metric("dledger_proxy_http_body_bytes") == 1_500)
            assert (await started.caller.get("/v1/topics")).status == 200
            assert await reader.read() == b""
        await until(lambda: started.metric("dledger_proxy_http_body_bytes") == 0)


async def test_answers_beyond_the_memory_for_all_give_their_messages_back():
    async with serving(HttpKeys(http_max_answers_bytes=100_000)) as started, asyncio.timeout(20):
        started.backend.store(b"x" * 8_000_000)
        started.backend.store(b"y" * 1_000)
        body = b'{"group": "G"}'
        async with raw_connection(started.front) as (reader, writer):
            reader._transport.pause_reading()
            writer.write(HEAD.replace(b"messages", b"receive") + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await until(lambda: started.metric("dledger_proxy_http_answer_bytes") > 8_000_000)  # alone it has room
            assert (await started.caller.post(RECEIVE, {"group": "G"})).status == 429
            assert refused(started, "http_max_answers_bytes") == 1
            assert [message.body[:1] for message in started.backend.put_back] == [b"y"]
        await until(lambda: started.metric("dledger_proxy_http_answer_bytes") == 0)


async def test_connections_beyond_their_number_displace_idle_ones_and_never_a_request():
    async with serving(HttpKeys(http_max_connections=2)) as started, AsyncExitStack() as stack, asyncio.timeout(10):
        started.backend.gate = asyncio.Event()
        working = asyncio.create_task(started.caller.get("/v1/topics"))
        await until(lambda: started.backend.waiting)
        (first, idle) = await stack.enter_async_context(raw_connection(started.front))
        idle.write(b"GET")
        await until(lambda: started.metric("dledger_proxy_http_connections") == 2)
        async with aiohttp.ClientSession() as session:
            third = asyncio.create_task(session.get(started.caller.url + "/v1/topics"))
            await until(lambda: started.backend.waiting == 2)
            assert await first.read() == b"", "the idle connection has given way"
            (refused_reader, writer) = await stack.enter_async_context(raw_connection(started.front))
            writer.write(b"GET")
            try:
                assert await refused_reader.read() == b""
            except ConnectionResetError:
                pass
            assert refused(started, "http_max_connections") == 2
            started.backend.gate.set()
            assert ((await working).status, (await third).status) == (200, 200)
