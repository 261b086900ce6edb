"""Connections of a broker to its cluster, and the configuration that subscribers and publishers read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dledger_client import Admin, Credentials, Producer, RefusedError, Tls

from .internals import BrokerConfig
from .producer import DledgerProducer

_LEADER_ID: Final = 0
"""Number under which name servers list the leader of a broker group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Arguments that all clients of one broker have in common. They mean what they mean for `Producer`.

    `start_timeout` limits the wait for a name server in seconds. None: nobody waits, and the cluster may come later.
    """

    name_servers: str | Sequence[str] = "127.0.0.1:9876"
    producer_group: str = "DEFAULT_PRODUCER"
    timeout: float = 10.0
    idempotent: bool = False
    start_timeout: float | None = 10.0
    namespace: str | None = None
    credentials: Credentials | None = None
    tls: Tls | None = None
    trace: bool | str = False

    @property
    def addresses(self) -> list[str]:
        """The name servers, one address each."""
        listed = (
            self.name_servers.replace(",", ";").split(";") if isinstance(self.name_servers, str) else self.name_servers
        )
        return [address.strip() for address in listed if address.strip()]

    def producer(self) -> Producer:
        """Return a producer, not started."""
        return Producer(
            self.name_servers,
            group=self.producer_group,
            timeout=self.timeout,
            idempotent=self.idempotent,
            namespace=self.namespace,
            credentials=self.credentials,
            tls=self.tls,
            trace=self.trace,
        )

    async def has_leader(self, timeout: float) -> bool:
        """Return whether a name server answers within `timeout` seconds and knows a broker group with a leader.

        Raises `ClientError` if none answers. An account without the right to see the cluster gets True for an answer.
        """
        async with Admin(self.name_servers, timeout=timeout, credentials=self.credentials, tls=self.tls) as admin:
            try:
                groups = await admin.broker_groups()
            except RefusedError:
                return True
        return any(_LEADER_ID in group.broker_addrs for group in groups.values())


@dataclass(kw_only=True)
class DledgerBrokerConfig(BrokerConfig):
    """Configuration of a broker or router: that of FastStream, and the connection."""

    connection: Connection = field(default_factory=Connection)
    producer: DledgerProducer = field(default_factory=DledgerProducer)

    async def connect(self) -> Producer:
        """Start the producer, and return it. Raises `ClientError` if no name server answers in time."""
        if self.connection.start_timeout is not None:
            await self.connection.has_leader(self.connection.start_timeout)
        producer = self.connection.producer()
        await producer.start()
        self.producer.connect(producer, self.fd_config._serializer, self.broker_codec)  # noqa: SLF001 -- FastStream's own
        return producer

    async def disconnect(self) -> None:
        """Wait for sends under way, and close the producer."""
        await self.producer.disconnect()
