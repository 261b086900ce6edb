"""Signals that end a command in good order: it stops the processes that it started."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def ending_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and, unless `nohup` has it ignored, SIGHUP, which a closing terminal sends."""
    shielded = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if shielded else [signal.SIGHUP])]


@contextmanager
def noted_signals() -> Iterator[Callable[[], None]]:
    """Give a `check` that raises `KeyboardInterrupt` once a signal has come.

    If the signal's handler raised it, the exception could interrupt the start of a process. Nobody would stop that
    process then.
    """
    interrupted = False

    def record_signal(number: int, frame: object) -> None:
        nonlocal interrupted
        del number, frame
        interrupted = True

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    former_handlers = {number: signal.signal(number, record_signal) for number in ending_signals()}
    try:
        yield check
    finally:
        for number, handler in former_handlers.items():
            signal.signal(number, handler)
