"""What targets share whose nodes are processes of this machine: stopped, killed and paused by their pid."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from .processes import send, wait_gone


class SignalledNodes(ABC):
    """The part of `Target` that needs no more than pids. `stop_s` is how many seconds `stop_node` gives a node."""

    stop_s: ClassVar[float] = 60.0

    def __init__(self) -> None:
        self._stopped: set[int] = set()

    @abstractmethod
    def pid(self, node_id: str) -> int | None:
        """See `Target.pid`."""

    def was_stopped(self, pid: int) -> bool:
        """See `Target.was_stopped`."""
        return pid in self._stopped

    async def stop_node(self, node_id: str) -> None:
        """See `Target.stop_node`. Raises `TargetError` if the node does not end in time."""
        pid = self.pid(node_id)
        if pid is not None:
            self._stopped.add(pid)
            send(pid, signal.SIGTERM)
            await wait_gone([pid], self.stop_s)

    async def kill(self, node_ids: Sequence[str]) -> None:
        """See `Target.kill`."""
        pids = [pid for node_id in node_ids if (pid := self.pid(node_id)) is not None]
        self._stopped |= set(pids)
        for pid in pids:
            send(pid, signal.SIGKILL)
        await wait_gone(pids)

    def pause(self, node_id: str) -> None:
        """See `Target.pause`."""
        send(self.pid(node_id), signal.SIGSTOP)

    def resume(self, node_id: str) -> None:
        """See `Target.resume`."""
        send(self.pid(node_id), signal.SIGCONT)
