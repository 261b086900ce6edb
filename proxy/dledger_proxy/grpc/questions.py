"""Operators' questions to consumers of this proxy: their running state (307), and how they take one message (309).

Brokers ask the client that they know, which is the proxy. It passes the question on over the client's Telemetry stream,
as `print_thread_stack_trace_command` or `verify_message_command`, and the result back. Without a result in time the
question is answered with an error.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from dledger_client.cluster.connection import Connection
from dledger_client.consuming.questions import QUESTION_CODES, described
from dledger_client.errors import ConnectError
from dledger_client.messages import MessageQueue, received_message
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import ConsumeDirectlyHeader, ConsumerRunningInfoHeader, decode_ext
from dledger_remoting.heartbeat import ConsumeType
from dledger_remoting.record import decode_record
from dledger_remoting.running import ConsumeResult, encode_result, encode_running

from .callers import Caller
from .clients import Client, Clients
from .definition import messaging_pb2 as pb
from .incoming import incoming

ANSWER_SECONDS: Final = 3.0
"""Time limit in seconds for a client's result. Brokers wait about as long."""
MAX_AT_ONCE: Final = 64
"""Maximum number of questions that wait for a result."""

logger = logging.getLogger(__name__)


class Questions:
    """Passes questions on to `clients`. `name_servers` are shown as those of the consumers."""

    def __init__(self, clients: Clients, name_servers: str) -> None:
        self._clients = clients
        self._name_servers = name_servers
        self._waiting: dict[tuple[str, str], asyncio.Future[pb.TelemetryCommand]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, connection: Connection, command: RemotingCommand) -> bool:
        """Answer a broker's request if it is such a question. Returns whether it is."""
        if command.code not in QUESTION_CODES:
            return False
        task = asyncio.get_running_loop().create_task(self._answer(connection, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def on_result(self, caller: Caller, command: pb.TelemetryCommand) -> None:
        """Take a client's result. Results that nobody waits for are dropped."""
        result = command.thread_stack_trace if command.HasField("thread_stack_trace") else command.verify_message_result
        future = self._waiting.get((caller.client_id, result.nonce))
        if future is not None and not future.done():
            future.set_result(command)

    async def close(self) -> None:
        """End the questions that wait."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            body = await self._body(command)
        except (RemotingError, TimeoutError) as error:
            why = str(error) or f"the client gave no answer within {ANSWER_SECONDS:g} s"
            answer = make_response(command, ResponseCode.SYSTEM_ERROR, why)
        else:
            answer = make_response(command, ResponseCode.SUCCESS, None, None, body)
        try:
            connection.send_frame(encode_command(answer))
        except ConnectError as error:
            logger.debug("event=question_not_answered node=%s reason=%r", connection.address, str(error))

    async def _body(self, command: RemotingCommand) -> bytes:
        """Return the answer to a question. Raises `RemotingError` or TimeoutError."""
        if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            header = decode_ext(ConsumerRunningInfoHeader, command.ext)
            client = self._find(command.ext.get("clientId", ""), header.consumer_group)
            return await self._running_info(client, with_stacks=bool(header.jstack_enable))
        consume = decode_ext(ConsumeDirectlyHeader, command.ext)
        return await self._verify(self._find(command.ext.get("clientId", ""), consume.consumer_group), command)

    def _find(self, client_id: str, group: str) -> Client:
        client = self._clients.find(client_id)
        consumer = None if client is None or client.registration is None else client.registration.consumer
        if client is None or consumer is None or consumer.group_name != group:
            raise RemotingError(f"this proxy has no consumer {client_id!r} of group {group!r}")
        return client

    async def _running_info(self, client: Client, *, with_stacks: bool) -> bytes:
        stacks: str | None = None
        if with_stacks:
            nonce = secrets.token_hex(8)
            question = pb.PrintThreadStackTraceCommand(nonce=nonce)
            result = await self._result(client, nonce, pb.TelemetryCommand(print_thread_stack_trace_command=question))
            stacks = result.thread_stack_trace.thread_stack_trace
        assert client.registration is not None
        consumer = client.registration.consumer
        subscriptions = [] if consumer is None else consumer.subscription_data_set
        properties = described([self._name_servers], ConsumeType.POP, concurrency=0, in_order=False)
        return encode_running(properties, subscriptions, {}, {}, stacks)

    async def _verify(self, client: Client, command: RemotingCommand) -> bytes:
        record = decode_record(command.body)
        queue = MessageQueue(record.topic, command.ext.get("brokerName", ""), record.queue_id)
        message = incoming(pb.Resource(name=record.topic), received_message(record, queue))
        nonce, loop = secrets.token_hex(8), asyncio.get_running_loop()
        began = loop.time()
        question = pb.VerifyMessageCommand(nonce=nonce, message=message)
        result = await self._result(client, nonce, pb.TelemetryCommand(verify_message_command=question))
        is_done = result.status.code == pb.OK
        took_ms = round((loop.time() - began) * 1_000)
        remark = None if is_done else result.status.message
        outcome = ConsumeResult.SUCCESS if is_done else ConsumeResult.LATER
        return encode_result(outcome, remark, took_ms, in_order=False)

    async def _result(self, client: Client, nonce: str, question: pb.TelemetryCommand) -> pb.TelemetryCommand:
        """Return a client's result. Raises `RemotingError` if it cannot be asked, TimeoutError without a result."""
        if len(self._waiting) >= MAX_AT_ONCE:
            raise RemotingError(f"{MAX_AT_ONCE} questions wait at this proxy, its limit: ask later")
        key = (client.caller.client_id, nonce)
        future: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            if not any(channel.send(question) for channel in client.channels):
                raise RemotingError(f"client {client.caller.client_id} has no stream to this proxy now: ask later")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await future
        finally:
            del self._waiting[key]
