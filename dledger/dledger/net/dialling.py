"""The two connections by which this node sends to one peer, dialled again and again until they stand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dledger.net.connection import PeerConnection
from dledger.net.errors import PeerError, PeerProtocolError
from dledger.net.frames import Frame, FrameKind, encode_head
from dledger.net.handshake import Handshake, Hello
from dledger.net.settings import Address, LinkCounters, LinkLimits, PeerTls
from dledger.net.transport import Buffer
from dledger.supervision import supervise
from dledger.types import Lane, ReplicaId

_LAST_WORDS_S = 0.25
"""How long a stranger has to say who it is."""
_READY = encode_head(FrameKind.READY, b"")


@dataclass(frozen=True, slots=True)
class DialContext:
    """What all dialled peers of a node share.  `make_nonce` gives the handshake's random bytes."""

    hello: Hello
    secret: bytes
    tls: PeerTls | None
    limits: LinkLimits
    counters: LinkCounters
    make_nonce: Callable[[], bytes]
    rng: random.Random


class DialListener(Protocol):
    """Whom a dialled peer tells how it fares."""

    def on_reachable(self, peer: ReplicaId) -> None:
        """Both lanes are open."""

    def on_unreachable(self, peer: ReplicaId) -> None:
        """One lane was lost, and the other closed with it."""

    def on_dial_failed(self, node_id: str, address: Address, error: Exception) -> None:
        """An attempt failed; there will be another one."""


