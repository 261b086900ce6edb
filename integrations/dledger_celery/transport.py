"""Transport of kombu: the connection of one process to a cluster, and the events that it hands out."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Final

from kombu.transport import base, virtual
from kombu.utils.compat import detect_environment

from dledger_client import ClientError

from .channel import Channel as ClusterChannel
from .channel import QueueFacts
from .cluster import ClusterUnavailableError, kombus_errors
from .envelopes import Payload, Untyped
from .link import Link
from .settings import DEFAULT_PORT, masked, settings_of

MAX_AT_ONCE: Final = 32
"""Maximum number of messages that are handed out before the event loop looks at everything else."""


class Transport(virtual.Transport):
    """A connection to a cluster."""

    Channel = ClusterChannel
    can_parse_url = True
    default_port: Untyped = DEFAULT_PORT
    driver_type = "dledger"
    driver_name = "dledger_client"
    connection_errors: Untyped = (*base.Transport.connection_errors, ClusterUnavailableError)
    channel_errors = base.Transport.channel_errors
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors: tuple[type[BaseException], ...] = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )

    def __init__(self, client: Untyped, **kwargs: Untyped) -> None:
        super().__init__(client, **kwargs)
        self.link = Link(settings_of(client))
        self.queues: dict[str, QueueFacts] = {}
        self._event_loop: Untyped = None

    def driver_version(self) -> str:
        """Return the version of this distribution."""
        return version("dledger-mq")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for logs, with a mask in place of its secret."""
        return uri if include_password else masked(uri, mask)

    def establish_connection(self) -> Transport:
        """Open the clients, and raise an error unless the cluster answers."""
        if detect_environment() != "default":
            raise RuntimeError(
                f"dledger_celery cannot work under {detect_environment()}: use the pool prefork, threads or solo"
            )
        self.link.run(self.link.cluster.check)
        super().establish_connection()
        return self

    def close_connection(self, connection: object) -> None:
        """Close all channels, and the clients once what is under way has ended."""
        super().close_connection(connection)
        self.unregister_from_event_loop(connection, self._event_loop)
        self.link.close()

    def _collect(self, connection: object) -> None:
        """Give up a connection after a fork, or after an error: kombu calls it instead of a close."""
        if self.link.is_open:
            self.close_connection(connection)
        else:
            self.channels.clear()
            self._avail_channels.clear()

    def verify_connection(self, connection: object) -> bool:
        """Return whether the connection is this process's."""
        return connection is self and self.link.is_open

    def drain_events(self, connection: object, timeout: float | None = None, **kwargs: Untyped) -> None:
        """Hand one message to its consumer. Raises `TimeoutError` if none comes within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            item = self.link.inbox.take(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if item is None:
                raise TimeoutError(f"no message within {timeout} s")
            if isinstance(item, ClientError):
                with kombus_errors():
                    raise item
            if self._hand_out(*item):
                return

    def register_with_event_loop(self, connection: object, loop: Untyped) -> None:
        """Have a loop of kombu hand out messages: Celery's workers have one, except with green pools."""
        self._event_loop = loop
        loop.add_reader(self.link.inbox.fileno(), self._on_messages)

    def unregister_from_event_loop(self, connection: object, loop: Untyped) -> None:
        """Have the loop hand out no more messages."""
        if self._event_loop is not None:
            self._event_loop.remove_reader(self.link.inbox.fileno())
            self._event_loop = None

    def _on_messages(self) -> None:
        """Hand out some of the messages. The loop calls this again while there are more.

        An error that does not pass by itself is raised as a lost connection: the loop only logs other errors.
        """
        for _ in range(MAX_AT_ONCE):
            item = self.link.inbox.take(0)
            if item is None:
                return
            if isinstance(item, ClientError):
                raise ClusterUnavailableError(str(item)) from item
            self._hand_out(*item)

    def _hand_out(self, queue: str, payload: Payload) -> bool:
        """Hand a message to its consumer. Returns whether there is one; messages without one were given back."""
        for channel in self.channels:
            if channel.takes(queue):
                channel.take(queue, payload)
                return True
        return False
