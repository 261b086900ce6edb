"""Command `python -m dledger_broker.filter_process module:function MEMORY_BYTES SECONDS`: runs a class filter.

The process reads questions from its standard input and writes answers to its standard output, until the node closes
them. A question that takes longer than SECONDS ends the process, even if the node has died meanwhile. Output that the
filter prints goes to standard error.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

from dledger_broker.filter_process.messages import (
    FAILED,
    JUDGED,
    SIZE,
    FilteredMessage,
    answer,
    load_target,
    shown_message,
)
from dledger_remoting.record import iter_records

EXIT_MEMORY: Final = 70
"""Exit status of a process whose filter wanted more memory than it may have."""
LOAD_SECONDS: Final = 30.0
"""Time limit in seconds for importing a filter's module."""
_MAX_REASON_CHARS: Final = 500


def _read(descriptor: int, size: int) -> bytes:
    """Read exactly this many bytes, or fewer at the end of the input."""
    received = bytearray()
    while len(received) < size and (data := os.read(descriptor, size - len(received))):
        received += data
    return bytes(received)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARS]


def judged(matches: Callable[[FilteredMessage], object], content: bytes) -> bytes:
    """Return the answer to a question."""
    answers = bytearray()
    for record in iter_records(memoryview(content)[SIZE.size :]):
        try:
            answers.append(bool(matches(shown_message(record))))
        except MemoryError:
            raise
        except Exception as error:  # any exception of the filter is reported to the consumer
            return answer(FAILED, f"queue offset {record.queue_offset}: {_reason(error)}".encode())
    return answer(JUDGED, bytes(answers))


def _serve(target: str, seconds: float, questions: int, answers: int) -> int:
    signal.setitimer(signal.ITIMER_REAL, LOAD_SECONDS)
    try:
        matches = load_target(target)
    except MemoryError:
        raise
    except BaseException as error:  # an import may raise anything, also SystemExit
        _write(answers, answer(FAILED, f"{target} cannot be loaded: {_reason(error)}".encode()))
        return 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    _write(answers, answer(JUDGED, b""))
    while len(size := _read(questions, SIZE.size)) == SIZE.size:
        content = _read(questions, *SIZE.unpack(size))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        found = judged(matches, content)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answers, found)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Answer questions until the node closes the pipe. Return the exit status."""
    target, memory_bytes, seconds = arguments
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, also inside a call that never returns to Python
    questions, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_bytes), int(memory_bytes)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        return _serve(target, float(seconds), questions, answers)
    except MemoryError:
        os._exit(EXIT_MEMORY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