class DialledPeer:
    """A peer that this node dials.  `learned`: its address came with its own hello, not from configuration."""

    def __init__(
        self, node_id: str, address: Address, context: DialContext, listener: DialListener, *, learned: bool
    ) -> None:
        self.node_id = node_id
        self.address = address
        self.learned = learned
        self.peer: ReplicaId | None = None
        """The peer's incarnation while both lanes are open, else None."""
        self._context = context
        self._listener = listener
        self._lanes: list[PeerConnection] = []
        self._opening: asyncio.Future[Exception | None] | None = None
        self._redial_s = context.limits.redial_min_s
        self._was_reachable = False
        self._found: Exception | None = None
        """What answers at this address instead of a peer, or that nothing does; it is asked once."""
        self._lost = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to dial; needs a running event loop."""
        name = f"dial {self.node_id}"
        self._task = asyncio.get_running_loop().create_task(supervise(self._run, name, self._count_restart), name=name)

    def send(self, lane: Lane, head: bytes, payload: Sequence[Buffer]) -> bool:
        """Queue a frame; False if the lane is not open or its queue is full."""
        if self.peer is None:
            return False
        connection = self._lanes[lane]
        if not connection.is_open:
            return False
        size = len(head) + sum(map(len, payload))
        if connection.queued_bytes + size > self._context.limits.queue_bytes(lane):
            self._context.counters.refused_sends += 1
            return False
        connection.send(head, payload, size)
        return True

    def queued_bytes(self, lane: Lane) -> int:
        """Bytes of a lane that the kernel has not taken yet."""
        return 0 if self.peer is None else self._lanes[lane].queued_bytes

    def hurry(self) -> None:
        """The peer showed a sign of life: if it is not reachable, make no pause before the next attempt."""
        if self.peer is None:
            self._redial_s = self._context.limits.redial_min_s
            self._hurry.set()

    def set_address(self, address: Address) -> None:
        """Dial there from now on; connections to another address are closed."""
        if address == self.address:
            return
        self.address = address
        self._found = None
        self._drop()
        if self._task is not None:
            self._task.cancel()
            self._redial_s = self._context.limits.redial_min_s
            self.start()

    def give_up(self) -> None:
        """Dial no more, once an attempt has failed."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Close both lanes and dial no more."""
        lanes = self._lanes
        self._drop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for connection in lanes:
            await connection.wait_closed()

    def on_open(self, connection: PeerConnection) -> None:  # noqa: ARG002 - lanes are dialled one after the other
        """See `ConnectionOwner`."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)

    def on_frame(self, connection: PeerConnection, frame: Frame) -> None:  # noqa: ARG002
        """See `ConnectionOwner`."""
        raise PeerProtocolError(f"{FrameKind(frame.kind).name} found, nothing expected on a dialled connection")

    def on_closed(self, connection: PeerConnection, error: Exception | None) -> None:
        """See `ConnectionOwner`."""
        if connection in self._lanes:
            if self._opening is not None and not self._opening.done():
                self._opening.set_result(error or ConnectionResetError("it closed the connection"))
            self._drop()

    def _count_restart(self) -> None:
        self._context.counters.task_restarts += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._drop()  # lanes of a run that a listener's exception ended: the peer is dialled and announced again
        while True:
            address = self.address
            self._hurry.clear()
            try:
                await self._connect(address)
            except (OSError, PeerError, TimeoutError, ValueError, OverflowError) as error:  # the last two: no address
                self._drop()
                self._context.counters.dial_failures += 1
                self._listener.on_dial_failed(self.node_id, address, error)
            else:
                reachable_at = loop.time()
                await self._lost.wait()
                if loop.time() - reachable_at >= self._context.limits.settled_s:
                    self._redial_s = self._context.limits.redial_min_s
                    continue
            await self._pause()
            self._redial_s = min(self._redial_s * 2, self._context.limits.redial_max_s)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._redial_s * self._context.rng.uniform(0.5, 1.0)):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _connect(self, address: Address) -> None:
        """Open both lanes; raises `OSError`, `PeerError` or `TimeoutError`, for what is no address ValueError or
        OverflowError.
        """
        self._lost.clear()
        timeout_s = self._context.limits.dial_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                for lane in Lane:
                    await self._dial(lane, address)
        except TimeoutError as error:
            raise await self._find_stranger(timeout_s) from error
        control, bulk = self._lanes
        if control.peer is None or control.peer != bulk.peer:
            raise ConnectionResetError(f"it changed from {control.peer} to {bulk.peer} between two connections")
        for connection in self._lanes:
            connection.send(_READY, (), len(_READY))
        self.peer = control.peer
        self._context.counters.connects += 1
        self._context.counters.reconnects += self._was_reachable
        self._was_reachable = True
        self._found = None
        self._listener.on_reachable(self.peer)

    async def _find_stranger(self, timeout_s: float) -> Exception:
        """Why nobody has answered in time: a stranger says who it is if it is asked, and a peer has no need to be."""
        silent = TimeoutError(f"no answer within {timeout_s:g} s")
        if self._found is None and not self._was_reachable and self._lanes and self._lanes[-1].ask_stranger():
            self._opening = asyncio.get_running_loop().create_future()
            self._found = TimeoutError(f"it takes connections and says nothing: {silent}")
            try:
                async with asyncio.timeout(_LAST_WORDS_S):
                    self._found = await self._opening or silent
            except TimeoutError:
                pass
            if isinstance(self._found, ConnectionError):
                self._found = ConnectionResetError(
                    "it says nothing, and closes the connection when it is spoken to, as a TLS port does"
                )
        return self._found or silent

    async def _dial(self, lane: Lane, address: Address) -> None:
        context = self._context
        loop = asyncio.get_running_loop()
        hello = msgspec.structs.replace(context.hello, lane=lane)
        handshake = Handshake.dial(hello, context.secret, context.make_nonce(), self.node_id)
        connection = PeerConnection(handshake, self, context.counters, context.limits.dead_peer_timeout_s)
        self._lanes.append(connection)
        self._opening = loop.create_future()
        host, port = address
        try:
            await loop.create_connection(
                lambda: connection, host, port, ssl=context.tls.client.context if context.tls is not None else None
            )
        except asyncio.CancelledError:
            connection.abandon()
            raise
        error = await self._opening
        if error is not None:
            raise error
        if connection not in self._lanes:
            raise ConnectionResetError("it closed a connection")

    def _drop(self) -> None:
        """Close whatever is open; tells the listener if the peer was reachable."""
        lanes, self._lanes = self._lanes, []
        peer, self.peer = self.peer, None
        for connection in lanes:
            connection.end()
        self._lost.set()
        if peer is not None:
            self._context.counters.disconnects += 1
            self._listener.on_unreachable(peer)
