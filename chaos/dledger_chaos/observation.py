"""Samples of every node during a run: role, term, memory and open files, and starts and ends of processes.

Roles come from `Target.status`, which no fault cuts off. Memory and open files come from `/proc`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .errors import TargetError
from .history import Recorder
from .target import Target

STATUS_PERIOD_S: Final = 0.5
USAGE_EVERY: Final = 10
"""Number of samples of the status per sample of memory and open files."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def _may_never_end(_name: str, _served_since_s: float) -> bool:
    return False


class Observer:
    """Writes samples as events until it is cancelled.

    `may_end(node, served_s)` returns True if a fault allows a node to stop by itself. `served_s` is the time of its
    first answer by the event loop's clock, infinity before that.
    """

    def __init__(self, target: Target, recorder: Recorder, may_end: Callable[[str, float], bool]) -> None:
        self._target = target
        self._recorder = recorder
        self._may_end = may_end
        self._pids: dict[str, int | None] = {}
        self._served_since_s: dict[str, float] = {}

    async def run(self) -> None:
        """Sample for ever."""
        number = 0
        while True:
            await self.sample(usage=number % USAGE_EVERY == 0)
            number += 1
            await asyncio.sleep(STATUS_PERIOD_S)

    async def sample(self, *, usage: bool) -> None:
        """Write one sample of every node that runs."""
        names = [node.node_id for node in self._target.nodes]
        for name in names:
            self._record_process(name, self._may_end)
        for name in self._target.others:
            self._record_process(name, _may_never_end)
        views = await asyncio.gather(*map(self._target.status, names))
        for view in views:
            if view is None:
                continue
            if self._served_since_s.get(view.node_id) == math.inf:
                self._served_since_s[view.node_id] = asyncio.get_running_loop().time()
            self._recorder.event(
                "status",
                node=view.node_id,
                role=view.role,
                term=view.term,
                commit_index=view.commit_index,
                ready=view.ready,
            )
        if usage:
            for node_id in names:
                self._record_usage(node_id)

    def _record_process(self, node_id: str, may_end: Callable[[str, float], bool]) -> None:
        pid, before = self._target.pid(node_id), self._pids.get(node_id)
        if pid == before:
            return
        if before is not None:
            expected = self._target.was_stopped(before) or may_end(node_id, self._served_since_s[node_id])
            self._recorder.event("process", "ended", node=node_id, pid=before, expected=expected)
        if pid is not None:
            self._served_since_s[node_id] = math.inf
            self._recorder.event("process", "started", node=node_id, pid=pid)
        self._pids[node_id] = pid

    def _get_shim_prefix(self, node_id: str) -> str:
        """Return the path prefix of files that the disk shim has opened in a node's process."""
        try:
            return f"{self._target.disk(node_id).directory}/"
        except TargetError:
            return "\0"

    def _record_usage(self, node_id: str) -> None:
        pid = self._target.pid(node_id)
        if pid is None:
            return
        try:
            resident_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            open_files = sum(not name.startswith(self._get_shim_prefix(node_id)) for name in _iter_open_names(pid))
        except (OSError, ValueError, IndexError):
            return  # it ended just now
        self._recorder.event("usage", node=node_id, resident_bytes=resident_pages * _PAGE_BYTES, open_files=open_files)


def _iter_open_names(pid: int) -> Iterator[str]:
    """Yield the path behind each descriptor of a process. Raises `OSError` if the process has ended."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue  # closed just now
