"""Access to a cluster: where its name servers are, for whom requests are signed, and how connections are secured."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_client import Admin, Credentials, Producer, PullConsumer, Tls


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster and the account that asks it. The clients that it makes are not started yet.

    `credentials` are None where requests are not signed, `tls` is None for plain connections.
    """

    name_servers: str
    credentials: Credentials | None = None
    tls: Tls | None = None

    def admin(self) -> Admin:
        """Return an administrator."""
        return Admin(self.name_servers, credentials=self.credentials, tls=self.tls)

    def producer(self, group: str) -> Producer:
        """Return a producer of a group."""
        return Producer(self.name_servers, group=group, credentials=self.credentials, tls=self.tls)

    def reader(self) -> PullConsumer:
        """Return a consumer that reads any queue. A message whose body cannot be read has a `fault`."""
        return PullConsumer(self.name_servers, keep_unreadable=True, credentials=self.credentials, tls=self.tls)
