"""Places for connections: `max_connections` for everybody, and some beyond them that brokers alone keep.

A name server that starts again has all its clients back at once, which may be more than it takes. A broker that found
no place then would be out of the routes, with all its topics. So connections beyond the limit come in *on trial*:

    its first request is none of a broker     closed, unless a place for everybody has become free
    it registers a node                       stays
    another one comes and there is no place   the oldest of the host that has most on trial makes room

So many may be there: `broker_places`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dledger.net.eviction import oldest_of_busiest_host
from dledger_serving.admission import Admission

from .access import OF_NODES
from .config import NameServerConfig
from .connection import Connection
from .metrics import NameServerCounters


class Places:
    """The places of one server, which `connections` take. `max_per_host` is asked for each connection."""

    def __init__(
        self,
        connections: set[Connection],
        config: NameServerConfig,
        counters: NameServerCounters,
        max_per_host: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._for_everybody = config.max_connections
        self._on_trial: dict[Connection, None] = {}
        self._admission = Admission(
            connections,
            counters,
            max_connections=config.max_connections,
            max_per_host=max_per_host,
            beyond=config.broker_places,
            make_room=self._make_room,
        )

    def admit(self, connection: Connection) -> bool:
        """Take a new connection, on trial if all places for everybody are taken; False if there are too many."""
        is_full = self._is_full
        if not self._admission.admit(connection):
            return False
        if is_full:
            self._on_trial[connection] = None
        return True

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Whether a connection that sends a request of this code may stay."""
        if connection not in self._on_trial or code in OF_NODES:
            return True
        if self._is_full:
            self._admission.refuse_beyond(connection, "this one is no broker's")
            return False
        self.keep(connection)
        return True

    def keep(self, connection: Connection) -> None:
        """A connection is on trial no longer."""
        self._on_trial.pop(connection, None)

    def lost(self, connection: Connection) -> bool:
        """A connection is gone; True if it had been taken."""
        self.keep(connection)
        return self._admission.lost(connection)

    @property
    def _is_full(self) -> bool:
        """Whether all places for everybody are taken. Brokers beyond them count, once they have registered."""
        return len(self._connections) - len(self._on_trial) >= self._for_everybody

    def _make_room(self) -> None:
        if self._on_trial:
            stranger = oldest_of_busiest_host(self._on_trial, lambda one: one.address.ip)
            self._admission.refuse_beyond(stranger, "this one has not registered, and others want its place")
            self.lost(stranger)
            stranger.drop()


def within(config: NameServerConfig, room: int) -> NameServerConfig:
    """The configuration with so few connections that brokers' and all others together are at most `room`."""
    if config.max_connections + config.broker_places <= room:
        return config
    return replace(config, max_connections=max(1, room - config.broker_places, room // 2))
