"""Dialled peer: the two connections by which this node sends to one peer, redialled until they are open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from dledger.net.connection import PeerConnection
from dledger.net.frames import Frame, FrameKind, encode_head
from dledger.net.handshake import Belonging, Handshake, Hello
from dledger.net.settings import Address, LinkCounters, LinkLimits, PeerTls
from dledger.net.transport import Buffer, PeerError, PeerProtocolError
from dledger.types import Lane, ReplicaId
from dledger_base.addresses import connect
from dledger_base.secret import GroupSecrets
from dledger_base.supervision import supervise

_QUESTION_TIMEOUT_S = 0.25
"""Time limit in seconds for a stranger's answer to the question who it is."""
_READY_FRAME = encode_head(FrameKind.READY, b"")


@dataclass(frozen=True, slots=True)
class DialContext:
    """Settings that all dialled peers of a node share. `make_nonce` returns the handshake's random bytes."""

    hello: Hello
    secrets: GroupSecrets
    tls: PeerTls | None
    limits: LinkLimits
    counters: LinkCounters
    make_nonce: Callable[[], bytes]
    rng: random.Random
    belonging: Belonging


class DialListener(Protocol):
    """Listener for the state of a dialled peer."""

    def on_reachable(self, peer: ReplicaId) -> None:
        """Note that both lanes are open."""

    def on_unreachable(self, peer: ReplicaId) -> None:
        """Note that one lane was lost, so that the other was closed."""

    def on_dial_failed(self, node_id: str, address: Address, error: Exception) -> None:
        """Note that an attempt failed. There will be another attempt."""


