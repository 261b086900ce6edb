"""Doorman of a port: waits for the first byte, does the TLS handshake if there is one, and hands the connection over.

    first byte 22          a TLS record of a handshake: the connection is made once that is finished
    anything else          a plain client: a permissive port accepts it, an enforcing port sends an alert and closes

A port without TLS accepts every first byte. No request of RocketMQ's protocol begins with 22: the first byte is the
highest byte of the length, which is at most 16 MiB.

A connection counts as a client only after it is handed over. If clients and waiting connections fill the
`max_connections` places, a new connection displaces a waiting one. Either the silent connections give way or those in a
handshake, whichever are more. Among them the oldest of the host with the most connections is closed. So silent
connections do not keep out clients that speak.

If clients fill the places, up to `ANTEROOM` connections wait beyond them. Only their first words show whether they may
displace a client: the server decides that at the hand-over, and refuses them otherwise. There are several, so that a
host that floods a full port does not end the handshakes of others.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from dledger_base.eviction import Strangers
from dledger_base.handshakes import Handshake, Slots, Turns, bound_read_buffers, feed
from dledger_base.tls import TlsContext

HANDSHAKE: Final = 22
"""Type of the TLS record with which a client begins."""
TLS_ALERT: Final = bytes.fromhex("15030300020246")
"""Answer of OpenSSL to a client without TLS: the fatal alert `protocol_version`."""
SILENCE_S: Final = 5.0
"""Time limit for the first byte of a connection, in seconds."""
FIRST_BYTES: Final = 20 << 10
"""Maximum number of bytes that a client with TLS sends at first: one record. It is held until the handshake begins."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
ANTEROOM: Final = 32
"""Maximum number of connections that wait although clients have all places; at most as many as there are places."""
GOODBYE_TIMEOUT_S: Final = 2.0
"""Time limit in seconds for the other side to confirm the end of a TLS connection."""
HELD_BYTES: Final = 32 << 10
"""Minimum number of encrypted bytes, on a paused TLS connection, at which the socket is not read either.

It is larger than one TLS record, so that a partial record never blocks. Bytes of one read may come on top.
"""
COMPLAINT_INTERVAL_S: Final = 10.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DoorCounters:
    """Counters of events at the door since the start. They only grow.

    `handshakes` counts finished handshakes, `failures` unfinished handshakes. `refused_plain` counts clients without
    TLS at an enforcing port.
    """

    handshakes: int = 0
    failures: int = 0
    refused_plain: int = 0


