"""Topics that changed recently, in order: the topics to send to a name server that had all topics a moment ago."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_REMEMBERED: Final = 4096


class TopicChanges:
    """Names of changed topics, each with the version that its change made. Changes up to `version` are unknown."""

    def __init__(self, version: int = 0) -> None:
        self._known_since = version
        self._changes: deque[tuple[int, str]] = deque()

    def note(self, version: int, name: str) -> None:
        """Note that a topic was made, changed or deleted. Versions rise."""
        self._changes.append((version, name))
        if len(self._changes) > MAX_REMEMBERED:
            self._known_since = self._changes.popleft()[0]

    def since(self, version: int) -> set[str] | None:
        """Return the topics that changed after a version, None if that was too many changes ago."""
        if version < self._known_since:
            return None
        names: set[str] = set()
        for changed, name in reversed(self._changes):
            if changed <= version:
                break
            names.add(name)
        return names