class DialledPeer:
    """Peer that this node dials. With `learned`, its address came from its own hello, not from the configuration."""

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
        self._stranger_error: Exception | None = None
        """Error that names what answers at this address instead of a peer, or says that nothing does.

        The other end is asked only once for each address.
        """
        self._lost = asyncio.Event()
        self._redial_now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to dial. Needs a running event loop."""
        name = f"dial {self.node_id}"
        self._task = asyncio.get_running_loop().create_task(supervise(self._run, name, self._count_restart), name=name)

    def send(self, lane: Lane, head: bytes, payload: Sequence[Buffer]) -> bool:
        """Queue a frame. Returns False if the lane is not open or its queue is full."""
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
        """Return the number of a lane's bytes that the kernel has not taken yet."""
        return 0 if self.peer is None else self._lanes[lane].queued_bytes

    def hurry(self) -> None:
        """Redial an unreachable peer without a pause, because it showed a sign of life."""
        if self.peer is None:
            self._redial_s = self._context.limits.redial_min_s
            self._redial_now.set()

    def set_address(self, address: Address) -> None:
        """Dial another address from now on. Connections to the old address are closed."""
        if address == self.address:
            return
        self.address = address
        self._stranger_error = None
        self._close_lanes()
        if self._task is not None:
            self._task.cancel()
            self._redial_s = self._context.limits.redial_min_s
            self.start()

    def give_up(self) -> None:
        """Stop dialling, after an attempt has failed."""
        if self._task is not None:
            self._task.cancel()

    def part_from_strangers(self) -> None:
        """Close the lanes to a node that turns out to be of another group."""
        hello, peer = self._lanes[0].hello if self._lanes else None, self.peer
        if hello is not None and peer is not None and self._context.belonging.find_mismatch(hello.group_id, peer):
            self._close_lanes()

    async def close(self) -> None:
        """Close both lanes and stop dialling."""
        lanes = self._lanes
        self._close_lanes()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for connection in lanes:
            await connection.wait_closed()

    def on_open(self, connection: PeerConnection) -> None:  # noqa: ARG002 - lanes are dialled one after the other
        """Note that the lane being dialled is open."""
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)

    def on_frame(self, connection: PeerConnection, frame: Frame) -> None:  # noqa: ARG002
        """Refuse every frame, because only the dialler sends on this connection."""
        raise PeerProtocolError(f"{FrameKind(frame.kind).name} found, nothing expected on a dialled connection")

    def on_closed(self, connection: PeerConnection, error: Exception | None) -> None:
        """Fail the dialling under way, and close the other lane as well."""
        if connection in self._lanes:
            if self._opening is not None and not self._opening.done():
                self._opening.set_result(error or ConnectionResetError("it closed the connection"))
            self._close_lanes()

    def _count_restart(self) -> None:
        self._context.counters.task_restarts += 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        # the lanes are left from a run that a listener's exception ended; the peer is dialled and announced again
        self._close_lanes()
        while True:
            address = self.address
            self._redial_now.clear()
            try:
                await self._connect(address)
            except (OSError, PeerError, TimeoutError, ValueError, OverflowError) as error:  # last two: bad address
                self._close_lanes()
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
                await self._redial_now.wait()
        except TimeoutError:
            pass

    async def _connect(self, address: Address) -> None:
        """Open both lanes.

        Raises `OSError`, `PeerError` or `TimeoutError`; ValueError or OverflowError if the address is invalid.
        """
        self._lost.clear()
        timeout_s = self._context.limits.dial_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                for lane in Lane:
                    await self._open_lane(lane, address)
        except TimeoutError as error:
            raise await self._find_silence_reason(timeout_s) from error
        control, bulk = self._lanes
        if control.peer is None or control.peer != bulk.peer:
            raise ConnectionResetError(f"it changed from {control.peer} to {bulk.peer} between two connections")
        for connection in self._lanes:
            connection.send(_READY_FRAME, (), len(_READY_FRAME))
        self.peer = control.peer
        self._context.counters.connects += 1
        self._context.counters.reconnects += self._was_reachable
        self._was_reachable = True
        self._stranger_error = None
        self._listener.on_reachable(self.peer)

    async def _find_silence_reason(self, timeout_s: float) -> Exception:
        """Return the error of an attempt that timed out.

        If the other end has sent nothing, it is asked once: the answer of a stranger shows which protocol it speaks.
        """
        no_answer = TimeoutError(f"no answer within {timeout_s:g} s")
        if self._stranger_error is None and not self._was_reachable and self._lanes and self._lanes[-1].ask_stranger():
            self._opening = asyncio.get_running_loop().create_future()
            self._stranger_error = TimeoutError(f"it takes connections and says nothing: {no_answer}")
            try:
                async with asyncio.timeout(_QUESTION_TIMEOUT_S):
                    self._stranger_error = await self._opening or no_answer
            except TimeoutError:
                pass
            if isinstance(self._stranger_error, ConnectionError):
                self._stranger_error = ConnectionResetError(
                    "it says nothing, and closes the connection when it is spoken to, as a TLS port does"
                )
        return self._stranger_error or no_answer

    async def _open_lane(self, lane: Lane, address: Address) -> None:
        context = self._context
        loop = asyncio.get_running_loop()
        hello = msgspec.structs.replace(context.hello, lane=lane)
        handshake = Handshake.dial(hello, context.secrets.first, context.make_nonce(), self.node_id, context.belonging)
        connection = PeerConnection(
            *(handshake, self, context.counters, context.limits.dead_peer_timeout_s),
            binds_names=context.tls is not None and context.tls.binds_names,
        )
        self._lanes.append(connection)
        self._opening = loop.create_future()
        host, port = address
        try:
            await connect(
                lambda: connection, host, port, context.tls.client.context if context.tls is not None else None
            )
        except asyncio.CancelledError:
            connection.abandon()
            raise
        error = await self._opening
        if error is not None:
            raise error
        if connection not in self._lanes:
            raise ConnectionResetError("it closed a connection")

    def _close_lanes(self) -> None:
        """Close all open connections, and notify the listener if the peer was reachable."""
        lanes, self._lanes = self._lanes, []
        peer, self.peer = self.peer, None
        for connection in lanes:
            connection.end()
        self._lost.set()
        if peer is not None:
            self._context.counters.disconnects += 1
            self._listener.on_unreachable(peer)
