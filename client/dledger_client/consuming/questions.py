"""Answers of a consumer to the requests that brokers pass to it.

Operators ask for its running state (code 307), or have it consume one message and return the result (code 309). A
broker whose group was reset has it move to other offsets (220), or asks for its present ones (221).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from dledger_remoting import running as names
from dledger_remoting.codes import ClientVersion, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import ConsumeDirectlyHeader, ConsumerRunningInfoHeader, decode_ext
from dledger_remoting.heartbeat import ConsumeType, SubscriptionData
from dledger_remoting.record import decode_record
from dledger_remoting.resets import ConsumerStatusHeader, ResetOffsetHeader, decode_reset, encode_status
from dledger_remoting.running import ConsumeResult, ProcessQueue, encode_result, encode_running
from dledger_remoting.topics import MessageQueue as NamedQueue

from ..cluster.connection import Connection
from ..cluster.surroundings import wall_ms
from ..errors import ConnectError
from ..messages import MessageQueue, ReceivedMessage, Settlement, received_message
from ..namespaces import Namespace
from .assignments import Assignments
from .fetcher import QueueFetcher, being_cancelled

logger = logging.getLogger(__name__)

QUESTION_CODES: Final = frozenset({RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY})
RESET_CODES: Final = frozenset({RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT})
Handle = Callable[[ReceivedMessage], Awaitable[object]]
MAX_AT_ONCE: Final = 16
"""Maximum number of messages that are consumed at the same time on operators' requests."""


def described(
    name_servers: Sequence[str], consume_type: ConsumeType, *, concurrency: int, in_order: bool
) -> dict[str, str]:
    """Return the properties of a consumer that starts now, under the names of Java's clients."""
    return {
        names.NAME_SERVERS: ";".join(name_servers),
        names.CONSUME_TYPE: str(consume_type),
        names.CONSUME_ORDERLY: str(in_order).lower(),
        names.POOL_SIZE: str(concurrency),
        names.CLIENT_VERSION: ClientVersion.V5_3_3.name,
        names.STARTED_AT: str(wall_ms()),
    }


