"""Transactions: messages that consumers see once their producer commits them, and never if it rolls them back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Generic, Literal, Self, TypeAlias

import msgspec

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import CheckTransactionHeader, EndTransactionHeader, decode_ext, encode_ext
from dledger_remoting.properties import (
    CHECK_IMMUNITY_SECONDS,
    NAME_END,
    PRODUCER_GROUP,
    TRANSACTION_PREPARED,
    VALUE_END,
    parse_properties,
)
from dledger_remoting.record import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    decode_record,
)
from dledger_remoting.signatures import Credentials
from dledger_remoting.traces import COMMITTED_MESSAGE, DEFAULT_REGION, EndTrace

from . import interception
from .arguments import checked
from .callbacks import check_transaction_check
from .cluster.connection import Connection
from .cluster.surroundings import wall_ms
from .errors import ClientError, InvalidArgumentError
from .interception import TransactionCall
from .messages import Codec, Message, T, encoded
from .namespaces import Namespace
from .producer import DEFAULT_TIMEOUT_SECONDS, Producer
from .results import SendResult
from .sending.tracing import DEFAULT_MAX_TRACES
from .tls import Tls

logger = logging.getLogger(__name__)

Decision: TypeAlias = Literal["commit", "rollback", "unknown"]
"""Decision about a transaction; `"unknown"` means: ask again later."""
MAX_CHECK_AFTER_S: Final = 3_600
"""Maximum time in seconds for which brokers leave a transaction to its producer."""

MAX_CHECKS: Final = 1_000
"""Maximum number of checks of a producer at a time. Brokers repeat questions beyond that later."""

_WIRE_FLAGS: Final[Mapping[Decision, int]] = {
    "commit": SYS_TRANSACTION_COMMIT,
    "rollback": SYS_TRANSACTION_ROLLBACK,
    "unknown": 0,
}

_TRACE_NAMES: Final[Mapping[Decision, str]] = {
    "commit": "COMMIT_MESSAGE",
    "rollback": "ROLLBACK_MESSAGE",
    "unknown": "UNKNOW",
}
"""RocketMQ's names of decisions, in its spelling."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """A message that waits for its producer's decision.

    `position` and `queue_offset` identify it at its broker group.
    """

    topic: str
    body: bytes
    unique_key: str
    broker_group: str
    position: int
    queue_offset: int


Check: TypeAlias = Callable[[OpenTransaction], Awaitable[Decision]]
"""Decides about a transaction that was neither committed nor rolled back, perhaps by another process of the group."""

SyncCheck: TypeAlias = Callable[[OpenTransaction], Decision]
"""A `Check` that may block. It is called in threads of its own, several at a time."""


def in_threads(check: SyncCheck) -> Check:
    """Return a check that has a blocking one decide. Raises `InvalidArgumentError` for a coroutine function."""
    check_transaction_check(check, blocking=True)

    async def ask(transaction: OpenTransaction) -> Decision:
        return await asyncio.to_thread(check, transaction)

    return ask


@checked
class TransactionProducer(Generic[T]):
    """Sends messages that become visible when they are committed.

        async def check(transaction: OpenTransaction) -> Decision:
            return "commit" if await is_paid(transaction.unique_key) else "rollback"

        async with TransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:
            transaction = await producer.begin("orders", b"order 17", unique_key="order-17")
            ...
            await producer.commit(transaction)

    Brokers ask `check` about transactions that were not ended in time. They ask any running producer of the group, also
    after this process has died. Bodies are never compressed.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        check: Check,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        """Make a producer. `timeout`, in seconds, is the deadline of each call.

        Topics and `group` are names within `namespace`. `trace`, `max_traces` and `codec` are those of `Producer`. An
        `OpenTransaction` has the encoded body.
        """
        self._namespace = Namespace.named(namespace)
        self._group = self._namespace.full(group)
        self._check = check_transaction_check(check, blocking=False)
        self._timeout = timeout
        self._codec = codec
        self._check_tasks: set[asyncio.Task[None]] = set()
        self._producer: Producer = Producer(
            name_servers,
            group=group,
            timeout=timeout,
            retry_unknown=False,
            compress_over_bytes=None,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            trace=trace,
            max_traces=max_traces,
        )
        self._producer._set_check_handler(self._on_request)  # noqa: SLF001 - only this class uses it

    async def start(self) -> None:
        """Make this producer known to brokers. No name server has to run yet."""
        await self._producer.start()

    async def close(self) -> None:
        """Cancel checks, wait for the calls under way, and leave the cluster.

        Brokers repeat the checks at another producer.
        """
        for check in list(self._check_tasks):
            check.cancel()
        await asyncio.gather(*self._check_tasks, return_exceptions=True)
        await self._producer.close()

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._producer.traces_dropped

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def begin(
        self,
        topic: str,
        body: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        unique_key: str | None = None,
        check_after_s: int | None = None,
    ) -> OpenTransaction:
        """Store a message that no consumer sees yet. Raises the errors of `Producer.send`.

        Brokers do not ask about it for `check_after_s` seconds, 0 to 3600; by default for their configured time. An
        attempt of unknown outcome is not repeated: brokers ask later about the message that it may have stored.
        """
        if check_after_s is not None and not 0 <= check_after_s <= MAX_CHECK_AFTER_S:
            raise InvalidArgumentError(f"check_after_s={check_after_s}: 0 to {MAX_CHECK_AFTER_S} is expected")
        message = encoded(Message(body, key, tags, properties, unique_key), self._codec)
        marks = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self._group}
        if check_after_s is not None:
            marks[CHECK_IMMUNITY_SECONDS] = str(check_after_s)
        text = "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in marks.items())
        send = self._producer._send_half  # noqa: SLF001 - only this class uses it
        result: SendResult = await send(topic, message, text, SYS_TRANSACTION_PREPARED)
        position = int(result.offset_message_id[-16:], 16)
        return OpenTransaction(
            topic, message.body, result.message_id, result.broker_group, position, result.queue_offset
        )

    async def commit(self, transaction: OpenTransaction) -> None:
        """Make the message visible to consumers, once, even if it is committed several times.

        Raises `RefusedError` if it has ended otherwise, and `DeadlineError`, whose outcome may be unknown.
        """
        await self._end(transaction, "commit")

    async def rollback(self, transaction: OpenTransaction) -> None:
        """Drop the message, so that no consumer sees it. Raises the errors of `commit`."""
        await self._end(transaction, "rollback")

    async def _end(self, transaction: OpenTransaction, decision: Decision, *, checked: bool = False) -> None:
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=transaction.queue_offset,
            commit_log_offset=transaction.position,
            commit_or_rollback=_WIRE_FLAGS[decision],
            from_transaction_check=checked,
            msg_id=transaction.unique_key,
            transaction_id=transaction.unique_key,
            topic=self._namespace.full(transaction.topic),
        )
        ask = self._producer._ask_leader  # noqa: SLF001 - only this class uses it
        with self._intercepted("end", transaction, {}, decision):
            await ask(transaction.broker_group, RequestCode.END_TRANSACTION, encode_ext(header), self._timeout)
        self._producer._trace(_end_trace(transaction, self._group, decision, checked=checked))  # noqa: SLF001 - as above

    @contextmanager
    def _intercepted(
        self,
        operation: Literal["check", "end"],
        transaction: OpenTransaction,
        properties: Mapping[str, str],
        decision: Decision = "unknown",
    ) -> Iterator[TransactionCall | None]:
        """Stand in the interceptor's context, if there is an interceptor. Yields the call that it sees."""
        if (around := interception.interceptor) is None:
            yield None
            return
        caller = self._producer._caller  # noqa: SLF001 - only this class uses it
        call = TransactionCall(caller, operation, transaction.topic, transaction.unique_key, properties, decision)
        with around.deciding(call):
            yield call

    def _on_request(self, _connection: Connection, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE and len(self._check_tasks) < MAX_CHECKS:
            task = asyncio.get_running_loop().create_task(self._answer_check(command))
            self._check_tasks.add(task)
            task.add_done_callback(self._check_tasks.discard)

    async def _answer_check(self, command: RemotingCommand) -> None:
        """Ask the application, and end the transaction. After a failure the broker asks again."""
        try:
            header = decode_ext(CheckTransactionHeader, command.ext)
            record = decode_record(command.body)
            transaction = OpenTransaction(
                self._namespace.plain(record.topic),
                record.body,
                header.msg_id or "",
                header.bname,
                header.commit_log_offset,
                header.tran_state_table_offset,
            )
            with self._intercepted("check", transaction, parse_properties(record.properties)) as call:
                decision = await self._check(transaction)
                if call is not None:
                    call.decision = decision
                await self._end(transaction, decision, checked=True)
        except (RemotingError, ClientError) as error:
            logger.warning("a check of a transaction failed: %s", error)
        except Exception:
            logger.exception("the check of a transaction raised")


def _end_trace(transaction: OpenTransaction, group: str, decision: Decision, *, checked: bool) -> EndTrace:
    """Return the trace of an ended transaction. The trace of its send has its tags, keys and broker."""
    return EndTrace(
        wall_ms(),
        DEFAULT_REGION,
        group,
        transaction.topic,
        transaction.unique_key,
        "",
        "",
        "",
        COMMITTED_MESSAGE,
        transaction.unique_key,
        _TRACE_NAMES[decision],
        checked,
    )
