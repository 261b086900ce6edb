"""Answers of a consumer to operators: what it is doing (307), what came of a message it was told to consume (309)."""

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
from dledger_remoting.running import ConsumeResult, ProcessQueue, encode_result, encode_running
from dledger_remoting.topics import MessageQueue as NamedQueue

from .connection import Connection
from .errors import ConnectError
from .fetcher import QueueFetcher, being_cancelled
from .messages import MessageQueue, ReceivedMessage, Settlement, received_message
from .namespaces import Namespace

logger = logging.getLogger(__name__)

QUESTION_CODES: Final = frozenset({RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY})
Handle = Callable[[ReceivedMessage], Awaitable[object]]
MAX_AT_ONCE: Final = 16
"""Messages that are consumed at the same time because operators asked for it."""


def described(
    name_servers: Sequence[str], consume_type: ConsumeType, *, concurrency: int, in_order: bool
) -> dict[str, str]:
    """What a consumer that starts now tells of itself, under the names of Java's clients."""
    return {
        names.NAME_SERVERS: ";".join(name_servers),
        names.CONSUME_TYPE: str(consume_type),
        names.CONSUME_ORDERLY: str(in_order).lower(),
        names.POOL_SIZE: str(concurrency),
        names.CLIENT_VERSION: ClientVersion.V5_3_3.name,
        names.STARTED_AT: str(time.time_ns() // 1_000_000),
    }


class OperatorQuestions:
    """Answers for one consumer. What it consumes here is outside of its queues: nothing is committed or sent back."""

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
        """Answer one of `QUESTION_CODES`; a message is consumed by a task."""
        try:
            if command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                asked = decode_ext(ConsumerRunningInfoHeader, command.ext)
                body = self._running(with_stacks=asked.jstack_enable) if asked.consumer_group == self._group else None
                self._answer(connection, command, body)
                return
            wish = decode_ext(ConsumeDirectlyHeader, command.ext)
            settled: list[Settlement] = []
            message = self._message(command, settled)
        except RemotingError as error:
            self._refuse(connection, command, f"the request cannot be read: {error}")
            return
        if wish.consumer_group != self._group:
            self._answer(connection, command, None)
        elif self._handler is None:
            self._refuse(connection, command, "this consumer has no handler: its application asks for messages")
        elif len(self._tasks) >= MAX_AT_ONCE:
            self._refuse(connection, command, f"{MAX_AT_ONCE} messages are consumed at operators' wishes; ask later")
        else:
            logger.info("an operator has message %s of %s consumed", message.message_id, message.queue)
            work = self._consume(self._handler, message, settled)
            task = asyncio.get_running_loop().create_task(self._consume_and_tell(work, connection, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is being consumed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _message(self, command: RemotingCommand, settled: list[Settlement]) -> ReceivedMessage:
        """The message in a request; what its handler makes of it goes into `settled`."""
        record = decode_record(command.body)
        queue = MessageQueue(record.topic, command.ext.get("brokerName", ""), record.queue_id)
        return received_message(record, queue, lambda _, settlement: settled.append(settlement), self._namespace)

    async def _consume_and_tell(
        self, work: Awaitable[tuple[ConsumeResult, str | None]], connection: Connection, command: RemotingCommand
    ) -> None:
        began = time.monotonic()
        result, remark = await work
        took_ms = round((time.monotonic() - began) * 1000)
        self._answer(connection, command, encode_result(result, remark, took_ms, in_order=self._in_order))

    async def _consume(
        self, handler: Handle, message: ReceivedMessage, settled: Sequence[Settlement]
    ) -> tuple[ConsumeResult, str | None]:
        try:
            await handler(message)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # as for messages of queues: also what is no `Exception`
            if being_cancelled():
                raise
            logger.exception("handler failed for message %s, which an operator had consumed", message.message_id)
            return ConsumeResult.RAISED, f"{type(error).__name__}: {error}"
        if settled:
            return ConsumeResult.LATER if settled[0].again else ConsumeResult.SUCCESS, None
        return ConsumeResult.SUCCESS if self._auto_ack else ConsumeResult.UNFINISHED, None

    def _running(self, *, with_stacks: bool) -> bytes:
        fetchers = self._fetchers()
        queues = {
            NamedQueue(queue.broker_group, queue.queue_id, queue.topic): _process_queue(fetcher)
            for fetcher in fetchers
            for queue in (fetcher.queue,)
        }
        own = {str(fetcher.queue): "paused" for fetcher in fetchers if fetcher.paused}
        return encode_running(self._properties, self._subscriptions, queues, own, _stacks() if with_stacks else None)

    def _answer(self, connection: Connection, command: RemotingCommand, body: bytes | None) -> None:
        if body is None:
            self._refuse(connection, command, f"this client has no consumer of that group, but one of {self._group}")
        else:
            _send(connection, make_response(command, ResponseCode.SUCCESS, None, None, body))

    def _refuse(self, connection: Connection, command: RemotingCommand, why: str) -> None:
        _send(connection, make_response(command, ResponseCode.SYSTEM_ERROR, why))


def _send(connection: Connection, answer: RemotingCommand) -> None:
    try:
        connection.send_frame(encode_command(answer))
    except ConnectError as error:
        logger.debug("%s was not answered: %s", connection.address, error)


def _process_queue(fetcher: QueueFetcher) -> ProcessQueue:
    progress, now = fetcher.progress, asyncio.get_running_loop().time()
    now_ms = time.time_ns() // 1_000_000

    def wall_ms(at: float) -> int:
        return now_ms - round((now - at) * 1000)

    return ProcessQueue(
        commit_offset=-1 if progress is None else progress.committable,
        cached_msg_min_offset=0 if progress is None else progress.committable,
        cached_msg_max_offset=0 if progress is None else max(progress.next_offset - 1, 0),
        cached_msg_count=0 if progress is None else progress.outstanding,
        cached_msg_size_in_mi_b=0 if progress is None else progress.outstanding_bytes >> 20,
        locked=False,
        last_lock_timestamp=0,
        last_pull_timestamp=wall_ms(fetcher.pulled_at),
        last_consume_timestamp=wall_ms(fetcher.waiting_since),
    )


def _stacks() -> str:
    """Where every task of this event loop, and every other thread, stands."""
    parts: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        frames = [line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)]
        parts.append(f"task {task.get_name()}\n{''.join(frames)}")
    for number, frame in sys._current_frames().items():  # noqa: SLF001 - documented, for exactly this
        parts.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
