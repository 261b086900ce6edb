"""Shared code of targets whose nodes are processes of this machine, which are signalled by their pid.

A starting node opens its files long before its pid can be found. So no node is started while its files are rolled back,
and no rollback begins during a start. A process whose files change while it runs might break promises through no bug of
its own.
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
from .errors import TargetError
from .processes import send, wait_gone


class SignalledNodes(ABC):
    """The part of `Target` that needs only pids. `stop_s` is the time limit of `stop_node` in seconds."""

    stop_s: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self._stopped_pids: set[int] = set()
        self._start_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slow_downs: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    def pid(self, node_id: str) -> int | None:
        """Return the pid of a node's process, None if it does not run."""

    @abstractmethod
    async def _launch(self, node_id: str) -> None:
        """Start a node unless it runs, and wait until it answers; raises `TargetError`."""

    @abstractmethod
    def _find_disk_directories(self, node_id: str) -> tuple[Path, Path]:
        """Return the directories of the shim's records and the node's files. Raises `TargetError` without the shim."""

    def was_stopped(self, pid: int) -> bool:
        """Return True if the rig ended this process."""
        return pid in self._stopped_pids

    async def start_node(self, node_id: str) -> None:
        """Start a node, and wait until it serves."""
        async with self._block_starts([node_id]):
            await self._launch(node_id)

    async def stop_node(self, node_id: str) -> None:
        """Stop a node in an orderly way. Raises `TargetError` if it does not end in time."""
        async with self._block_starts([node_id]):
            pid = self.pid(node_id)
        if pid is not None:
            self._stopped_pids.add(pid)
            send(pid, signal.SIGTERM)
            await wait_gone([pid], self.stop_s)

    async def kill(self, node_ids: Sequence[str]) -> None:
        """Kill the processes of nodes (SIGKILL)."""
        async with self._block_starts(node_ids):
            await self._kill(node_ids)

    async def lose_power(self, node_ids: Sequence[str], kept_share: float, seed: int) -> None:
        """Kill nodes, and take back a part of their unsynced writes."""
        directories = [self._find_disk_directories(node_id) for node_id in node_ids]
        async with self._block_starts(node_ids):
            await self._kill(node_ids)
            for state, directory in directories:
                rng = random.Random(seed)
                await asyncio.to_thread(lose_power, state, directory, kept_share=kept_share, rng=rng)

    async def found_again(self, node_id: str) -> None:
        """Raise `TargetError`: not every target can be founded again."""
        raise TargetError(f"{node_id} is of a group that is not founded by one of its nodes")

    def pause(self, node_id: str) -> None:
        """Pause a node's process (SIGSTOP)."""
        send(self.pid(node_id), signal.SIGSTOP)

    def slow_down(self, node_id: str, run_s: float, stand_s: float) -> None:
        """Let a node's process run and pause in turns."""
        self.resume(node_id)
        self._slow_downs[node_id] = asyncio.create_task(self._slow_down_process(node_id, run_s, stand_s))

    def resume(self, node_id: str) -> None:
        """Let a paused or slowed process run normally again."""
        slowed = self._slow_downs.pop(node_id, None)
        if slowed is not None:
            slowed.cancel()
        send(self.pid(node_id), signal.SIGCONT)

    async def _slow_down_process(self, node_id: str, run_s: float, stand_s: float) -> None:
        while True:
            pid = self.pid(node_id)
            send(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(stand_s)
            finally:
                send(pid, signal.SIGCONT)
            await asyncio.sleep(run_s)

    @asynccontextmanager
    async def _block_starts(self, node_ids: Sequence[str]) -> AsyncIterator[None]:
        """Wait for starts of these nodes that are under way, and prevent starts inside this context."""
        async with AsyncExitStack() as stack:
            for node_id in sorted(node_ids):
                await stack.enter_async_context(self._start_locks[node_id])
            yield

    async def _kill(self, node_ids: Sequence[str]) -> None:
        pids = [pid for node_id in node_ids if (pid := self.pid(node_id)) is not None]
        self._stopped_pids |= set(pids)
        for pid in pids:
            send(pid, signal.SIGKILL)
        await wait_gone(pids)
