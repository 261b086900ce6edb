"""Shared parts of targets whose nodes are processes of this machine: stopped, killed and paused by their pid.

A node that is being started has opened its files long before its pid can be found.  So nothing that needs a dead
process goes on while one is being started, and no node is started while its files are rolled back: a process whose
files change under it would break promises that are not its own.
"""

from __future__ import annotations

import asyncio
import random
import signal
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar

from .disk.undo import lose_power
from .processes import send, wait_gone


class SignalledNodes(ABC):
    """The part of `Target` that needs no more than pids. `stop_s` is how many seconds `stop_node` gives a node."""

    stop_s: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self._stopped: set[int] = set()
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @abstractmethod
    def pid(self, node_id: str) -> int | None:
        """See `Target.pid`."""

    @abstractmethod
    async def _launch(self, node_id: str) -> None:
        """Start a node unless it runs, and wait until it answers; raises `TargetError`."""

    @abstractmethod
    def _disk_places(self, node_id: str) -> tuple[Path, Path]:
        """What the shim keeps of a node, and the node's files; raises `TargetError` if it runs without the shim."""

    def was_stopped(self, pid: int) -> bool:
        """See `Target.was_stopped`."""
        return pid in self._stopped

    async def start_node(self, node_id: str) -> None:
        """See `Target.start_node`."""
        async with self._settled([node_id]):
            await self._launch(node_id)

    async def stop_node(self, node_id: str) -> None:
        """See `Target.stop_node`. Raises `TargetError` if the node does not end in time."""
        async with self._settled([node_id]):
            pid = self.pid(node_id)
        if pid is not None:
            self._stopped.add(pid)
            send(pid, signal.SIGTERM)
            await wait_gone([pid], self.stop_s)

    async def kill(self, node_ids: Sequence[str]) -> None:
        """See `Target.kill`."""
        async with self._settled(node_ids):
            await self._kill(node_ids)

    async def lose_power(self, node_ids: Sequence[str], kept_share: float, seed: int) -> None:
        """See `Target.lose_power`."""
        places = [self._disk_places(node_id) for node_id in node_ids]
        async with self._settled(node_ids):
            await self._kill(node_ids)
            for state, directory in places:
                rng = random.Random(seed)
                await asyncio.to_thread(lose_power, state, directory, kept_share=kept_share, rng=rng)

    def pause(self, node_id: str) -> None:
        """See `Target.pause`."""
        send(self.pid(node_id), signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """See `Target.resume`."""
        send(self.pid(node_id), signal.SIGCONT)

    @asynccontextmanager
    async def _settled(self, node_ids: Sequence[str]) -> AsyncIterator[None]:
        """Wait for starts of these nodes that are under way; nobody starts them inside this context."""
        async with AsyncExitStack() as stack:
            for node_id in sorted(node_ids):
                await stack.enter_async_context(self._starting[node_id])
            yield

    async def _kill(self, node_ids: Sequence[str]) -> None:
        pids = [pid for node_id in node_ids if (pid := self.pid(node_id)) is not None]
        self._stopped |= set(pids)
        for pid in pids:
            send(pid, signal.SIGKILL)
        await wait_gone(pids)
