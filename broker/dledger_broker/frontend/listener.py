"""The client port and the alias port: accepts connections, enforces their limits, and writes the answers of each
turn.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from dledger_base.accepting import Port
from dledger_base.admission import Admission
from dledger_base.doorman import DoorCounters
from dledger_base.eviction import Strangers
from dledger_base.loop_holds import ANSWERS, REQUESTS, LoopHolds
from dledger_base.port_bounds import PortBounds, PortLimits
from dledger_base.tls import TlsContext
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import StartError
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read
from dledger_remoting.frame import FrameBounds

TURN_BYTES: Final = 256 << 10
"""Size in bytes of received data that is handled before the end of the turn of the event loop. Less waits for
that end.
"""
TURN_S: Final = 0.03
"""Maximum time in seconds of a turn for received requests. The rest waits for the next turn, and so do its
connections.
"""
MEASURED_CUTS: Final = 32
"""Number of frames, KiB and reads that may be cut before the clock is read. The clock costs as much as a short cut."""
STEP_FRAMES: Final = 1_024
"""Maximum number of requests that are handled before the time is checked. A turn usually has fewer sends."""
MAX_WAITING_BYTES: Final = 16 << 20
"""Maximum size in bytes of the requests that wait for a turn. Beyond it no connection is read."""
MAX_WAITING_FRAMES: Final = 128 << 10
"""Maximum number of the requests that wait for a turn, as `MAX_WAITING_BYTES`. The bounds of a frame take 200 bytes."""
TURN_ANSWER_BYTES: Final = 16 << 20
"""Maximum size in bytes of the answers in a turn of the event loop. Beyond it no more pulls are answered in that
turn.
"""
IDLE_SCANS: Final = 8
"""Number of scans of the connections per idle timeout. A silent connection lives at most 1/8 longer than the
timeout.
"""

_KEYS: Final = ("port", "alias_port")
"""The configuration keys of the ports, in the order in which they are bound."""


class Flow(Protocol):
    """Receiver of the sign that a client reads or does not read its answers."""

    def clog(self, channel: str) -> None:
        """Stop answering pulls of a channel, because its client does not read."""

    def unclog(self, channel: str) -> None:
        """Answer the pulls of a channel again."""

    def end_turn_early(self) -> None:
        """Answer no more pulls in this turn, because the collected answers have to be written first."""


class Judging(Protocol):
    """Access control, as far as the listener uses it."""

    @property
    def is_on(self) -> bool:
        """True if requests are judged and refused."""


class Listener:
    """All connections of clients to this node. The open connections are in `connections`.

    - `on_reads`: gets everything that all connections have received in a turn. It returns whether answers may be
      written at once.
    - `on_lost`: called for every connection that had been admitted, after everything that arrived over it.
    - `tls`: if given, both ports speak TLS, as the configuration says.
    - `holds`: counts what holds the loop.
    - `flow`: is notified of clients that do not read.
    - `judging`: while it is on, requests of clients that have signed nothing arrive in a small memory of their own.
    """

    def __init__(
        self,
        node_id: str,
        live: LiveConfig,
        counters: BrokerCounters,
        connections: set[ClientConnection],
        on_reads: Callable[[Sequence[Read]], bool],
        on_lost: Callable[[ClientConnection], None],
        tls: TlsContext | None = None,
        holds: LoopHolds | None = None,
        flow: Flow | None = None,
        judging: Judging | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        holds = holds or LoopHolds()
        self._handling = holds.part(REQUESTS)
        self._answering = holds.part(ANSWERS)
        self.node_id = node_id
        self.limits = live.own
        self.counters = counters
        self._on_reads = on_reads
        self._flow = flow
        self._judging = judging
        self._collected_bytes = 0
        """Size in bytes of the answers that were collected and not yet written."""
        self._reads: list[tuple[ClientConnection, bytes, list[FrameBounds]]] = []
        self._read_bytes = self._read_frames = 0
        self._is_turn_due = False
        self._spent_s = 0.0
        """Time in seconds that received requests took in this turn."""
        self._cutting_since = 0.0
        """Time of the last turn, or of the first read behind it if nothing was to be done before."""
        self._unmeasured = 0
        """Frames and KiB that were cut since the clock was read last."""
        self._cut_too_long = False
        """True if cutting reads into frames has taken the time of a turn."""
        self._waiting: set[ClientConnection] = set()
        """Connections that are not read until their received requests have had their turn."""
        self._lost: set[ClientConnection] = set()
        """The lost connections among the waiting connections."""
        self._unreported_losses: deque[ClientConnection] = deque()
        """Lost connections for which `on_lost` is not called yet."""
        self._on_lost = on_lost
        self._connections = connections
        self._live = live
        limits = live.own
        self._strangers: Strangers[ClientConnection] = Strangers()
        """Open connections that have sent no request. They make room for other connections."""
        self._unproven: Strangers[ClientConnection] = Strangers()
        """Other open connections that make room: access control is on, and no request was signed for an account."""
        self._admission = Admission(
            connections,
            counters,
            max_connections=limits.max_connections,
            max_per_host=self._max_per_host,
            make_room=self._make_room,
        )
        self.bounds: Final = PortBounds(connections, _port_limits(limits), counters, tls)
        self._unwritten: list[ClientConnection] = []
        self._is_handling = False
        """True while requests are handled. Answers of that time are written, or scheduled, right after it."""
        self._ports: list[Port] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self.is_deaf = False
        """True if no connection is read any more, because the node stops."""
        self.is_full = False
        """True if no connection is read until fewer requests wait for a turn."""

    @property
    def port(self) -> int:
        """The client port, 0 before `bind`."""
        return self._ports[0].address[1] if self._ports else 0

    @property
    def door_counters(self) -> DoorCounters:
        """Counters of events before clients were connected over TLS."""
        return self.bounds.door.counters

    async def bind(self, host: str, port: int, alias: int | None = None) -> None:
        """Take a port: the client port first, then, with its number, the alias port.

        Raises `StartError` if it is in use or the address is not this machine's.
        """
        door, make = self.bounds.door, partial(ClientConnection, self, alias)

        def enter(_host: str) -> asyncio.Protocol:
            return door.doorman(make)

        try:
            self._ports.append(await Port.bind(host, port, enter, door.make_room))
        except OSError as error:
            raise _bind_error(_KEYS[len(self._ports)], host, port, error) from error

    async def serve(self) -> None:
        """Accept connections. Raises `StartError` if another process took the same port at the same time."""
        for key, bound in zip(_KEYS, self._ports, strict=False):
            host, port = bound.address
            try:
                bound.start_serving()
            except OSError as error:
                raise _bind_error(key, host, port, error) from error
        self._arm_idle_timer()

    def stop_reading(self) -> None:
        """Close the port and read nothing more. Requests that have been read are handled, and answers are still
        written.
        """
        self.is_deaf = True
        self._stop_accepting()
        for connection in self._connections:
            connection.update_reading()
        while self._reads:
            self._handle_step()
        self._note_waiting()
        self._report_losses()

    async def close(self) -> None:
        """Close the port and every connection, after the queued answers were passed to the operating system."""
        self.is_deaf = True
        self._stop_accepting()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self._connections):
            connection.close()

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new connection. Return False if there are too many already, in all or from its host."""
        if self.is_deaf or not self._admission.admit(connection):
            return False
        self.counters.connections_accepted += 1
        self._strangers.add(connection, connection.address.ip)
        return True

    def greeted(self, connection: ClientConnection) -> None:
        """Keep the place of a connection, because its first request has arrived.

        While access control is on, it may have to make room until `proven`. Otherwise a stranger could take all places.
        """
        if self._strangers.discard(connection) and self.judges:
            self._unproven.add(connection, connection.address.ip)

    def proven(self, connection: ClientConnection) -> None:
        """Keep the place of a connection that was found to have an account. The limit of its host no longer counts."""
        self._unproven.discard(connection)
        self._admission.exempt(connection)

    def received(self, connection: ClientConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Have the whole frames in `data` handled at the end of this turn."""
        self._reads.append((connection, data, frames))
        self._read_bytes += len(data)
        self._read_frames += len(frames)
        self._unmeasured += 1 + len(frames) + (len(data) >> 10)
        if not self._is_turn_due:
            self._is_turn_due = True
            self.loop.call_soon(self._turn)
            self._cutting_since = self.loop.time()
        if self._read_bytes >= TURN_BYTES:
            self.handle_reads()
        if self._unmeasured >= MEASURED_CUTS:
            self._measure_cutting()

    def _measure_cutting(self) -> None:
        """Read no connection before the next turn if cutting reads into frames has taken the time of a turn."""
        self._unmeasured = 0
        if not self.is_full and self.loop.time() - self._cutting_since - self._spent_s >= TURN_S:
            self._cut_too_long = True
            self._note_waiting()

    def _turn(self) -> None:
        self._is_turn_due = False
        self._cutting_since = self.loop.time()
        self._spent_s, self._unmeasured, self._cut_too_long = 0.0, 0, False
        if self._unreported_losses:
            self._report_losses()  # first, because requests of other clients may fill every turn
        self.handle_reads()

    def handle_reads(self) -> None:
        """Handle the received requests, in the order of their arrival, as far as this turn has time for them."""
        try:
            while self._reads and self._spent_s < TURN_S:
                began = self.loop.time()
                self._handle_step()
                self._spent_s += self.loop.time() - began
        finally:
            if self._reads or self._waiting or self.is_full:
                self._note_waiting()
        if self._unreported_losses:
            self._report_losses()

    def _note_waiting(self) -> None:
        """Stop reading connections whose requests wait for a turn, and all others while there is too much to do."""
        if self._reads:
            self._schedule_turn()
        before, self._waiting = self._waiting, {connection for connection, _, _ in self._reads}
        is_full = self._read_bytes > MAX_WAITING_BYTES or self._read_frames > MAX_WAITING_FRAMES or self._cut_too_long
        changed = self._connections if is_full != self.is_full else before ^ self._waiting
        self.is_full = is_full
        for connection in list(changed):
            connection.waits_for_turn = connection in self._waiting
            connection.update_reading()
        lost = (before - self._waiting) & self._lost
        self._lost -= lost
        self._unreported_losses.extend(lost)

    def _report_losses(self) -> None:
        """Report lost connections, as far as this turn has time for it. Many requests may wait of a single
        connection.
        """
        while self._unreported_losses and (self._spent_s < TURN_S or self.is_deaf):
            began = self.loop.time()
            self._on_lost(self._unreported_losses.popleft())
            self._spent_s += self.loop.time() - began
        if self._unreported_losses:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self.loop.call_soon(self._turn)

    def _split_reads(self) -> list[tuple[ClientConnection, bytes, list[FrameBounds]]]:
        """Take the first reads, up to the limit of a step. At least one limit is reached."""
        number = count = size = over = 0
        while over <= 0 and size < TURN_BYTES:
            connection, data, frames = self._reads[number]
            number, count, size = number + 1, count + len(frames), size + len(data)
            over = count - STEP_FRAMES
        step, self._reads = self._reads[:number], self._reads[number:]
        if over > 0:
            step[-1] = connection, data, frames[:-over]
            self._reads.insert(0, (connection, data, frames[-over:]))
            size -= len(data)
            count = STEP_FRAMES
        self._read_bytes -= size
        self._read_frames -= count
        return step

    def _handle_step(self) -> None:
        """Handle as many of the reads as are handled at once."""
        if self._read_frames > STEP_FRAMES or self._read_bytes >= TURN_BYTES:
            reads = self._split_reads()
        else:
            reads, self._reads = self._reads, []
            self._read_bytes = self._read_frames = 0
        self._is_handling, writes_now = True, False
        try:
            with self._handling:
                writes_now = self._on_reads(reads)
        except BaseException:
            for connection, _, _ in reads:
                # otherwise their clients would wait for answers in vain
                connection.drop("a request of its turn broke this node")
            raise
        finally:
            self._is_handling = False
            if self._unwritten and writes_now:
                self.flush()
            elif self._unwritten:
                self.loop.call_soon(self.flush)
        most = self.limits.max_in_flight
        for connection, _, _ in reads:
            if connection.in_flight > most:
                connection.on_in_flight_limit()

    def lost(self, connection: ClientConnection) -> None:
        """Handle the loss of a connection."""
        try:
            self.handle_reads()
        finally:
            self._strangers.discard(connection)
            self._unproven.discard(connection)
            if self._admission.lost(connection):
                if connection in self._waiting:
                    self._lost.add(connection)
                else:
                    self._unreported_losses.append(connection)
                    self._report_losses()

    def collected(self, size: int) -> None:
        """Count an answer of this turn, and end the turn of pulls early if the answers are too large."""
        self._collected_bytes += size
        if self._collected_bytes > TURN_ANSWER_BYTES and self._flow is not None:
            self._flow.end_turn_early()

    def clogged(self, connection: ClientConnection, *, is_clogged: bool) -> None:
        """Notify `flow` that the client of a connection does not read, or reads again."""
        if self._flow is None:
            return
        if is_clogged:
            self._flow.clog(connection.key)
        else:
            self._flow.unclog(connection.key)

    def schedule_flush(self, connection: ClientConnection) -> None:
        """Write the collected answers of `connection`, after the requests being handled or at the end of this turn."""
        if not self._unwritten and not self._is_handling:
            self.loop.call_soon(self.flush)
        self._unwritten.append(connection)

    def flush(self) -> None:
        """Write the collected answers of all connections, with one call for each."""
        connections, self._unwritten = iter(self._unwritten), []
        self._collected_bytes = 0
        connection: ClientConnection | None = None
        try:
            with self._answering:
                for connection in connections:
                    connection.flush()
        except BaseException:
            if connection is not None:
                connection.drop("its answers could not be written")
            # otherwise the other clients would wait for their answers in vain
            self._unwritten = [*connections, *self._unwritten]
            if self._unwritten:
                self.loop.call_soon(self.flush)
            raise

    def _max_per_host(self) -> int:
        return self._live.config.max_connections_per_host

    def _make_room(self) -> None:
        crowd = self._strangers if len(self._strangers) else self._unproven
        if len(crowd):
            stranger = crowd.oldest_of_busiest_host()
            self.lost(stranger)
            stranger.make_room()

    @property
    def limit_counters(self) -> BrokerCounters:
        """Counters of the limits of connections."""
        return self.counters

    @property
    def judges(self) -> bool:
        """True if access control is on."""
        return self._judging is not None and self._judging.is_on

    def _stop_accepting(self) -> None:
        """Close the ports. Open connections stay."""
        self.bounds.close()
        for port in self._ports:
            port.close()
        self._ports = []

    def _arm_idle_timer(self) -> None:
        self._idle_timer = self.loop.call_later(self.limits.idle_timeout_ms / 1000 / IDLE_SCANS, self._scan_idle)

    def _scan_idle(self) -> None:
        self._arm_idle_timer()  # first, so that an exception below does not end the scans
        now = self.loop.time()
        for connection in list(self._connections):
            if connection.active:
                connection.active = False
                connection.idle_since = now
            elif (now - connection.idle_since) * 1000 >= self.limits.idle_timeout_ms:
                connection.end_silence(self.limits.idle_timeout_ms)


def _port_limits(config: BrokerConfig) -> PortLimits:
    return PortLimits(
        max_connections=config.max_connections,
        max_frame_bytes=config.max_frame_bytes,
        max_partial_bytes=config.max_partial_bytes,
        slow_sender_timeout_ms=config.slow_sender_timeout_ms,
        unread_bytes=config.pause_outgoing_bytes,
        max_unread_bytes=config.max_unread_bytes,
        slow_reader_timeout_ms=config.slow_reader_timeout_ms,
        idle_timeout_ms=config.idle_timeout_ms,
        takes_plain=config.tls != "enforcing",
    )


def require_bindable(key: str, host: str, port: int) -> None:
    """Raise `StartError` naming `key` if a port cannot be listened on, before anything else is touched."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _bind_error(key, host, port, error) from error


def _bind_error(key: str, host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{key} {port} on {host} is in use by another process: stop that one, or set another {key} (nothing was "
            "changed)"
        )
    return StartError(
        f"cannot listen on {host}:{port} for {key} ({error.strerror or error}): the host must be an address of this "
        "machine"
    )
