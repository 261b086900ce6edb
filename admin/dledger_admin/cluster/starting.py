"""Patience with nodes that start: how long they are waited for, and what is said meanwhile.

A start that gets on is waited for, however long it takes: a node that does not answer yet and reads its log, which it
verifies first, and one that applies what is committed already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from .ports import bytes_read
from .probes import NodeStatus
from .processes import Service

START_TIMEOUT_S: Final = 30.0
"""A start that gets no further for this long is given up."""
SAY_AFTER_S: Final = 5.0
"""Whoever waits is told what for after so long, and again each time as much has passed."""
READ_STEP_BYTES: Final = 1 << 20
"""A node that has read so much more gets on; one that asks for a name, or for a leader, reads next to nothing."""


class Patience:
    """Looks at nodes that start; `timeout_s` counts from when one of them has got further last."""

    def __init__(
        self, services: Mapping[str, Service], timeout_s: float, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.timeout_s = timeout_s
        self._services = services
        self._say = say
        self._began_at = self._advanced_at = now = time.monotonic()
        self._say_at = now + SAY_AFTER_S
        self._read: dict[str, int] = {}
        self._applied: dict[str, int] = {}

    @property
    def is_late(self) -> bool:
        """Whether more time has passed than a start without a long log takes."""
        return time.monotonic() - self._began_at >= self.timeout_s

    @property
    def is_over(self) -> bool:
        """Whether nothing has got any further for too long."""
        return time.monotonic() - self._advanced_at >= self.timeout_s

    def look(self, statuses: Mapping[str, NodeStatus | None], waits_for: str = "") -> None:
        """Note who got further since the last look; from time to time tell what is waited for, and who does what."""
        doing = {name: self._doing(name, status) for name, status in statuses.items()}
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + SAY_AFTER_S
            what = [waits_for, *(f"{name} {it}" for name, it in doing.items() if it)]
            self._say(f"waiting, for {now - self._began_at:.0f} s so far: {'; '.join(filter(None, what))}")

    def _doing(self, name: str, status: NodeStatus | None) -> str:
        if status is None:
            return self._reading(name)
        if status.applied_index < status.commit_index:
            self._note(self._applied, name, status.applied_index, 1)
            return f"applies entry {status.applied_index:,} of {status.commit_index:,}"
        return ""

    def _reading(self, name: str) -> str:
        pid = self._services[name].pid()
        if pid is None:
            return "has ended"
        read = bytes_read(pid)
        if read is None:
            return "does not answer yet"
        self._note(self._read, name, read, READ_STEP_BYTES)
        return f"does not answer yet, and has read {read >> 20:,} MiB"

    def _note(self, known: dict[str, int], name: str, count: int, step: int) -> None:
        if name not in known:
            known[name] = count
        elif count >= known[name] + step:
            known[name] = count
            self._advanced_at = time.monotonic()
