"""A name server's protocol over a socket, what bounds its clients, and what keeps it from starting."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from served_names import PATIENCE_S, connected, is_alone, serving

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.server import NameServer, StartError
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.headers import RouteWatchHeader


async def test_an_answer_that_no_frame_holds_is_an_error_and_the_connection_stays(server, client, monkeypatch):
    def handle(request, _):
        return make_response(request, 0, body=bytes(17 << 20 if request.code == 206 else 0))

    monkeypatch.setattr(server, "handle", handle)
    answer = await client.call(206)
    assert (answer.code, "larger than 16777216" in answer.remark) == (1, True)
    assert (await client.call(207)).code == 0


@pytest.mark.parametrize(("code", "name"), [(310, "SEND_MESSAGE_V2"), (9999, "unknown")])
async def test_a_code_that_is_not_served_is_named(client, code, name):
    answer = await client.call(code)
    assert answer.code == 3
    assert f"request type {code} ({name}) not supported" in answer.remark


async def test_a_missing_field_is_named_and_the_connection_stays(client):
    answer = await client.call(105)
    assert answer.code == 1
    assert "'topic'" in answer.remark
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
    await logged("event=connection_closed peer=127.0.0.1")
    assert (await client.call(206)).code == 0


async def test_a_frame_beyond_the_limit_closes_the_connection(tmp_path, logged):
    async with serving(tmp_path, max_frame_bytes=1024) as server, connected(server) as client:
        client.send(206, body=bytes(1024))
        assert await client.is_closed()
        await logged("larger than the limit of 1024")


async def test_requests_that_do_not_fully_arrive_are_bounded_in_sum_and_keep_nobody_out(tmp_path, logged):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20, "slow_sender_timeout_ms": 50}
    part = encode_command(RemotingCommand(206, body=bytes(3 << 20)))[: 2 << 20]
    async with serving(tmp_path, **options) as server, connected(server) as client, AsyncExitStack() as stack:
        for _ in range(20):
            stalled = await stack.enter_async_context(connected(server))
            stalled.writer.write(part)
        assert (await client.call(206, body=bytes(3 << 20))).code == 0
        await logged("that it lacks did not come within 0.05 s")
        assert (await client.call(206)).code == 0
        assert 0 < server.request_memory.held_bytes <= 8 << 20
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] > 0
        await stack.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while server.request_memory.held_bytes:
                await client.call(206)


async def test_many_large_requests_at_a_time_are_all_answered(tmp_path):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        answers = await asyncio.gather(*(client.call(206, body=bytes(3 << 20)) for client in clients))
        assert [answer.code for answer in answers] == [0] * len(clients)
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] == 0
        assert server.request_memory.held_bytes == 0


async def test_connections_of_one_host_have_a_limit_of_their_own_which_can_be_changed(server, client, logged):
    async with connected(server) as second:
        for one in (client, second):
            assert (await one.call(206)).code == 0
        assert (await client.call(318, body=b"max_connections_per_host=1")).code == 0
        async with connected(server) as third:
            assert await third.is_closed()
        await logged("reason='max_connections_per_host = 1 of this one are open' refused=1")
        assert (server.counters.limits["max_connections_per_host"], server.counters.limits["max_connections"]) == (1, 0)
        assert (await second.call(206)).code == 0, "those that are open stay"
    assert (await client.call(318, body=b"max_connections_per_host=2")).code == 0
    await is_alone(server)
    async with connected(server) as again:
        assert (await again.call(206)).code == 0


def test_as_many_clients_have_room_as_a_broker_takes():
    assert NameServerConfig().max_connections == 10_000


async def test_waiting_requests_beyond_the_limit_are_answered_with_2(tmp_path):
    async with serving(tmp_path, max_in_flight=2) as server, connected(server) as client:
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        for _ in range(2):
            client.send(20001, RouteWatchHeader("T1", seen, 60_000))
        answer = await client.call(20001, RouteWatchHeader("T1", seen, 60_000))
        assert answer.code == 2
        assert "max_in_flight" in answer.remark
        assert (await client.call(206)).code == 0


async def test_an_idle_connection_is_closed(tmp_path, logged):
    async with serving(tmp_path, idle_timeout_ms=20, scan_interval_ms=10) as server, connected(server) as client:
        assert await client.is_closed()
        await logged("idle for more than 20 ms")


async def test_a_client_that_never_reads_is_closed_and_others_are_served(tmp_path, logged):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 20}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(5000)])
        async with connected(server, limit=1) as sloth:
            for _ in range(500):
                sloth.send(206)
            await logged("left 1024 bytes unread for 20 ms")
        assert (await client.call(206)).code == 0


async def test_a_client_that_reads_late_but_in_time_gets_every_answer(tmp_path):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 60_000}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(2000)])
        async with connected(server) as slow:
            sent = [slow.send(206) for _ in range(300)]
            assert (await client.call(206)).code == 0
            assert [(await slow.receive()).opaque for _ in sent] == sent


async def test_a_host_that_cannot_be_is_named(tmp_path):
    with pytest.raises(StartError, match=r"^host = 'names\.\.example': no host has such a name; "):
        await NameServer(NameServerConfig(host="names..example", port=0, data=tmp_path)).start()


async def test_a_port_in_use_is_one_clear_error(server, tmp_path):
    with pytest.raises(StartError, match=f"127.0.0.1:{server.port} is already in use"):
        await NameServer(NameServerConfig(port=server.port, data=tmp_path / "other")).start()
    assert not (tmp_path / "other" / "pid").exists()


async def test_a_data_directory_serves_one_process_at_a_time(server, tmp_path):
    with pytest.raises(StartError, match=r"in use by process [0-9]+"):
        await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
    assert (tmp_path / "pid").exists()


async def test_listening_beyond_this_machine_is_warned_about(tmp_path, logged):
    async with serving(tmp_path, host="0.0.0.0"):
        await logged("event=no_access_control host=0.0.0.0")


async def test_a_stale_pid_file_does_no_harm(tmp_path):
    (tmp_path / "pid").write_text("1\n")
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(206)).code == 0
    assert not (tmp_path / "pid").exists()
