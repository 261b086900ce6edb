"""Writer of log lines on a thread of its own, so that a log file on a hanging disk delays no event loop."""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener
from typing import Final

MAX_WAITING_LINES: Final = 10_000
"""Maximum number of lines that wait for the disk, or for the reader of a pipe. Further lines are lost and counted."""

_logger: Final = logging.getLogger(__name__)


class LineWriter(QueueHandler):
    """Formats records where they are logged. A thread writes the lines, once `write_to` has set the target.

    `close` waits until all lines are written.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(queue.Queue(MAX_WAITING_LINES))
        self.setFormatter(formatter)
        self._target: logging.Handler | None = None
        self._thread: _Thread | None = None
        self._lost_count = 0

    def write_to(self, target: logging.Handler) -> LineWriter:
        """Begin to write to a target, including everything logged before, and return this writer. Call it once."""
        self._target = target
        self._thread = _Thread(self.queue, target)
        self._thread.start()
        return self

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a formatted record, or count it as lost.

        Once there is room again, a line with the number of lost lines comes first.
        """
        try:
            if self._lost_count:
                self.queue.put_nowait(self.prepare(self._lost_lines_record()))
                self._lost_count = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost_count += 1

    def _lost_lines_record(self) -> logging.LogRecord:
        return _logger.makeRecord(
            _logger.name, logging.WARNING, __file__, 0, "event=log_lines_lost lines=%d", (self._lost_count,), None
        )

    def close(self) -> None:
        """Write all lines and end the thread. At the end of the process `logging` calls this at the latest."""
        if self._thread is not None and self._target is not None:
            self._thread.stop()
            self._thread = None
            self._target.close()
        super().close()


class _Thread(QueueListener):
    """Thread that writes the formatted lines."""

    def enqueue_sentinel(self) -> None:
        """Queue the end behind all lines, waiting for room: the base class would raise on a full queue."""
        self.queue.put(self._sentinel)  # type: ignore[attr-defined]
