"""Rebuilder of files from their lines, some of which arrive twice or early.

Lines of one file arrive in order, because they were sent with one ordering key.  Some arrive again: after a send of
unknown outcome was repeated, or after a queue moved to the other consumer before its offset was committed.  Nothing is
assumed, everything is counted.  A line that comes before its predecessor is kept aside, and shows in the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .corpus import name_of


@dataclass(slots=True)
class _Unfinished:
    next_number: int = 0
    lines: list[bytes] = field(default_factory=list)
    early: dict[int, bytes] = field(default_factory=dict)
    count: int | None = None


class Rebuilder:
    """Collects lines and writes each file below `target` once its last line is there.

    `messages` counts what was received, `duplicates` what had been received before, `out_of_order` lines that came
    before their predecessor, `received_bytes` the bodies of new lines.  `on_complete(key)` is called per finished file.
    """

    def __init__(self, target: Path, on_complete: Callable[[str], None]) -> None:
        self.messages = 0
        self.duplicates = 0
        self.out_of_order = 0
        self.received_bytes = 0
        self.digests: dict[str, str] = {}
        self._target = target
        self._on_complete = on_complete
        self._unfinished: dict[str, _Unfinished] = {}

    def line(self, key: str, number: int, body: bytes) -> None:
        """Take line `number` (from 0) of a file."""
        self.messages += 1
        file = self._find_unfinished(key)
        if file is None or number < file.next_number or number in file.early:
            self.duplicates += 1
            return
        self.received_bytes += len(body)
        if number > file.next_number:
            self.out_of_order += 1
            file.early[number] = body
            return
        file.lines.append(body)
        file.next_number += 1
        while file.early and (following := file.early.pop(file.next_number, None)) is not None:
            file.lines.append(following)
            file.next_number += 1
        self._finish_if_complete(key, file)

    def closing(self, key: str, count: int) -> None:
        """Take the closing message of a file, which says how many lines it has."""
        self.messages += 1
        file = self._find_unfinished(key)
        if file is None or file.count is not None:
            self.duplicates += 1
            return
        if count > file.next_number:
            self.out_of_order += 1
        file.count = count
        self._finish_if_complete(key, file)

    def _find_unfinished(self, key: str) -> _Unfinished | None:
        """Return the file's state, None once it is complete."""
        return None if key in self.digests else self._unfinished.setdefault(key, _Unfinished())

    def _finish_if_complete(self, key: str, file: _Unfinished) -> None:
        if file.count != file.next_number:
            return
        del self._unfinished[key]
        path = self._target / name_of(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"".join(file.lines)
        path.write_bytes(data)
        self.digests[key] = hashlib.sha256(data).hexdigest()
        self._on_complete(key)
