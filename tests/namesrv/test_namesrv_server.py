"""A name server's protocol over a socket, the limits of its clients, and the errors that prevent its start."""

import asyncio
import gc
import logging
from contextlib import AsyncExitStack

import pytest
from served_names import PATIENCE_S, connected, is_alone, serving

from dledger_base.request_turns import RequestTurns
from dledger_base.telling import LINES_OF_CLIENTS
from dledger_namesrv import processors
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.server import NameServer, StartError
from dledger_namesrv.table import RouteTable
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.errors import SystemBusy
from dledger_remoting.frame import join_frame
from dledger_remoting.headers import RouteWatchHeader


async def test_an_answer_that_no_frame_holds_is_an_error_and_the_connection_stays(server, client, monkeypatch):
    def handle(request, _):
        return make_response(request, 0, body=bytes(17 << 20 if request.code == 206 else 0))

    monkeypatch.setattr(server, "handle", handle)
    code, remark = await client.refusal(206)
    assert (code, "larger than 16777216" in remark) == (1, True)
    assert (await client.call(207)).code == 0


@pytest.mark.parametrize(
    ("code", "expected", "text"),
    [
        (310, 3, "request type 310 (SEND_MESSAGE_V2) not supported"),
        (9999, 3, "request type 9999 (unknown) not supported"),
        (105, 1, "'topic'"),
    ],
    ids=["not served", "unknown", "missing field"],
)
async def test_a_refused_request_says_what_is_wrong_and_its_connection_stays(client, code, expected, text):
    answered, remark = await client.refusal(code)
    assert (answered, text in remark) == (expected, True)
    assert (await client.call(206)).code == 0


async def test_an_answer_uses_the_serializer_of_its_request(client):
    answer = await client.call(206, serialize_type=1)
    assert (answer.code, answer.serialize_type) == (0, 1)


async def test_oneway_requests_and_responses_get_no_answer(client):
    client.send(206, flag=FLAG_ONEWAY)
    client.send(206, flag=1)
    assert (await client.call(206)).code == 0


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1xxxx", b"\0\0\0\6\0\0\0\2xx", b"\0\0\0\4\2\0\0\0"]
)
async def test_garbage_closes_its_connection_and_no_other(server, client, garbage, logged):
    async with connected(server) as vandal:
        vandal.writer.write(garbage)
        assert await vandal.is_closed()
    await logged("event=connection_closed client=127.0.0.1")
    assert (await client.call(206)).code == 0


async def test_broken_frames_without_end_are_few_lines_in_the_log(server, caplog):
    caplog.set_level(logging.INFO)
    for number in range(60):
        async with connected(server) as vandal:
            vandal.writer.write(((64 << 20) + number).to_bytes(4, "big") + bytes(4))
            assert await vandal.is_closed()
    assert server.counters.frames_refused == 60
    assert caplog.text.count("event=connection_closed") == LINES_OF_CLIENTS


async def test_a_frame_beyond_the_limit_closes_the_connection(tmp_path, logged):
    async with serving(tmp_path, max_frame_bytes=1024) as server, connected(server) as client:
        client.send(206, body=bytes(1024))
        assert await client.is_closed()
        await logged("larger than the limit of 1024")


async def test_incomplete_requests_are_limited_in_sum_and_block_no_client(tmp_path, logged):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20, "slow_sender_timeout_ms": 50}
    part = encode_command(RemotingCommand(206, body=bytes(3 << 20)))[: 2 << 20]
    async with serving(tmp_path, **options) as server, connected(server) as client, AsyncExitStack() as stack:
        for _ in range(20):
            stalled = await stack.enter_async_context(connected(server))
            stalled.writer.write(part)
        assert (await client.call(206, body=bytes(3 << 20))).code == 29, "it has come, and is too large for this code"
        await logged("that it lacks did not come within 0.05 s")
        assert (await client.call(206)).code == 0
        assert 0 < server.bounds.request_memory.held_bytes <= 8 << 20
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] > 0
        await stack.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while server.bounds.request_memory.held_bytes:
                await client.call(206)


async def test_many_large_requests_at_a_time_are_all_answered(tmp_path):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        answers = await asyncio.gather(*(client.call(206, body=bytes(3 << 20)) for client in clients))
        assert [answer.code for answer in answers] == [29] * len(clients), "they have arrived"
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] == 0
        assert server.bounds.request_memory.held_bytes == 0


async def test_connections_of_one_host_have_a_limit_of_their_own_which_can_be_changed(server, client, logged):
    async with connected(server) as second:
        for one in (client, second):
            assert (await one.call(206)).code == 0
        assert (await client.call(318, body=b"max_connections_per_host=1")).code == 0
        async with connected(server) as third:
            third.send(206)
            assert await third.is_closed()
        await logged("reason='max_connections_per_host = 1 of this one are open' refused=1")
        assert (server.counters.limits["max_connections_per_host"], server.counters.limits["max_connections"]) == (1, 0)
        assert (await second.call(206)).code == 0, "those that are open stay"
    assert (await client.call(318, body=b"max_connections_per_host=2")).code == 0
    await is_alone(server)
    async with connected(server) as again:
        assert (await again.call(206)).code == 0


