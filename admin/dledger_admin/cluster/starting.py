"""Patience with nodes that start: the time limit of the wait, and the messages meanwhile.

A start that makes progress is waited for, however long it takes. A node may still read and verify its log, and not
answer yet, or apply entries that are committed already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from .ports import bytes_read
from .probes import NodeStatus
from .processes import Service

START_TIMEOUT_S: Final = 30.0
"""Time limit in seconds for a start without progress. Then it is given up."""
SAY_AFTER_S: Final = 5.0
"""Interval in seconds after which a waiting user is told what is waited for."""
READ_STEP_BYTES: Final = 1 << 20
"""Number of further bytes read that count as progress. A node that only waits for a leader reads almost nothing."""


class Patience:
    """Observer of nodes that start; `timeout_s` counts from the last progress of any of them."""

    def __init__(
        self, services: Mapping[str, Service], timeout_s: float, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.timeout_s = timeout_s
        self._services = services
        self._say = say
        self._began_at = self._advanced_at = now = time.monotonic()
        self._say_at = now + SAY_AFTER_S
        self._read_bytes: dict[str, int] = {}
        self._applied_indexes: dict[str, int] = {}

    @property
    def is_late(self) -> bool:
        """True once more time has passed than a start without a long log takes."""
        return time.monotonic() - self._began_at >= self.timeout_s

    @property
    def is_over(self) -> bool:
        """True once no node has made progress for too long."""
        return time.monotonic() - self._advanced_at >= self.timeout_s

    def look(self, statuses: Mapping[str, NodeStatus | None], waits_for: str = "") -> None:
        """Record progress since the last call. From time to time say what is waited for, and what each node does."""
        activities = {name: self._describe_activity(name, status) for name, status in statuses.items()}
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + SAY_AFTER_S
            parts = [waits_for, *(f"{name} {activity}" for name, activity in activities.items() if activity)]
            self._say(f"waiting, for {now - self._began_at:.0f} s so far: {'; '.join(filter(None, parts))}")

    def _describe_activity(self, name: str, status: NodeStatus | None) -> str:
        if status is None:
            return self._describe_reading(name)
        if status.applied_index < status.commit_index:
            self._note_progress(self._applied_indexes, name, status.applied_index, 1)
            return f"applies entry {status.applied_index:,} of {status.commit_index:,}"
        return ""

    def _describe_reading(self, name: str) -> str:
        pid = self._services[name].pid()
        if pid is None:
            return "has ended"
        read_bytes = bytes_read(pid)
        if read_bytes is None:
            return "does not answer yet"
        self._note_progress(self._read_bytes, name, read_bytes, READ_STEP_BYTES)
        return f"does not answer yet, and has read {read_bytes >> 20:,} MiB"

    def _note_progress(self, counts: dict[str, int], name: str, count: int, step: int) -> None:
        if name not in counts:
            counts[name] = count
        elif count >= counts[name] + step:
            counts[name] = count
            self._advanced_at = time.monotonic()
