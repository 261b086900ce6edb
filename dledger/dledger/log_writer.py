"""Writer of log lines on a thread of its own: a log file on a disk that stands still holds up no event loop."""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener
from typing import Final

MAX_WAITING_LINES: Final = 10_000
"""Lines that wait for the disk, or for whoever reads a pipe. Further ones are lost, and counted."""

_logger: Final = logging.getLogger(__name__)


class LogWriter(QueueHandler):
    """Formats records where they are logged, and has a thread write the lines once `write_to` has said where to.

    `close` waits until all are written.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(queue.Queue(MAX_WAITING_LINES))
        self.setFormatter(formatter)
        self._target: logging.Handler | None = None
        self._thread: _Thread | None = None
        self._lost = 0

    def write_to(self, target: logging.Handler) -> LogWriter:
        """Begin to write, with what was logged before; returns this writer. Not called again."""
        self._target = target
        self._thread = _Thread(self.queue, target)
        self._thread.start()
        return self

    def enqueue(self, record: logging.LogRecord) -> None:
        """See `QueueHandler.enqueue`. The first line that has room again says how many had none."""
        try:
            if self._lost:
                self.queue.put_nowait(self.prepare(self._lost_lines()))
                self._lost = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._lost += 1

    def _lost_lines(self) -> logging.LogRecord:
        return _logger.makeRecord(
            _logger.name, logging.WARNING, __file__, 0, "event=log_lines_lost lines=%d", (self._lost,), None
        )

    def close(self) -> None:
        """See `logging.Handler.close`. Done at the end of the process at the latest."""
        if self._thread is not None and self._target is not None:
            self._thread.stop()
            self._thread = None
            self._target.close()
        super().close()


class _Thread(QueueListener):
    """Writes what was formatted already."""

    def enqueue_sentinel(self) -> None:
        """See `QueueListener.enqueue_sentinel`; the end waits for its place among the lines."""
        self.queue.put(self._sentinel)  # type: ignore[attr-defined]
