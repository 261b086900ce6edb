"""Samples of every node during a run: who leads in which term, memory, open files, and processes that end.

Status comes over HTTP, which no fault cuts; memory and files from `/proc`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .history import Recorder
from .target import Target

STATUS_PERIOD_S: Final = 0.5
USAGE_EVERY: Final = 10
"""Memory and open files are sampled at every tenth status."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def _never(_name: str, _served_s: float) -> bool:
    return False


class Observer:
    """Writes samples as events until it is cancelled.

    `may_end(node, served_s)` says whether a fault is in force over which a node may stop by itself whose process was
    first seen to serve then, by the event loop's clock, or not at all (infinity).
    """

    def __init__(self, target: Target, recorder: Recorder, may_end: Callable[[str, float], bool]) -> None:
        self._target = target
        self._recorder = recorder
        self._may_end = may_end
        self._pids: dict[str, int | None] = {}
        self._served_s: dict[str, float] = {}

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
            self._note_process(name, self._may_end)
        for name in self._target.others:
            self._note_process(name, _never)
        views = await asyncio.gather(*map(self._target.status, names))
        for view in views:
            if view is None:
                continue
            if self._served_s.get(view.node_id) == math.inf:
                self._served_s[view.node_id] = asyncio.get_running_loop().time()
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
                self._note_usage(node_id)

    def _note_process(self, node_id: str, may_end: Callable[[str, float], bool]) -> None:
        pid, before = self._target.pid(node_id), self._pids.get(node_id)
        if pid == before:
            return
        if before is not None:
            expected = self._target.was_stopped(before) or may_end(node_id, self._served_s[node_id])
            self._recorder.event("process", "ended", node=node_id, pid=before, expected=expected)
        if pid is not None:
            self._served_s[node_id] = math.inf
            self._recorder.event("process", "started", node=node_id, pid=pid)
        self._pids[node_id] = pid

    def _note_usage(self, node_id: str) -> None:
        pid = self._target.pid(node_id)
        if pid is None:
            return
        try:
            resident_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            open_files = len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, ValueError, IndexError):
            return  # it ended just now
        self._recorder.event("usage", node=node_id, resident_bytes=resident_pages * _PAGE_BYTES, open_files=open_files)