async def test_waiting_requests_beyond_the_limit_are_answered_with_2(tmp_path):
    async with serving(tmp_path, max_in_flight=2) as server, connected(server) as client:
        for _ in range(2):
            client.watch("T1", server.table.version)
        code, remark = await client.refusal(20001, RouteWatchHeader("T1", server.table.version, 60_000))
        assert (code, "max_in_flight" in remark) == (2, True)
        assert (await client.call(206)).code == 0


async def test_a_connection_lost_before_its_answer_leaves_no_coroutine(server, client):
    """For `pytest`, a coroutine that is never awaited is an error."""
    await client.call(206)
    (connection,) = server._connections
    watch = encode_command(RemotingCommand(20001, ext={"topics": "T1", "version": "1", "timeoutMillis": "60000"}))
    connection.data_received(join_frame(watch) if isinstance(watch, tuple) else watch)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    gc.collect()


async def test_requests_that_wait_for_a_turn_count_as_memory(server, client, monkeypatch):
    await client.call(206)
    (connection,) = server._connections
    request = encode_command(RemotingCommand(206, flag=FLAG_ONEWAY))
    has_time = iter((True, True, False))
    with monkeypatch.context() as patched:
        patched.setattr(RequestTurns, "has_time", property(lambda _: next(has_time)))
        connection.data_received(request * 100)
        assert server.bounds.request_memory.held_bytes == 98 * len(request)
    assert (await client.call(206)).code == 0
    assert server.bounds.request_memory.held_bytes == 0


async def test_a_client_that_never_reads_is_closed_and_others_are_served(tmp_path, logged):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 20}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(5000)])
        async with connected(server, limit=1) as sloth:
            for _ in range(500):
                sloth.send(206)
            await logged("left 1024 bytes of answers unread for 20 ms")
        assert server.counters.limits["slow_reader_timeout_ms"] == 1
        assert server.counters.limits["max_write_buffer_bytes"] >= 1
        assert (await client.call(206)).code == 0


async def test_a_client_that_reads_late_but_in_time_gets_every_answer(tmp_path):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 60_000}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(2000)])
        async with connected(server) as slow:
            sent = [slow.send(206) for _ in range(300)]
            assert (await client.call(206)).code == 0
            assert [(await slow.receive()).opaque for _ in sent] == sent


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"host": "names..example"}, r"^host = 'names\.\.example': no host has such a name; "),
        ({"port": "taken"}, "127.0.0.1:[0-9]+ is already in use"),
        ({"data": "taken"}, r"in use by process [0-9]+"),
    ],
    ids=["host", "port", "data directory"],
)
async def test_a_name_server_that_cannot_start_says_why_and_leaves_nothing(server, tmp_path, options, text):
    config = {"port": 0, "data": tmp_path / "other"} | options
    if options.get("port"):
        config["port"] = server.port
    if options.get("data"):
        config["data"] = tmp_path
    with pytest.raises(StartError, match=text):
        await NameServer(NameServerConfig(**config)).start()
    assert not (tmp_path / "other" / "pid").exists()
    assert (tmp_path / "pid").exists()


async def test_listening_beyond_this_machine_is_warned_about(tmp_path, logged):
    async with serving(tmp_path, host="0.0.0.0"):
        await logged("event=no_access_control host=0.0.0.0")


@pytest.mark.parametrize("serialize_type", [0, 1])
async def test_a_header_beyond_the_limits_is_answered_and_not_decoded(server, client, serialize_type):
    for code, expected in ((105, 13), (20001, 3)):
        watch = RouteWatchHeader(",".join(["topic"] * 60_000), 0, 60_000)
        code, remark = await client.refusal(code, watch, serialize_type=serialize_type)
        assert (code, "the limit is 262144" in remark) == (expected, True)
    assert server.counters.headers_refused == 2
    client.writer.write(join_frame(0, b'{"extFields":{' + b'"a":"",' * 300 + b'"b":""}}'))
    assert await client.is_closed()


async def test_lists_of_many_topics_are_made_one_at_a_time_and_their_requests_are_not_held(server, client, monkeypatch):
    """Everybody may ask for lists, and a list holds the names of all topics while it is made."""
    await client.register()
    monkeypatch.setattr(processors, "MAX_WAITING_LISTS", 30)
    monkeypatch.setattr(RouteTable, "is_small", False)
    topics, under_way, most = server.table.routes.topics, 0, 0

    def counted(*, include_absent):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        yield
        names = yield from topics(include_absent=include_absent)
        under_way -= 1
        return names

    monkeypatch.setattr(server.table.routes, "topics", counted)
    requests = [RemotingCommand(206, number, ext={"x": "y" * 9}, body=b"z" * 9) for number in range(40)]
    answers = [asyncio.create_task(server._processors.handle(request, 1)) for request in requests]
    answered = await asyncio.gather(*answers, return_exceptions=True)
    assert most == 1
    assert [(request.ext, request.body) for request in requests] == [({}, b"")] * 40
    assert [isinstance(answer, SystemBusy) for answer in answered] == [False] * 30 + [True] * 10
    assert {answer.body for answer in answered[:30]} == {b'{"topicList":["T1","TBW102"]}'}
