"""A client that is gone takes no messages, and a front that stops drops no request."""

from __future__ import annotations

import asyncio

import pytest
from http_fronts import Started, raw_connection, serving
from waiting import until

from dledger_base.errors import ConfigError
from dledger_proxy.http import HttpFront, HttpKeys

TAIL = "/v1/topics/T/tail"


def receive(count: int) -> bytes:
    body = b'{"group": "G", "max": %d, "wait_seconds": 30}' % count
    head = b"POST /v1/topics/T/receive HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def test_a_client_that_leaves_while_it_waits_ends_the_wait():
    async with serving() as started:
        started.backend.gate = asyncio.Event()
        async with raw_connection(started.front) as (_, writer):
            writer.write(receive(1))
            await until(lambda: started.backend.waiting)
        await until(lambda: not started.backend.waiting)
        await until(lambda: started.metric("dledger_proxy_http_requests_total", operation="receive", status="0") == 1)


async def test_messages_of_a_client_that_left_before_they_were_written_go_back():
    async with serving() as started:
        started.backend.store()
        async with raw_connection(started.front) as (_, writer):
            started.backend.gate = asyncio.Event()
            writer.write(receive(1))
            await until(lambda: started.backend.waiting)
            writer.transport.abort()
            started.backend.gate.set()  # in the same turn of the loop: the front learns of both at once
        await until(lambda: started.metric("dledger_proxy_http_requests_total", operation="receive", status="0") == 1)
        assert len(started.backend.stored) + len(started.backend.put_back) == 1


async def test_a_client_that_leaves_a_tail_ends_it():
    async with serving() as started:
        async with raw_connection(started.front) as (reader, writer):
            writer.write(b"GET /v1/topics/T/tail HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readline()
        async with asyncio.timeout(10):
            await started.backend.tail_ended.wait()
        await until(lambda: started.metric("dledger_proxy_http_tails") == 0)


async def test_a_silent_tail_is_kept_open_by_comments():
    async with serving(HttpKeys(http_ping_interval_s=0.01)) as started, asyncio.timeout(10):
        async with started.caller.session.get(started.caller.url + TAIL) as response:
            lines = [await response.content.readline() for _ in range(9)]
        assert lines.count(b":\n") >= 2


async def stopping(started: Started) -> asyncio.Task[None]:
    task = asyncio.create_task(started.front.stop())
    await until(started.front._front.stopping.is_set)
    return task


async def test_a_stop_ends_waits_and_tails_and_lets_sends_finish():
    async with serving() as started:
        backend, caller = started.backend, started.caller
        tail = await caller.session.get(caller.url + TAIL)
        backend.gate = asyncio.Event()
        waiting = asyncio.create_task(caller.post("/v1/topics/T/receive", {"group": "G", "wait_seconds": 30}))
        sending = asyncio.create_task(caller.post("/v1/topics/T/messages", {"text": "x"}))
        await until(lambda: backend.waiting == 2)
        stop = await stopping(started)
        assert (await waiting).json == {"messages": []}
        async with asyncio.timeout(10):
            await tail.content.read()  # it ends
        assert not sending.done()
        backend.gate.set()
        assert (await sending).status == 200
        await stop


async def test_work_that_ends_in_the_moment_of_the_stop_is_not_dropped():
    async with serving() as started:

        async def take() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "messages"
            return "nothing"

        taking = asyncio.create_task(started.front._front.unless_stopped(take(), "default"))
        await asyncio.sleep(0)
        await started.front.stop()
        assert await taking == "messages"


async def test_a_stop_waits_no_longer_than_its_time_limit():
    async with serving(HttpKeys(http_drain_timeout_s=0.05)) as started:
        started.backend.gate = asyncio.Event()
        async with raw_connection(started.front) as (_, writer):
            writer.write(b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: started.backend.waiting)
            async with asyncio.timeout(10):
                await started.front.stop()
            assert not started.backend.waiting


async def test_a_port_that_is_in_use_is_named():
    async with serving() as started:
        second = HttpFront(HttpKeys(http_port=started.front.port), started.backend)
        with pytest.raises(ConfigError, match=r"http_port \d+: 127.0.0.1:\d+ is in use: stop what uses it"):
            await second.start()
