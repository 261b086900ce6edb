"""Transactions: messages that consumers see once their producer commits them, and never if it rolls them back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

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
)
from dledger_remoting.record import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    decode_record,
)
from dledger_remoting.signatures import Credentials
from dledger_remoting.traces import COMMITTED_MESSAGE, DEFAULT_REGION, EndTrace

from .arguments import checked
from .callbacks import check_transaction_check
from .connection import Connection
from .errors import ClientError, InvalidArgumentError
from .messages import Message
from .namespaces import Namespace
from .producer import DEFAULT_TIMEOUT_SECONDS, Producer
from .results import SendResult
from .tls import Tls
from .tracing import DEFAULT_MAX_TRACES

logger = logging.getLogger(__name__)

Decision: TypeAlias = Literal["commit", "rollback", "unknown"]
"""What becomes of a transaction; `"unknown"`: ask again later."""
MAX_CHECK_AFTER_S: Final = 3_600
"""For so long at most brokers leave a transaction to its producer."""

MAX_CHECKS: Final = 1_000
"""Checks of a producer that run at a time; what brokers ask beyond that they ask again later."""

_WIRE: Final[Mapping[Decision, int]] = {
    "commit": SYS_TRANSACTION_COMMIT,
    "rollback": SYS_TRANSACTION_ROLLBACK,
    "unknown": 0,
}

_TRACED: Final[Mapping[Decision, str]] = {
    "commit": "COMMIT_MESSAGE",
    "rollback": "ROLLBACK_MESSAGE",
    "unknown": "UNKNOW",
}
"""RocketMQ's names of decisions, spelt as it spells them."""


class OpenTransaction(msgspec.Struct, frozen=True):
    """A message that waits for its producer's decision: `position` and `queue_offset` name it at its broker group."""

    topic: str
    body: bytes
    unique_key: str
    broker_group: str
    position: int
    queue_offset: int


Check: TypeAlias = Callable[[OpenTransaction], Awaitable[Decision]]
"""Asked about a transaction that was neither committed nor rolled back, maybe by another process of the group."""


@checked
class TransactionProducer:
    """Sends messages that become visible when they are committed.

        async def check(transaction: OpenTransaction) -> Decision:
            return "commit" if await is_paid(transaction.unique_key) else "rollback"

        async with TransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:
            transaction = await producer.begin("orders", b"order 17", unique_key="order-17")
            ...
            await producer.commit(transaction)

    Brokers ask `check` about what is not ended in time, through any running producer of the group: also after this
    process has died. Bodies are never compressed.
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
    ) -> None:
        """`timeout`, in seconds, is the deadline of each call; topics and `group` are names within `namespace`; `trace`
        and `max_traces` are those of `Producer`.
        """
        self._namespace = Namespace.named(namespace)
        self._group = self._namespace.full(group)
        self._check = check_transaction_check(check, blocking=False)
        self._timeout = timeout
        self._checks: set[asyncio.Task[None]] = set()
        self._producer = Producer(
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
        self._producer._answer_checks(self._on_request)  # noqa: SLF001 - half of this class, for no application

    async def start(self) -> None:
        """Let brokers know of this producer. No name server needs to be there yet."""
        await self._producer.start()

    async def close(self) -> None:
        """Give up checks, which brokers ask another producer about, wait for the calls under way, leave the cluster."""
        for check in list(self._checks):
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)
        await self._producer.close()

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
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
        body: bytes,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        unique_key: str | None = None,
        check_after_s: int | None = None,
    ) -> OpenTransaction:
        """Store a message that nobody sees yet. Raises what `Producer.send` raises.

        Nobody is asked about it for `check_after_s` seconds, 0 to 3600; by default for as long as brokers are
        configured to wait. An attempt of unknown outcome is not repeated: what it may have stored is asked about later.
        """
        if check_after_s is not None and not 0 <= check_after_s <= MAX_CHECK_AFTER_S:
            raise InvalidArgumentError(f"check_after_s={check_after_s}: 0 to {MAX_CHECK_AFTER_S} is expected")
        message = Message(body, key, tags, properties, unique_key)
        marks = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: self._group}
        if check_after_s is not None:
            marks[CHECK_IMMUNITY_SECONDS] = str(check_after_s)
        text = "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in marks.items())
        send = self._producer._send_half  # noqa: SLF001 - half of this class, for no application
        sent: SendResult = await send(topic, message, text, SYS_TRANSACTION_PREPARED)
        position = int(sent.offset_message_id[-16:], 16)
        return OpenTransaction(topic, body, sent.message_id, sent.broker_group, position, sent.queue_offset)

    async def commit(self, transaction: OpenTransaction) -> None:
        """Have consumers see the message, once, however often it is committed.

        Raises `RefusedError` if it has ended otherwise, and `DeadlineError`, whose outcome may be unknown.
        """
        await self._end(transaction, "commit")

    async def rollback(self, transaction: OpenTransaction) -> None:
        """Have nobody see the message. Raises what `commit` raises."""
        await self._end(transaction, "rollback")

    async def _end(self, transaction: OpenTransaction, decision: Decision, *, checked: bool = False) -> None:
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=transaction.queue_offset,
            commit_log_offset=transaction.position,
            commit_or_rollback=_WIRE[decision],
            from_transaction_check=checked,
            msg_id=transaction.unique_key,
            transaction_id=transaction.unique_key,
            topic=self._namespace.full(transaction.topic),
        )
        ask = self._producer._ask_leader  # noqa: SLF001 - half of this class, for no application
        await ask(transaction.broker_group, RequestCode.END_TRANSACTION, encode_ext(header), self._timeout)
        self._producer._trace(_end_trace(transaction, self._group, decision, checked=checked))  # noqa: SLF001 - as above

    def _on_request(self, _connection: Connection, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE and len(self._checks) < MAX_CHECKS:
            task = asyncio.get_running_loop().create_task(self._answer_check(command))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _answer_check(self, command: RemotingCommand) -> None:
        """Ask the application, and end the transaction; what fails the broker asks about again."""
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
            await self._end(transaction, await self._check(transaction), checked=True)
        except (RemotingError, ClientError) as error:
            logger.warning("a check of a transaction failed: %s", error)
        except Exception:
            logger.exception("the check of a transaction raised")


def _end_trace(transaction: OpenTransaction, group: str, decision: Decision, *, checked: bool) -> EndTrace:
    """The trace of an ended transaction; the trace of its send has its tags, keys and broker."""
    return EndTrace(
        time.time_ns() // 1_000_000,
        DEFAULT_REGION,
        group,
        transaction.topic,
        transaction.unique_key,
        "",
        "",
        "",
        COMMITTED_MESSAGE,
        transaction.unique_key,
        _TRACED[decision],
        checked,
    )