class Door:
    """State that the doormen of a server's ports share. `tls` is None if the ports use no TLS.

    `open_connections` returns the number of open connections that were handed over, of `max_connections`. `silence_s`
    is the time limit for a client's first byte.
    """

    def __init__(
        self,
        tls: TlsContext | None,
        *,
        takes_plain: bool,
        max_connections: int,
        open_connections: Callable[[], int],
        silence_s: float = SILENCE_S,
    ) -> None:
        self.tls = tls
        self.takes_plain = takes_plain
        self.silence_s = silence_s
        self.counters = DoorCounters()
        self.turns: Final = Turns()
        self.slots: Final = Slots()
        self._max_connections = max_connections
        self._open_connections = open_connections
        self._silent: Strangers[Doorman] = Strangers()
        self._speaking: Strangers[Doorman] = Strangers()
        self._next_warning_at = 0.0
        if tls is not None:
            bound_read_buffers()

    @property
    def waiting(self) -> list[Doorman]:
        """Connections that have not been handed over yet."""
        return [*self._silent, *self._speaking]

    def doorman(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.Protocol:
        """Return the protocol for a new connection.

        After the hand-over the connection uses the protocol that `make` makes.
        """
        return Doorman(self, make)

    def enter(self, doorman: Doorman) -> None:
        """Register a connection, and make room for it if needed."""
        waiting = len(self._silent) + len(self._speaking)
        if (
            waiting >= min(ANTEROOM, self._max_connections)
            and self._open_connections() + waiting >= self._max_connections
        ):
            self.make_room()
        self._silent.add(doorman, doorman.host)

    def make_room(self) -> bool:
        """End a waiting connection. Returns False if there is none."""
        silent, speaking = len(self._silent), len(self._speaking)
        if silent + speaking:
            larger_crowd = self._silent if silent >= speaking else self._speaking
            larger_crowd.oldest_of_busiest_host().make_room()
        return silent + speaking > 0

    def heard(self, doorman: Doorman) -> None:
        """Note that a connection has begun a handshake."""
        if self._silent.discard(doorman):
            self._speaking.add(doorman, doorman.host)

    def leave(self, doorman: Doorman) -> None:
        """Forget a connection that was handed over or is gone."""
        if not self._silent.discard(doorman):
            self._speaking.discard(doorman)

    def close(self) -> None:
        """End every waiting connection."""
        for doorman in self.waiting:
            doorman.end()

    def complain(self, client: str, reason: str) -> None:
        """Log a refused client, at intervals only, because strangers must not fill the log."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_warning_at:
            self._next_warning_at = now + COMPLAINT_INTERVAL_S
            counters = self.counters
            _logger.warning(
                "event=tls_refused client=%s reason=%r failures=%d refused_plain=%d",
                client,
                reason,
                counters.failures,
                counters.refused_plain,
            )


class Doorman(asyncio.Protocol):
    """A connection that has not been handed over yet."""

    def __init__(self, door: Door, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.host = ""
        self.stepped_at = 0.0
        self._client = "?"
        self._door = door
        self._make_protocol = make
        self._connection: asyncio.BaseProtocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._early_data: list[bytes] = []
        """Data that the client sent between the end of the handshake and the hand-over."""
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for the first byte."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self._client = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._timer = asyncio.get_running_loop().call_later(self._door.silence_s, self.end)
        self._door.enter(self)

    def data_received(self, data: bytes) -> None:
        """Look at the first byte, and begin a handshake, hand over, or refuse."""
        if self._task is not None:
            self._early_data.append(data)
            return
        transport = self._transport
        assert transport is not None
        self._stop_timer()
        tls = self._door.tls
        if tls is not None and data[0] == HANDSHAKE and len(data) > FIRST_BYTES:
            self._door.counters.failures += 1
            self._door.complain(self._client, f"it began a TLS handshake with {len(data)} bytes, at most {FIRST_BYTES}")
            self.end()
        elif tls is not None and data[0] == HANDSHAKE:
            loop = asyncio.get_running_loop()
            transport.pause_reading()
            self._door.heard(self)
            self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self._on_handshake_timeout)
            self._task = loop.create_task(self._secure(transport, tls, data))
        elif tls is None or self._door.takes_plain:
            self._early_data.append(data)
            self._hand_over(transport)
        else:
            self._door.counters.refused_plain += 1
            self._door.complain(self._client, "it speaks without TLS, which this port asks for (tls = enforcing)")
            self._door.leave(self)
            transport.write(TLS_ALERT)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a lost connection, or notify the protocol to which it was just handed over.

        The second case:

        1. Invalid bytes follow the last bytes of a handshake. The transport breaks, and schedules a call of
           `connection_lost` on its present protocol for a later turn.
        2. The handshake is finished, and the connection is handed over.
        3. The call arrives here. If it were not passed on, the connection would stay open for ever.
        """
        if self._connection is not None:
            self._connection.connection_lost(exc)
            return
        self._is_lost = True
        self._stop_timer()
        self._door.leave(self)

    def make_room(self) -> None:
        """Close the connection, because another needs its place."""
        self._door.complain(
            self._client, "it is silent or still in its TLS handshake, and a newer connection needs its place"
        )
        self.end()

    def end(self) -> None:
        """Close at once, and give up the place."""
        self._stop_timer()
        self._door.leave(self)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _secure(self, transport: asyncio.Transport, tls: TlsContext, first_bytes: bytes) -> None:
        """Do the handshake once there is a slot for it, then hand over. `first_bytes` were read from it already."""
        slots = self._door.slots
        try:
            await slots.take(self)
            secured = await self._handshake(transport, tls, first_bytes)
        finally:
            slots.give_back(self)
        if secured is None:
            return
        if not secured.is_closing():
            secured.set_read_buffer_limits(high=HELD_BYTES)  # type: ignore[attr-defined]  # with TLS both loops have it
        connection = self._hand_over(secured)
        if self._is_lost:
            connection.connection_lost(None)

    async def _handshake(
        self, transport: asyncio.Transport, tls: TlsContext, first_bytes: bytes
    ) -> asyncio.Transport | None:
        """Return the transport with TLS; None if the handshake has failed."""
        door, loop = self._door, asyncio.get_running_loop()
        await door.turns.next()
        tls_task = loop.create_task(
            loop.start_tls(transport, self, tls.context, server_side=True, ssl_shutdown_timeout=GOODBYE_TIMEOUT_S)
        )
        try:
            # `start_tls` installs its own protocol in its first step, and starts to read in the turn after that.
            await asyncio.sleep(0)
            handshake = Handshake(transport, first_bytes)
            tls_task.add_done_callback(lambda _: handshake.may_go_on.set())
            while not tls_task.done():
                handshake.step()
                self.stepped_at = loop.time()
                await handshake.may_go_on.wait()
                if not tls_task.done():
                    await door.turns.next()
            handshake.leave()
            secured = await tls_task
        except OSError as error:
            door.counters.failures += 1
            door.complain(self._client, f"its TLS handshake failed: {_describe_error(error)}")
            self.end()
            return None
        finally:
            tls_task.cancel()
        self._stop_timer()
        if secured is None:
            door.counters.failures += 1
        else:
            door.counters.handshakes += 1
        return secured

    def _hand_over(self, transport: asyncio.Transport) -> asyncio.BaseProtocol:
        self._door.leave(self)
        connection = self._connection = self._make_protocol()
        # A client that sends something and closes may be gone by now. Its data still counts, as it does without TLS.
        is_ended = transport.is_closing()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early_data:
            if not is_ended and transport.is_closing():
                break
            if isinstance(connection, asyncio.BufferedProtocol):
                feed(connection, data)
            else:
                cast("asyncio.Protocol", connection).data_received(data)
        return connection

    def _on_handshake_timeout(self) -> None:
        self._door.counters.failures += 1
        self._door.complain(self._client, f"its TLS handshake was not finished within {HANDSHAKE_TIMEOUT_S:g} s")
        self.end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _describe_error(error: Exception) -> str:
    """Return OpenSSL's reason, if it has one."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason
    return str(error) or type(error).__name__
