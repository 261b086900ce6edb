"""Places for connections: `max_connections` for everybody, and some beyond them that only brokers keep.

When a name server restarts, all clients come back at once, perhaps more than `max_connections`. A broker without a
place would then be missing in the routes, with all its topics. So connections beyond the limit are admitted *on trial*:

    its first request is not a broker's     takes a free place for everybody, or that of a connection that has asked
                                              for nothing; closed if there is none
    it registers a node, or signs a request   stays
      rightly, with access control
    another one comes and there is no place   the oldest of the host that has most on trial makes room

There are `broker_places` places beyond the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dledger_base.admission import Admission
from dledger_base.eviction import Strangers

from .access import OF_NODES
from .config import NameServerConfig
from .connection import Connection
from .metrics import NameServerCounters


class Places:
    """Places of one server, which `connections` take. `max_per_host` is called for each connection."""

    def __init__(
        self,
        connections: set[Connection],
        config: NameServerConfig,
        counters: NameServerCounters,
        max_per_host: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._max_for_everybody = config.max_connections
        self._on_trial: Strangers[Connection] = Strangers()
        self._silent: Strangers[Connection] = Strangers()
        """Connections in places for everybody that have sent no request. They make room for others that send one."""
        self._admission = Admission(
            connections,
            counters,
            max_connections=config.max_connections,
            max_per_host=max_per_host,
            beyond=config.broker_places,
            make_room=self._make_room,
        )

    def admit(self, connection: Connection) -> bool:
        """Admit a new connection, on trial if all places for everybody are taken; False if there are too many."""
        is_full = self._is_full
        if not self._admission.admit(connection):
            return False
        strangers = self._on_trial if is_full else self._silent
        strangers.add(connection, connection.address.ip)
        return True

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Return whether a connection that sends a request of this code may stay."""
        self._silent.discard(connection)
        if connection not in self._on_trial or code in OF_NODES:
            return True
        if self._is_full and len(self._silent):
            self._drop(self._silent.oldest_of_busiest_host(), "this one has asked for nothing")
        if self._is_full:
            self._admission.refuse_beyond(connection, "this one is no broker's")
            return False
        self.keep(connection)
        return True

    def prove(self, connection: Connection) -> None:
        """Keep the place of a connection that has signed a request. The limit of its host counts it no longer."""
        self.keep(connection)
        self._admission.exempt(connection)

    def keep(self, connection: Connection) -> None:
        """End the trial of a connection, which keeps its place."""
        self._on_trial.discard(connection)

    def lost(self, connection: Connection) -> bool:
        """Forget a connection that is gone. Returns True if it had been admitted."""
        self.keep(connection)
        self._silent.discard(connection)
        return self._admission.lost(connection)

    @property
    def _is_full(self) -> bool:
        """True if all places for everybody are taken. Brokers beyond them count, once they have registered."""
        return len(self._connections) - len(self._on_trial) >= self._max_for_everybody

    def _make_room(self) -> None:
        if len(self._on_trial):
            stranger = self._on_trial.oldest_of_busiest_host()
            self._drop(stranger, "this one has not registered, and others want its place")

    def _drop(self, stranger: Connection, why: str) -> None:
        self._admission.refuse_beyond(stranger, why)
        self.lost(stranger)
        stranger.abort()


def within(config: NameServerConfig, room: int) -> NameServerConfig:
    """Return the configuration with a lower `max_connections` if it and brokers' places together exceed `room`."""
    if config.max_connections + config.broker_places <= room:
        return config
    return replace(config, max_connections=max(1, room - config.broker_places, room // 2))
