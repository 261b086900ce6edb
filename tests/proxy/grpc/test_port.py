"""The gRPC port under clients that break the protocol, send too much, send slowly, read nothing, or come in masses."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from contextlib import suppress

import pytest
from conftest import named, producer_settings, telling
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection.v1.reflection_grpc import ServerReflectionStub
from grpclib.reflection.v1.reflection_pb2 import ServerReflectionRequest
from h2.events import ConnectionTerminated, DataReceived, StreamEnded
from hyperframe.frame import GoAwayFrame
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import SECONDS, RawClient, message_frame

from dledger_proxy.grpc import transport
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_proxy.grpc.service import SERVICE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
async def proxy(start_proxy):
    return await start_proxy()


@pytest.fixture
async def raw(proxy):
    client = await RawClient.to(proxy)
    yield client
    client.close()


def is_end(event):
    return isinstance(event, StreamEnded)


async def until_counted(proxy, limit):
    async with asyncio.timeout(SECONDS):
        while not proxy.counters.limits[limit]:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.01)


async def still_serves(proxy, connect):
    """Ask something that needs no cluster."""
    answer = await connect(proxy).call("GetOffset")
    assert answer.status.code == pb.NOT_IMPLEMENTED


async def test_a_raw_request_is_answered(raw):
    raw.send(raw.request(), message_frame(), end=True)
    data = await raw.until(lambda event: isinstance(event, DataReceived))
    assert pb.GetOffsetResponse.FromString(data.data[5:]).status.code == pb.NOT_IMPLEMENTED


async def test_a_request_that_is_announced_as_too_large_is_refused_before_it_is_sent(raw, proxy, connect):
    raw.send(raw.request("SendMessage"), struct.pack(">?I", False, proxy.config.max_request_bytes + 1))
    assert await raw.until(is_end)
    assert proxy.counters.limits["max_request_bytes"] == 1
    await still_serves(proxy, connect)


async def test_a_request_whose_rest_does_not_come_ends_and_gives_its_memory_back(raw, proxy, connect, monkeypatch):
    monkeypatch.setattr(transport, "MESSAGE_TIMEOUT_S", 0.1)
    raw.send(raw.request("SendMessage"), struct.pack(">?I", False, 1_000) + b"begin")
    assert await raw.until(is_end)
    assert proxy.counters.limits["request_timeout"] == 1
    assert proxy.port._limits.memory.requests == 0
    await still_serves(proxy, connect)


async def test_a_request_beyond_the_memory_is_not_read_and_refused_after_a_while(start_proxy, monkeypatch):
    proxy = await start_proxy(max_message_bytes=1_000, max_requests_bytes=70_000)
    monkeypatch.setattr(transport, "MESSAGE_TIMEOUT_S", 0.1)
    memory = proxy.port._limits.memory
    await memory.acquire(60_000, asyncio.get_running_loop().time() + SECONDS)  # other requests are under way
    client = await RawClient.to(proxy)
    client.send(client.request("SendMessage"), struct.pack(">?I", False, 60_000) + b"x" * 10_000)
    assert await client.until(is_end)
    assert proxy.counters.limits["max_requests_bytes"] == 1
    assert memory.requests == 1
    memory.release(60_000)
    client.close()


async def test_requests_that_are_no_messages_end_with_a_status_and_no_traceback(raw, proxy, connect, caplog):
    for data in (message_frame(b"\xff\xff\xff"), struct.pack(">?I", True, 1) + b"x", message_frame(b"\x0a\x05ab")):
        stream = raw.request("SendMessage")
        raw.send(stream, data, end=True)
        assert await raw.until(lambda event, stream=stream: is_end(event) and event.stream_id == stream)
    assert not [record for record in caplog.records if record.name.startswith("dledger") and record.exc_info]
    await still_serves(proxy, connect)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_end_in_a_closed_connection_or_a_waiting_one_and_never_in_an_exception(garbage, after_preface):
    faults = []

    async def feed():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        from grpclib.server import Handler

        protocol = transport.BoundedProtocol(Handler({}, None, None, None), LIMITS, set())
        server, client = socket.socketpair()
        server.setblocking(False)
        made, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, server)
        protocol.data_received((PREFACE if after_preface else b"") + garbage)
        made.abort()
        client.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(feed())
    assert faults == []


LIMITS = transport.Limits(1_000, 10_000, lambda _: None)


async def test_a_client_that_breaks_http_2_is_told_so_and_closed(raw, proxy, connect):
    raw.writer.write(b"\x00\x00\x04\x08\x00\x00\x00\x00\x01\x00\x00\x00\x00")  # a window that grows by 0
    assert await raw.until(lambda event: isinstance(event, ConnectionTerminated))
    assert proxy.counters.limits["protocol_error"] == 1
    await still_serves(proxy, connect)


async def test_a_frame_of_an_unknown_kind_is_ignored(raw):
    raw.writer.write(b"\x00\x00\x01\xef\x00\x00\x00\x00\x00x")
    raw.send(raw.request(), message_frame(), end=True)
    assert await raw.until(is_end)


async def test_a_client_that_only_resets_is_disconnected(raw, proxy, monkeypatch):
    monkeypatch.setattr(transport, "MAX_RESETS", 5)
    for _ in range(7):
        raw.h2.reset_stream(raw.request())
        raw.flush()
    await until_counted(proxy, "max_resets")
    with suppress(ConnectionResetError):
        assert await raw.until(lambda _: False) is None


async def test_a_client_that_reads_nothing_is_disconnected(proxy, connect, monkeypatch):
    monkeypatch.setattr(transport, "UNREAD_TIMEOUT_S", 0.1)
    client = await RawClient.to(proxy)
    client.send(client.request(), message_frame(), end=True)
    assert await client.until(is_end)
    client.writer.transport.pause_reading()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    (connection,) = proxy.port._opened
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh"
    async with asyncio.timeout(SECONDS):
        while not proxy.counters.limits["unread_timeout"]:
            client.writer.write(ping * 1_000)
            await asyncio.sleep(0.01)
    client.close()
    await still_serves(proxy, connect)


async def test_a_client_that_reads_nothing_is_not_read_either(proxy):
    client = await RawClient.to(proxy)
    client.send(client.request(), message_frame(), end=True)
    assert await client.until(is_end)
    client.writer.transport.pause_reading()
    (connection,) = proxy.port._opened
    transport_here = connection._transport
    transport_here.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ping = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh"
    async with asyncio.timeout(SECONDS):
        while transport_here.is_reading():
            client.writer.write(ping * 1_000)
            await asyncio.sleep(0)
    held = transport_here.get_write_buffer_size()
    client.writer.write(ping * 1_000)
    await asyncio.sleep(0.05)
    assert transport_here.get_write_buffer_size() <= held
    client.close()


async def test_connections_beyond_the_limit_are_closed(start_proxy, connect):
    proxy = await start_proxy(max_connections=2)
    clients = [connect(proxy) for _ in range(2)]
    for client in clients:
        await client.call("GetOffset")
    extra = await RawClient.to(proxy)
    assert await extra.until(lambda _: False) is None
    await until_counted(proxy, "max_connections")
    extra.close()


async def test_clients_beyond_the_limit_are_refused(start_proxy, connect):
    proxy = await start_proxy(max_clients=1)
    async with telling(connect(proxy), producer_settings()), connect(proxy).telemetry() as stream:
        await stream.send_message(pb.TelemetryCommand(settings=producer_settings()))
        refused = await stream.recv_message()
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        await stream.end()
    assert proxy.counters.limits["max_clients"] == 1


async def test_streams_of_a_client_beyond_the_limit_are_refused(proxy, connect, monkeypatch):
    monkeypatch.setattr("dledger_proxy.grpc.clients.MAX_STREAMS_OF_CLIENT", 1)
    client = connect(proxy)
    async with telling(client, producer_settings()), client.telemetry() as stream:
        await stream.send_message(pb.TelemetryCommand(settings=producer_settings()))
        assert (await stream.recv_message()).status.code == pb.TOO_MANY_REQUESTS
        await stream.end()
    assert proxy.counters.limits["max_streams_of_client"] == 1


async def test_settings_beyond_the_limit_are_refused(proxy, connect):
    large = producer_settings(*(f"topic-{number:05}-{'x' * 80}" for number in range(1_000)))
    async with telling(connect(proxy), large) as stream:
        assert stream.settled.status.code == pb.BAD_REQUEST
        assert proxy.port._limits.memory.requests == 0  # although the stream stays open
    assert proxy.counters.limits["max_settings_bytes"] == 1


async def test_requests_beyond_the_limit_are_refused_and_the_others_go_on(start_proxy, connect):
    proxy = await start_proxy(max_requests=1)
    client = connect(proxy)
    fields = {"topic": named("t"), "endpoints": pb.Endpoints(addresses=[pb.Address(host="h", port=1)])}
    waiting = asyncio.ensure_future(client.call("QueryRoute", timeout=2, **fields))  # no name server is there
    async with asyncio.timeout(SECONDS):
        while not proxy.counters.under_way:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.01)
    refused = await client.call("QueryRoute", **fields)
    assert refused.status.code == pb.TOO_MANY_REQUESTS
    assert proxy.counters.limits["max_requests"] == 1
    assert await asyncio.gather(waiting, return_exceptions=True)


async def test_without_a_cluster_requests_fail_in_time_and_say_why(proxy, connect):
    fields = {"topic": named("t"), "endpoints": pb.Endpoints(addresses=[pb.Address(host="h", port=1)])}
    answer = await connect(proxy).call("QueryRoute", timeout=1.5, **fields)
    assert answer.status.code in (pb.PROXY_TIMEOUT, pb.TOPIC_NOT_FOUND)
    assert "127.0.0.1:1" in answer.status.message or "name server" in answer.status.message


async def test_health_and_reflection_answer_as_clouds_ask(proxy, connect):
    channel = connect(proxy).channel
    answer = await HealthStub(channel).Check(HealthCheckRequest())
    assert answer.status == HealthCheckResponse.SERVING
    (listed,) = await ServerReflectionStub(channel).ServerReflectionInfo([ServerReflectionRequest(list_services="")])
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    wanted = ServerReflectionRequest(file_containing_symbol=SERVICE)
    (described,) = await ServerReflectionStub(channel).ServerReflectionInfo([wanted])
    assert described.file_descriptor_response.file_descriptor_proto


async def test_a_drain_tells_clients_to_reconnect_and_answers_requests_under_way(proxy, raw):
    address, telemetry = proxy.port.address, raw.request("Telemetry")
    raw.send(telemetry, message_frame(pb.TelemetryCommand(settings=producer_settings()).SerializeToString()))
    assert (await command(raw, telemetry, 0)).HasField("settings")
    working = raw.request("SendMessage")  # its message comes later
    async with asyncio.timeout(SECONDS):
        while not proxy.counters.under_way:  # noqa: ASYNC110 - a counter has no event
            await asyncio.sleep(0.01)
    draining = asyncio.ensure_future(proxy.port.drain(SECONDS))
    assert (await command(raw, telemetry, 1)).HasField("reconnect_endpoints_command")
    raw.send(working, message_frame(), end=True)
    async with asyncio.timeout(SECONDS):
        await draining
    assert proxy.counters.answers["SendMessage", "MESSAGE_CORRUPTED"] == 1
    # h2's client takes no frames after a goodbye, so this one is looked for in the bytes
    goodbye = GoAwayFrame(0, last_stream_id=working, error_code=0).serialize()
    received = b""
    async with asyncio.timeout(SECONDS):
        while goodbye not in received:
            received += await raw.reader.read(1 << 16)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def command(raw, stream, number):
    """Return a command that came over a Telemetry stream."""

    def of_stream(event):
        return isinstance(event, DataReceived) and event.stream_id == stream

    await raw.until(lambda _: sum(map(of_stream, raw.events)) > number)
    data = [event.data for event in raw.events if of_stream(event)][number]
    return pb.TelemetryCommand.FromString(data[5:])


async def test_a_request_with_a_method_that_is_not_there_has_the_status_of_grpc(proxy, connect):
    client = connect(proxy)
    from grpclib.client import UnaryUnaryMethod

    made = UnaryUnaryMethod(client.channel, f"/{SERVICE}/Nothing", pb.GetOffsetRequest, pb.GetOffsetResponse)
    with pytest.raises(GRPCError) as refused:
        await made(pb.GetOffsetRequest())
    assert refused.value.status is Status.UNIMPLEMENTED


def test_what_is_used_of_grpclib_without_being_documented_is_there():
    """grpclib's next version may have other insides; then this names what is missing."""
    from grpclib import events, protocol, server
    from grpclib.config import Configuration

    assert {"processors", "streams"} <= vars(protocol.EventsProcessor(None, None)).keys()
    assert {"register", "process", "close"} <= vars(protocol.EventsProcessor).keys()
    assert {"create_stream", "flush", "initialize"} <= vars(protocol.Connection).keys()
    assert {"recv_data", "init_stream"} <= vars(protocol.Stream).keys()
    assert callable(events._DispatchServerEvents)
    assert callable(server.Handler)
    assert "_stream" in inspect.getsource(server.Stream.__init__)
    assert {"_keepalive_time", "_http2_max_pings_without_data"} <= Configuration.__dataclass_fields__.keys()
