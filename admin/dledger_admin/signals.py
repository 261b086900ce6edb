"""Signals that end a command in good order: what it started is stopped."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def ending_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and, when its terminal is closed, SIGHUP; the last only where `nohup` has not set it aside."""
    shielded = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if shielded else [signal.SIGHUP])]


@contextmanager
def noted_signals() -> Iterator[Callable[[], None]]:
    """Give a `check` that raises `KeyboardInterrupt` once a signal has come.

    Raised by the signal itself it could come while a process is being started, of which nobody would know then.
    """
    interrupted = False

    def note(number: int, frame: object) -> None:
        nonlocal interrupted
        del number, frame
        interrupted = True

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in ending_signals()}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
