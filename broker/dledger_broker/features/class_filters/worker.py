"""Worker of a class filter: its process, which is asked from a thread, and replaced when it dies, hangs or grows."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final, Never

from dledger_broker.filter_process.__main__ import EXIT_MEMORY, LOAD_SECONDS
from dledger_broker.filter_process.frames import JUDGED, MAX_ANSWER_BYTES, SIZE, answer_size, question

_CHUNK_BYTES: Final = 64 << 10
_GRACE_SECONDS: Final = 1.0
"""The process ends a look by itself so much later than the node would."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 10.0


class FilterFailedError(Exception):
    """A filter gave no answer; the text says why."""


class _EndedError(Exception):
    """The process has closed its pipe."""


class FilterWorker:
    """Runs one filter in a process that may live on for many looks; calls block, one at a time.

    A process that gives no answer is ended. The next one starts after a pause that grows with each failure, for a
    filter that fails at once would keep a core busy with starts; looks meanwhile are told why the last one failed.
    """

    def __init__(self, target: str, timeout_ms: int, memory_bytes: int) -> None:
        self._target = target
        self._timeout_ms = timeout_ms
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self._failures = 0
        self._next_start = 0.0
        self._why = ""
        self.ended = 0
        """Processes that gave no answer."""

    def load(self) -> None:
        """Start the process if there is none. Raises `FilterFailedError`."""
        with self._lock:
            self._running()

    def judge(self, count: int, pieces: Sequence[bytes]) -> bytes:
        """For each of `count` records, which lie back to back in the pieces, 1 if it matches, else 0.

        Raises `FilterFailedError` within the time of a look, or that of a start.
        """
        with self._lock:
            process = self._running()
            try:
                outcome, content = self._answer(process, question(count, pieces), self._timeout_ms / 1000)
            except TimeoutError:
                self._failed(f"it took longer than class_filter_timeout_ms = {self._timeout_ms}")
            except _EndedError:
                self._failed(self._why_ended(process))
            if outcome != JUDGED:
                raise FilterFailedError(content.decode(errors="replace"))
            if len(content) != count:
                self._failed(f"it answered with {len(content)} bytes for {count} messages")
            self._failures = 0
            return content

    def close(self) -> None:
        """End the process, and let no other start. What waits for it is told; may be called from any thread."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, loaded. Raises `FilterFailedError`."""
        if self._closed.is_set():
            raise FilterFailedError("this node stops")
        if self._process is not None:
            return self._process
        pause = self._next_start - time.monotonic()
        if pause > 0:
            raise FilterFailedError(f"{self._why}; its process starts again in {pause:.1f} s")
        process = self._process = self._start()
        if self._closed.is_set():  # between the look at it and the start
            process.kill()
        try:
            outcome, content = self._answer(process, b"", LOAD_SECONDS)
        except TimeoutError:
            self._failed(f"{self._target} was not loaded in {LOAD_SECONDS:g} s")
        except _EndedError:
            self._failed(self._why_ended(process))
        if outcome != JUDGED:
            self._failed(content.decode(errors="replace"))
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        watchdog_s = self._timeout_ms / 1000 + _GRACE_SECONDS
        arguments = (self._target, str(self._memory_bytes), str(watchdog_s))
        process = subprocess.Popen(
            [sys.executable, "-m", "dledger_broker.filter_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        return process

    @staticmethod
    def _answer(process: subprocess.Popen[bytes], asked: bytes, timeout_s: float) -> tuple[int, bytes]:
        """The next answer of the process. Raises TimeoutError, and `_EndedError` if none will come."""
        deadline = time.monotonic() + timeout_s
        if process.stdin is None or process.stdout is None:
            raise _EndedError
        to, from_ = process.stdin.fileno(), process.stdout.fileno()
        left, received = memoryview(asked), bytearray()
        poller = select.poll()
        poller.register(from_, select.POLLIN)
        if left:
            poller.register(to, select.POLLOUT)
        while (size := answer_size(received)) is None or len(received) < size:
            if size is not None and size > MAX_ANSWER_BYTES:
                raise _EndedError
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            for descriptor, _ in poller.poll(remaining * 1000):
                if descriptor == from_:
                    received += _received(from_)
                else:
                    left = left[_sent(to, left) :]
                    if not left:
                        poller.unregister(to)
        return received[SIZE.size], bytes(received[SIZE.size + 1 : size])

    def _failed(self, why: str) -> Never:
        """End the process; another one starts after a pause."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.ended += 1
        self._why = why
        pause_s = min(_FIRST_PAUSE_SECONDS * 2**self._failures, _MAX_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._next_start = time.monotonic() + pause_s
        raise FilterFailedError(why)

    def _why_ended(self, process: subprocess.Popen[bytes]) -> str:
        try:
            status = process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process said nothing sensible"
        if status == EXIT_MEMORY:
            return f"it wanted more than class_filter_memory_bytes = {self._memory_bytes}"
        if status < 0:
            return f"its process was ended by signal {signal.Signals(-status).name}"
        return f"its process ended with status {status}"


def _received(descriptor: int) -> bytes:
    """What is there. Raises `_EndedError` at the end."""
    data = os.read(descriptor, _CHUNK_BYTES)
    if not data:
        raise _EndedError
    return data


def _sent(descriptor: int, data: memoryview) -> int:
    """How much of it went. Raises `_EndedError` if nobody reads it."""
    try:
        return os.write(descriptor, data[:_CHUNK_BYTES])
    except BlockingIOError:
        return 0
    except BrokenPipeError as error:
        raise _EndedError from error
