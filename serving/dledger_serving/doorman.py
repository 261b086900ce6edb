"""Doorman of a port with TLS: it finds out whether who comes speaks TLS, has the handshake done, and hands over.

    first byte 22          a TLS record of a handshake: the connection is made once that is finished
    anything else          a plain client: taken where the port is permissive, and told and closed where it is enforcing

No request of RocketMQ's protocol begins with 22: the first byte is the highest of its length, which 16 MiB bound.
Nobody is a client before it is handed over. Those who wait at the door are bounded: with them no more than
`max_connections` are open, and one more takes the place of the oldest of the host that has most of them there.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from dledger.net.eviction import oldest_of_busiest_host
from dledger.net.tls import TlsContext
from dledger_remoting.speakers import TLS_ALERT

from .handshakes import Handshake, Turns, bound_read_buffers

HANDSHAKE: Final = 22
"""The type of the TLS record with which a client begins."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
GOODBYE_TIMEOUT_S: Final = 2.0
"""How long a connection that is closed waits for the other side to say that it has seen it."""
HELD_BYTES: Final = 32 << 10
"""From how many encrypted bytes on a connection with TLS that its protocol has paused is not read either: more than one
record has, so that part of one never pauses it. What is read at once may come on top."""
COMPLAINT_INTERVAL_S: Final = 10.0

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DoorCounters:
    """What happened at the door since the start; every number only grows.

    `handshakes` were finished, `failures` were not; `refused_plain` are clients without TLS at an enforcing port.
    """

    handshakes: int = 0
    failures: int = 0
    refused_plain: int = 0


class Door:
    """What the doormen of a server's ports share.

    `open_connections` says how many have been handed over and are open, of `max_connections`. `idle_timeout_s` is how
    long a client may be silent from the start.
    """

    def __init__(
        self,
        tls: TlsContext,
        *,
        takes_plain: bool,
        max_connections: int,
        open_connections: Callable[[], int],
        idle_timeout_s: float,
    ) -> None:
        self.tls = tls
        self.takes_plain = takes_plain
        self.idle_timeout_s = idle_timeout_s
        self.counters = DoorCounters()
        self.turns: Final = Turns()
        self._max_connections = max_connections
        self._open_connections = open_connections
        self._waiting: dict[Doorman, None] = {}
        self._complain_at = 0.0
        bound_read_buffers()

    def doorman(self, connection: asyncio.Protocol) -> asyncio.Protocol:
        """The protocol for a new connection, which becomes `connection` once it has come in."""
        return Doorman(self, connection)

    def enter(self, doorman: Doorman) -> None:
        """Take a connection to the door."""
        if self._waiting and self._open_connections() + len(self._waiting) >= self._max_connections:
            oldest_of_busiest_host(self._waiting, lambda one: one.host).make_room()
        self._waiting[doorman] = None

    def leave(self, doorman: Doorman) -> None:
        """It has come in, or it is gone."""
        self._waiting.pop(doorman, None)

    def close(self) -> None:
        """End every connection that is not in yet."""
        for doorman in list(self._waiting):
            doorman.end()

    def complain(self, client: str, reason: str) -> None:
        """One line once in a while: strangers must not fill the log."""
        now = asyncio.get_running_loop().time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_INTERVAL_S
            counters = self.counters
            _logger.warning(
                "event=tls_refused client=%s reason=%r failures=%d refused_plain=%d",
                client,
                reason,
                counters.failures,
                counters.refused_plain,
            )


class Doorman(asyncio.Protocol):
    """A connection that has not come in yet."""

    def __init__(self, door: Door, connection: asyncio.Protocol) -> None:
        self.host = ""
        self._client = "?"
        self._door = door
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """What the client sent between the end of the handshake and the moment when it is handed over."""
        self._is_lost = False
        self._is_in = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self._client = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._timer = asyncio.get_running_loop().call_later(self._door.idle_timeout_s, self.end)
        self._door.enter(self)

    def data_received(self, data: bytes) -> None:
        """Look at the first byte, and go on accordingly."""
        if self._task is not None:
            self._early.append(data)
            return
        transport = self._transport
        assert transport is not None
        self._stop_timer()
        if data[0] == HANDSHAKE:
            loop = asyncio.get_running_loop()
            transport.pause_reading()
            self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self._too_slow)
            self._task = loop.create_task(self._secure(transport, data))
        elif self._door.takes_plain:
            self._early.append(data)
            self._hand_over(transport)
        else:
            self._door.counters.refused_plain += 1
            self._door.complain(self._client, "it speaks without TLS, which this port asks for (tls = enforcing)")
            self._door.leave(self)
            transport.write(TLS_ALERT)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone before it was in, or was going when it was handed over: then the loss was on its way to us.

        1. Behind the last bytes of a handshake comes a record that is none: the transport breaks, and has the loss told
           to the protocol that it has now, in a later turn.
        2. The handshake is finished, and the connection is handed over.
        3. The loss comes here. The connection would stay open for ever if it were not told.
        """
        if self._is_in:
            self._connection.connection_lost(exc)
            return
        self._is_lost = True
        self._stop_timer()
        self._door.leave(self)

    def make_room(self) -> None:
        """Close a connection whose place another one needs."""
        self._door.complain(self._client, "it has not come in yet, and others want its place")
        self.end()

    def end(self) -> None:
        """Close at once, and hold no place from now on."""
        self._stop_timer()
        self._door.leave(self)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _secure(self, transport: asyncio.Transport, first: bytes) -> None:
        """Do the handshake, of which `first` has been read, and hand over."""
        door, loop = self._door, asyncio.get_running_loop()
        await door.turns.next()
        starting = loop.create_task(
            loop.start_tls(transport, self, door.tls.context, server_side=True, ssl_shutdown_timeout=GOODBYE_TIMEOUT_S)
        )
        try:
            # `start_tls` puts its own protocol in our place in its first step, and has it read in the turn after that.
            await asyncio.sleep(0)
            handshake = Handshake(transport, first)
            starting.add_done_callback(lambda _: handshake.may_go_on.set())
            while not starting.done():
                handshake.step()
                await handshake.may_go_on.wait()
                if not starting.done():
                    await door.turns.next()
            handshake.leave()
            secured = await starting
        except OSError as error:
            door.counters.failures += 1
            door.complain(self._client, f"its TLS handshake failed: {_why(error)}")
            self.end()
            return
        finally:
            starting.cancel()
        self._stop_timer()
        if secured is None:
            door.counters.failures += 1
            return
        door.counters.handshakes += 1
        if not secured.is_closing():
            secured.set_read_buffer_limits(high=HELD_BYTES)  # type: ignore[attr-defined]  # with TLS both loops have it
        self._hand_over(secured)
        if self._is_lost:
            self._connection.connection_lost(None)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        self._door.leave(self)
        self._is_in = True
        connection = self._connection
        # Who says one thing and closes may be gone by now: what it said counts, as it does without TLS.
        is_ended = transport.is_closing()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        for data in self._early:
            if is_ended or not transport.is_closing():
                connection.data_received(data)

    def _too_slow(self) -> None:
        self._door.counters.failures += 1
        self._door.complain(self._client, f"its TLS handshake was not finished within {HANDSHAKE_TIMEOUT_S:g} s")
        self.end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _why(error: Exception) -> str:
    """OpenSSL's reason where it has one."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason
    return str(error) or type(error).__name__
