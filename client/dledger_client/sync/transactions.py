"""Transactions for programs without an event loop: the calls of `TransactionProducer`, blocking.

`make fix` writes this module from `transactions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

from dledger_remoting.signatures import Credentials

from ..arguments import checked
from ..blocking import Blocking, ClosedAfterUse
from ..messages import Codec, T
from ..producer import DEFAULT_TIMEOUT_SECONDS
from ..sending.tracing import DEFAULT_MAX_TRACES
from ..tls import Tls
from ..transactions import OpenTransaction, SyncCheck, TransactionProducer, in_threads


@checked
class SyncTransactionProducer(ClosedAfterUse, Generic[T]):
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
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the blocking client with the arguments of `TransactionProducer`."""
        self._client = TransactionProducer(
            name_servers,
            group=group,
            check=in_threads(check),
            timeout=timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            trace=trace,
            max_traces=max_traces,
            codec=codec,
        )
        self._blocking = Blocking("dledger transactions", self._client.start(), self._client.close)

    def close(self) -> None:
        """Cancel checks, wait for the calls under way, and leave the cluster, as `TransactionProducer.close` does."""
        self._blocking.finish(self._client.close())

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._client.traces_dropped

    def begin(
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
        """Store a message that no consumer sees yet, as `TransactionProducer.begin` does."""
        return self._blocking.run(
            self._client.begin(
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
        """Make the message visible to consumers, once, even if it is committed several times, as
        `TransactionProducer.commit` does.
        """
        self._blocking.run(self._client.commit(transaction))

    def rollback(self, transaction: OpenTransaction) -> None:
        """Drop the message, so that no consumer sees it, as `TransactionProducer.rollback` does."""
        self._blocking.run(self._client.rollback(transaction))
