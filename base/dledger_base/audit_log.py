"""Audit log of a server: who changed what, from where, and with what outcome. Each line is a JSON object.

| field | is |
|---|---|
| `time` | UTC |
| `who`, `from` | account, or what proved the sender's right; address |
| `what` | name of the request |
| `before`, `after` | state of the changed object when the request came and when it was answered; no secrets |
| `outcome` | `done`, or the code and text of the refusal |
| `untold` | lines of this account that were above its rate since the line before |

The file is `audit.log`, mode 0600. A new one is begun each day (UTC); older files have their day in their name.
Characters other than ASCII are escaped, so that they cannot control a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain, count
from pathlib import Path
from typing import Final, TextIO

from dledger_base.line_writer import LineWriter

BURST_LINES: Final = 5_000
"""Maximum number of lines of an account at once."""
LINES_PER_S: Final = 1.0
MAX_ACCOUNTS: Final = 1_000
MAX_CHARS: Final = 2_000
"""Maximum number of characters of a text in a line."""
MAX_READ_BYTES: Final = 4 << 20
"""Maximum number of bytes that one search of the audit log reads."""

_logger: Final = logging.getLogger(__name__)


class AuditFile(logging.Handler):
    """Appends lines to `audit.log` in a folder. `lost` counts the lines that could not be written to the disk."""

    def __init__(self, folder: Path, keep_days: int) -> None:
        super().__init__()
        self.lost = 0
        self._folder = folder
        self._keep_days = keep_days
        self._day = ""
        self._stream: TextIO | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line. Called on a thread of its own."""
        try:
            stream = self._open_stream(f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%d}")
            stream.write(f"{record.getMessage()}\n")
            stream.flush()
        except OSError as error:
            self.lost += 1
            self._close()
            if self.lost & (self.lost - 1) == 0:  # for the first, the second, the fourth lost line, and so on
                _logger.error(
                    "event=audit_lost lines=%d reason=%r remedy='make room on the disk of %s'",
                    self.lost,
                    error.strerror or str(error),
                    self._folder,
                )

    def _open_stream(self, day: str) -> TextIO:
        if self._stream is not None and day == self._day:
            return self._stream
        self._close()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "audit.log"
        if path.exists():
            last_day = f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"
            if last_day < day:
                path.rename(self._free_name(last_day))
        self._delete_old_files(day)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._stream, self._day = os.fdopen(descriptor, "a", encoding="ascii"), day
        return self._stream

    def _free_name(self, day: str) -> Path:
        """Return the name of a finished file. There may be one of that day already, if the clock was put back."""
        names = chain((f"audit.log.{day}",), (f"audit.log.{day}.{number}" for number in count(2)))
        return next(path for name in names if not (path := self._folder / name).exists())

    def _delete_old_files(self, day: str) -> None:
        oldest = f"{datetime.fromisoformat(day) - timedelta(days=self._keep_days):%Y-%m-%d}"
        for path in self._folder.glob("audit.log.*"):
            if path.name.removeprefix("audit.log.") < oldest:
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError:
                return

    def close(self) -> None:
        """Close the file."""
        self._close()
        super().close()


def newest_lines(folder: Path, count: int, word: str = "") -> list[dict[str, object]]:
    """Return the newest lines of the audit log in a folder that contain a word, the newest first. Blocks.

    At most `MAX_READ_BYTES` are read, and lines that are no JSON are left out. A missing file has no lines. Raises
    `OSError` if a file cannot be read: it could have the lines that somebody looks for.
    """
    found: list[dict[str, object]] = []
    left = MAX_READ_BYTES
    wanted = word.casefold()
    older = sorted(folder.glob("audit.log.*"), key=lambda path: path.name, reverse=True)
    for path in (folder / "audit.log", *older):
        content = _end_of(path, left)
        left -= len(content)
        for line in reversed(content.decode("ascii", errors="replace").splitlines()):
            if len(found) == count:
                return found
            if wanted in line.casefold() and (fields := _fields_in(line)) is not None:
                found.append(fields)
        if left <= 0:
            break
    return found


def _end_of(path: Path, size: int) -> bytes:
    """Return whole lines of at most some bytes at the end of a file."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            content = file.read(size)
    except FileNotFoundError:  # there is none yet, or it was turned over meanwhile
        return b""
    return content if length <= size else content.partition(b"\n")[2]


def _fields_in(line: str) -> dict[str, object] | None:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


class AuditLog:
    """Writer of a process's audit lines. It writes nothing before `open`. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._writer: LineWriter | None = None
        self._file: AuditFile | None = None
        self._rates: dict[str, tuple[float, float, int]] = {}
        """For each account: the lines that it may still write, since when, and how many were above its rate."""

    def open(self, folder: Path, keep_days: int) -> None:
        """Write to a folder from now on."""
        self._file = AuditFile(folder, keep_days)
        self._writer = LineWriter(logging.Formatter("%(message)s")).write_to(self._file)

    def close(self) -> None:
        """Write the lines that wait, and stop."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @property
    def is_open(self) -> bool:
        """True if lines are written."""
        return self._writer is not None

    @property
    def lost(self) -> int:
        """Number of lines that could not be written to the disk."""
        return 0 if self._file is None else self._file.lost

    def write(
        self, who: str, address: str, what: str, outcome: str, before: object = None, after: object = None
    ) -> None:
        """Write a line. A line above its account's rate is only counted."""
        if self._writer is None:
            return
        untold = self._count_untold(who)
        if untold is None:
            return
        fields: Mapping[str, object] = {
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
            "who": _cut(who),
            "from": address,
            "what": what,
            "before": _cut(before),
            "after": _cut(after),
            "outcome": _cut(outcome),
            **({"untold": untold} if untold else {}),
        }
        record = logging.LogRecord(__name__, logging.INFO, __file__, 0, json.dumps(fields, default=str), None, None)
        self._writer.handle(record)

    def _count_untold(self, who: str) -> int | None:
        """Return the number of an account's lines left out before this one, or None to leave this one out, too."""
        now = self._now()
        allowance, since, untold = self._rates.pop(who, (float(BURST_LINES), now, 0))
        allowance = min(BURST_LINES, allowance + (now - since) * LINES_PER_S)
        if len(self._rates) >= MAX_ACCOUNTS:
            del self._rates[next(iter(self._rates))]
        if allowance < 1:
            self._rates[who] = allowance, now, untold + 1
            return None
        self._rates[who] = allowance - 1, now, 0
        return untold


def _cut(value: object) -> object:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
    return value if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."
