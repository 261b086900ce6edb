"""Signals that end a command in good order: what it started is stopped."""

import signal


def ending_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and, when its terminal is closed, SIGHUP; the last only where `nohup` has not set it aside."""
    shielded = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if shielded else [signal.SIGHUP])]