class OperatorQuestions:
    """Answers operators' requests to one consumer.

    Messages consumed here are not part of its queues: it commits no offset for them and sends none back.
    """

    def __init__(
        self,
        consumer_group: str,
        namespace: Namespace,
        handler: Handle | None,
        fetchers: Callable[[], Sequence[QueueFetcher]],
        *,
        subscriptions: Sequence[SubscriptionData],
        properties: Mapping[str, str],
        in_order: bool,
        auto_ack: bool,
    ) -> None:
        self._group = consumer_group
        self._namespace = namespace
        self._handler = handler
        self._fetchers = fetchers
        self._subscriptions = subscriptions
        self._properties = properties
        self._in_order = in_order
        self._auto_ack = auto_ack
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, connection: Connection, command: RemotingCommand) -> None:
        """Answer a request with one of `QUESTION_CODES`. A message is consumed by a task."""
        try:
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                header = decode_ext(ConsumerRunningInfoHeader, command.ext)
                body = (
                    self._encode_running_info(with_stacks=header.jstack_enable)
                    if header.consumer_group == self._group
                    else None
                )
                self._answer(connection, command, body)
                return
            consume_header = decode_ext(ConsumeDirectlyHeader, command.ext)
            settlements: list[Settlement] = []
            message = self._decode_message(command, settlements)
        except RemotingError as error:
            self._refuse(connection, command, f"the request cannot be read: {error}")
            return
        if consume_header.consumer_group != self._group:
            self._answer(connection, command, None)
        elif self._handler is None:
            self._refuse(connection, command, "this consumer has no handler: its application asks for messages")
        elif len(self._tasks) >= MAX_AT_ONCE:
            self._refuse(connection, command, f"{MAX_AT_ONCE} messages are consumed at operators' wishes; ask later")
        else:
            logger.info("an operator has message %s of %s consumed", message.message_id, message.queue)
            work = self._consume(self._handler, message, settlements)
            task = asyncio.get_running_loop().create_task(self._consume_and_answer(work, connection, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the consumption of messages that operators have requested."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _decode_message(self, command: RemotingCommand, settlements: list[Settlement]) -> ReceivedMessage:
        """Return the message in a request. `settlements` gets the application's `ack` or `retry` of it."""
        record = decode_record(command.body)
        queue = MessageQueue(record.topic, command.ext.get("brokerName", ""), record.queue_id)
        return received_message(record, queue, lambda _, settlement: settlements.append(settlement), self._namespace)

    async def _consume_and_answer(
        self, work: Awaitable[tuple[ConsumeResult, str | None]], connection: Connection, command: RemotingCommand
    ) -> None:
        started_at = time.monotonic()
        result, remark = await work
        took_ms = round((time.monotonic() - started_at) * 1000)
        self._answer(connection, command, encode_result(result, remark, took_ms, in_order=self._in_order))

    async def _consume(
        self, handler: Handle, message: ReceivedMessage, settlements: Sequence[Settlement]
    ) -> tuple[ConsumeResult, str | None]:
        try:
            await handler(message)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as for messages of queues, this includes errors beyond `Exception`
            if being_cancelled():
                raise
            logger.exception("handler failed for message %s, which an operator had consumed", message.message_id)
            return ConsumeResult.RAISED, f"{type(error).__name__}: {error}"
        if settlements:
            return ConsumeResult.LATER if settlements[0].again else ConsumeResult.SUCCESS, None
        return ConsumeResult.SUCCESS if self._auto_ack else ConsumeResult.UNFINISHED, None

    def _encode_running_info(self, *, with_stacks: bool) -> bytes:
        fetchers = self._fetchers()
        queues = {
            NamedQueue(queue.broker_group, queue.queue_id, queue.topic): _describe_queue(fetcher)
            for fetcher in fetchers
            for queue in (fetcher.queue,)
        }
        queue_states = {str(fetcher.queue): "paused" for fetcher in fetchers if fetcher.paused}
        return encode_running(
            self._properties, self._subscriptions, queues, queue_states, _format_stacks() if with_stacks else None
        )

    def _answer(self, connection: Connection, command: RemotingCommand, body: bytes | None) -> None:
        if body is None:
            self._refuse(connection, command, f"this client has no consumer of that group, but one of {self._group}")
        else:
            _send_answer(connection, make_response(command, ResponseCode.SUCCESS, None, None, body))

    def _refuse(self, connection: Connection, command: RemotingCommand, why: str) -> None:
        _send_answer(connection, make_response(command, ResponseCode.SYSTEM_ERROR, why))


def _send_answer(connection: Connection, answer: RemotingCommand) -> None:
    try:
        connection.send_frame(encode_command(answer))
    except ConnectError as error:
        logger.debug("%s was not answered: %s", connection.address, error)


def _describe_queue(fetcher: QueueFetcher) -> ProcessQueue:
    progress, now = fetcher.progress, asyncio.get_running_loop().time()
    now_ms = wall_ms()

    def moment_ms(at: float) -> int:
        return now_ms - round((now - at) * 1000)

    return ProcessQueue(
        commit_offset=-1 if progress is None else progress.committable,
        cached_msg_min_offset=0 if progress is None else progress.committable,
        cached_msg_max_offset=0 if progress is None else max(progress.next_offset - 1, 0),
        cached_msg_count=0 if progress is None else progress.outstanding,
        cached_msg_size_in_mi_b=0 if progress is None else progress.outstanding_bytes >> 20,
        locked=False,
        last_lock_timestamp=0,
        last_pull_timestamp=moment_ms(fetcher.pulled_at),
        last_consume_timestamp=moment_ms(fetcher.waiting_since),
    )


def _format_stacks() -> str:
    """Return the stacks of every task of this event loop and of every other thread."""
    parts: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        frames = [line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)]
        parts.append(f"task {task.get_name()}\n{''.join(frames)}")
    for number, frame in sys._current_frames().items():  # noqa: SLF001 - documented, for exactly this
        parts.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def take_reset(connection: Connection, command: RemotingCommand, consumer_group: str, reading: Assignments) -> bool:
    """Obey a broker that has reset the group, or report the offsets to a broker that asks.

    Returns False if the request cannot be read.
    """
    try:
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if decode_ext(ResetOffsetHeader, command.ext).group == consumer_group:
                offsets = decode_reset(bytes(command.body))
                reading.reset({_convert_queue(queue): offset for queue, offset in offsets.items()})
            return True
        header = decode_ext(ConsumerStatusHeader, command.ext)
    except RemotingError as error:
        logger.warning("request %d of %s cannot be read: %s", command.code, connection.address, error)
        return False
    positions = {
        NamedQueue(queue.broker_group, queue.queue_id, queue.topic): offset
        for queue, offset in reading.positions().items()
        if queue.topic == header.topic and header.group == consumer_group
    }
    try:
        answer = make_response(command, ResponseCode.SUCCESS, None, None, encode_status(positions))
        connection.send_frame(encode_command(answer))
    except ConnectError as error:
        logger.debug("%s did not get the consumer's offsets: %s", connection.address, error)
    return True


def _convert_queue(queue: NamedQueue) -> MessageQueue:
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
