"""Transactions for programs without an event loop: the calls of `TransactionProducer`, blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from dledger_remoting.signatures import Credentials

from .arguments import checked
from .blocking import Blocking, ClosedAfterUse
from .callbacks import check_transaction_check
from .producer import DEFAULT_TIMEOUT_SECONDS
from .tls import Tls
from .tracing import DEFAULT_MAX_TRACES
from .transactions import Decision, OpenTransaction, TransactionProducer

SyncCheck: TypeAlias = Callable[[OpenTransaction], Decision]
"""A `Check` that may block; it is called in threads of its own, several at a time."""


@checked
class SyncTransactionProducer(ClosedAfterUse):
    """A blocking `TransactionProducer`.

    with SyncTransactionProducer("127.0.0.1:9876", group="payments", check=check) as producer:
        transaction = producer.begin("orders", b"order 17", unique_key="order-17")
        producer.commit(transaction)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        check: SyncCheck,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
    ) -> None:
        """See `TransactionProducer`."""
        check_transaction_check(check, blocking=True)

        async def ask(transaction: OpenTransaction) -> Decision:
            return await asyncio.to_thread(check, transaction)

        self._producer = TransactionProducer(
            name_servers,
            group=group,
            check=ask,
            timeout=timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            trace=trace,
            max_traces=max_traces,
        )
        self._blocking = Blocking("dledger transactions", self._producer.start())

    def close(self) -> None:
        """See `TransactionProducer.close`. A check that is at work goes on, and its decision is not told."""
        self._blocking.finish(self._producer.close())

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return self._producer.traces_dropped

    def begin(
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
        """See `TransactionProducer.begin`."""
        return self._blocking.run(
            self._producer.begin(
                topic,
                body,
                key=key,
                tags=tags,
                properties=properties,
                unique_key=unique_key,
                check_after_s=check_after_s,
            )
        )

    def commit(self, transaction: OpenTransaction) -> None:
        """See `TransactionProducer.commit`."""
        self._blocking.run(self._producer.commit(transaction))

    def rollback(self, transaction: OpenTransaction) -> None:
        """See `TransactionProducer.rollback`."""
        self._blocking.run(self._producer.rollback(transaction))
