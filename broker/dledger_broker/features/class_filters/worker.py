"""Worker of a class filter: calls the filter's process from a thread, and replaces it if it dies, hangs or grows."""

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
from dledger_broker.filter_process.messages import JUDGED, MAX_ANSWER_BYTES, SIZE, answer_size, question

_CHUNK_BYTES: Final = 64 << 10
_GRACE_SECONDS: Final = 1.0
"""Time in seconds between the node's time limit and the watchdog of the process.

Also the time limit for a process to end after it has closed its pipe.
"""
_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 10.0


class FilterFailedError(Exception):
    """A filter gave no answer. The text says why."""


class _EndedError(Exception):
    """The process has closed its pipe, or its answer is too long."""


class FilterWorker:
    """Worker that runs one filter in a process, which may serve many calls. Calls block, and run one at a time.

    A process that fails is ended. The next process starts after a pause that grows with each failure. A filter that
    fails at once would otherwise keep a core busy with starts. Calls during the pause fail with the reason of the last
    failure.
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
        """Number of processes that were ended because they failed."""

    def load(self) -> None:
        """Start the process unless it runs. Raises `FilterFailedError`."""
        with self._lock:
            self._running()

    def judge(self, count: int, pieces: Sequence[bytes]) -> bytes:
        """Return one byte for each of `count` records, which lie back to back in `pieces`: 1 if it matches, else 0.

        Raises `FilterFailedError` if the time limit for starting the process or for judging is exceeded.
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
        """End the process, and start no other. A blocked call fails. May be called from any thread."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the loaded process. Start it if necessary. Raises `FilterFailedError`."""
        if self._closed.is_set():
            raise FilterFailedError("this node stops")
        if self._process is not None:
            return self._process
        pause = self._next_start - time.monotonic()
        if pause > 0:
            raise FilterFailedError(f"{self._why}; its process starts again in {pause:.1f} s")
        process = self._process = self._start()
        if self._closed.is_set():  # `close` was called after the check above, before there was a process to kill
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
        """Send a question and return the answer. Raises TimeoutError, and `_EndedError` if the process can send no
        answer.
        """
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
        """End the process and raise `FilterFailedError`. The next process starts after a pause."""
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
    """Return the bytes that can be read now. Raises `_EndedError` at the end of the pipe."""
    data = os.read(descriptor, _CHUNK_BYTES)
    if not data:
        raise _EndedError
    return data


def _sent(descriptor: int, data: memoryview) -> int:
    """Return the number of bytes written. Raises `_EndedError` if the process has closed its pipe."""
    try:
        return os.write(descriptor, data[:_CHUNK_BYTES])
    except BlockingIOError:
        return 0
    except BrokenPipeError as error:
        raise _EndedError from error
